"""Published results as collected from many sources: one row a run, with the commands of server and benchmark.

Columns: ``engine``, ``version``, ``gpu``, ``model``, ``infercast_gpu`` and ``infercast_model`` (our names, where they
match), ``precision``, ``tp``, ``pp``, ``dp``, ``ep``, ``load_kind``, ``concurrency_or_rate``, ``num_requests``,
``mean_in``, ``mean_out``, ``len_dist``, ``prefix_note``, ``server_cmd``, ``quality`` and what was measured:
``ttft_p50`` and ``tpot_p50`` or ``ttft_mean_ms`` and ``tpot_mean_ms``, ``e2e_mean_ms``, ``output_tok_s``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import numpy as np

from infercast.engines.registry import AnyEngine, measured_engine
from infercast.errors import InfercastError
from infercast.forecast.command.flags import Reading, read_flags
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import workload_from_requests
from infercast.validate.published.flags import NO_FLAGS
from infercast.validate.published.load import SHARES, RowReader, chat_lengths
from infercast.validate.published.run import GPUS, PublishedRun

UNIFORM = re.compile(r"random in=(\d+) out=(\d+) \(sglang bench")
"""Lengths that SGLang's benchmark draws between 1 and the stated one."""
BENCH_SEED = 1
"""Its seed: the lengths that it draws are known one by one."""
STATED = re.compile(r"(\d+)/(\d+)$")
"""Stated lengths of prompts and answers, behind how they vary."""
FORMATS = {"fp8": "fp8", "nvfp4": "nvfp4", "bf16": "", "fp16": ""}
"""How a checkpoint was quantised, where its own config does not say."""
NOBODY = Workload((Request(0.0, 1, 1),))
"""In place of a load that is not known."""
NOT_SERVED = ("image",)
"""Lengths of prompts that hold more than text."""

SAME_TIME, OTHER_TIME = 0.001, 0.05
"""Relative differences of two times that are one, and that are surely not."""
RATE = re.compile(r"(?:rate|poisson) (\d+(?:\.\d+)?)")
"""Requests a second that come whatever is answered."""

COMMAND = "server_cmd"
"""The column that tells such a table."""


def read_collected(row: RowReader) -> PublishedRun:
    """One line of the table; one that says too little, or what is not modelled, is kept with the reason."""
    try:
        return _read(row)
    except InfercastError as problem:
        return _named(row, problem=str(problem))


def _named(row: RowReader, **values: Any) -> PublishedRun:
    """A run with what every row has."""
    gpu = row.text("infercast_gpu") or row.text("gpu")
    unknown: dict[str, Any] = {
        "run_id": f"line {row.line}", "source": row.text("source_repo"), "gpu": GPUS.get(gpu, gpu),
        "model": row.text("infercast_model") or row.text("model"), "dtype": "", "tensor": 1, "data": 1,
        "expert_parallel": False, "version": (), "flags": NO_FLAGS, "workload": NOBODY, "max_model_len": None,
        "ttft": None, "tpot": None, "end_to_end": None, "output_tokens_per_second": None,
    }  # fmt: skip
    return PublishedRun(**{**unknown, **values})


def _read(row: RowReader) -> PublishedRun:
    if any(word in row.text("len_dist") for word in NOT_SERVED):
        raise row.wrong(f"len_dist {row.text('len_dist')!r} is not modelled: prompts are text")
    if "s" in row.text("quality"):
        raise row.wrong("was served with speculative decoding, which is not modelled")
    engine = measured_engine(row.required("engine"))
    reading = _reading(row, engine)
    token = "itl" if _counts_first_token(row) else "tpot"
    median = row.number("ttft_p50") is not None and row.number(f"{token}_p50") is not None
    mean = "itl_mean" if token == "itl" else "tpot_mean_ms"
    return _named(
        row,
        dtype=_format(row),
        tensor=_layout(row, reading, "tensor_parallel_size", "tp"),
        data=_layout(row, reading, "data_parallel_size", "dp"),
        expert_parallel=(row.whole("ep") or 1) > 1,
        version=_version(row.text("version")),
        workload=_workload(row),
        ttft=row.milliseconds("ttft_p50" if median else "ttft_mean_ms"),
        tpot=row.milliseconds(f"{token}_p50" if median else mean),
        end_to_end=None if median else row.milliseconds("e2e_mean_ms"),
        output_tokens_per_second=row.number("output_tok_s"),
        engine=engine.name,
        reading=reading,
        median=median,
    )


def _counts_first_token(row: RowReader) -> bool:
    """Whether the published TPOT is the whole time over all tokens, as guidellm has it; its ITL is then our TPOT.

    The table tells: TTFT and ITL of all other tokens add up to it.
    """
    names = ("mean_out", "ttft_mean_ms", "itl_mean", "tpot_mean_ms")
    tokens, first, other, stated = (row.number(name) or 0.0 for name in names)
    if not (tokens and first and other and stated):
        return False
    whole = (first + other * (tokens - 1)) / tokens
    return abs(whole / stated - 1) < SAME_TIME and abs(other / stated - 1) > OTHER_TIME


def _reading(row: RowReader, engine: AnyEngine) -> Reading:
    """The flags of the server's command."""
    words = shlex.split(row.required(COMMAND).replace("\\", " "), comments=True)
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    flags = words[starts[0] :] if starts else []
    try:
        return read_flags([row.required("model"), *flags], engine)
    except InfercastError as problem:
        raise row.wrong(f"server_cmd cannot be read: {problem}") from None


def _layout(row: RowReader, reading: Reading, option: str, column: str) -> int:
    """As the command says; as the row does where that is silent."""
    return int(reading.options.get(option) or row.whole(column) or 1)


def _version(text: str) -> tuple[int, ...]:
    """``v0.5.5.post1`` as (0, 5, 5); nothing where it cannot be read."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found and found.groups() > ("0", "0", "0") else ()


def _format(row: RowReader) -> str:
    """The format of weights; nothing where the checkpoint's own config says it."""
    stated = row.text("precision")
    return "" if "native" in stated else FORMATS.get(stated.split(" ")[0], stated)


def _workload(row: RowReader) -> Workload:
    """A burst, clients that send one request after the other, or requests that come at random times."""
    count, load = row.whole("num_requests"), row.text("load_kind")
    if count is None:
        raise row.wrong("needs the column 'num_requests'")
    inputs, outputs = _lengths(row, count)
    requests = [Request(0.0, *pair) for pair in zip(inputs, outputs, strict=True)]
    if load == "burst":
        return workload_from_requests(requests)
    clients = re.search(r"concurrency (\d+)", row.text("concurrency_or_rate"))
    if load == "closed loop" and clients:
        return workload_from_requests(requests, concurrency=int(clients[1]))
    rate = RATE.match(row.text("concurrency_or_rate"))
    if load == "poisson" and rate:
        gaps = np.random.default_rng(0).exponential(1 / float(rate[1]), count)
        times = np.cumsum(gaps).tolist()
        return workload_from_requests(replace(each, arrival=at) for each, at in zip(requests, times, strict=True))
    raise row.wrong(
        f"load {load!r} with {row.text('concurrency_or_rate')!r} is not known; known: closed loop, burst, poisson"
    )


def _lengths(row: RowReader, count: int) -> tuple[list[int], list[int]]:
    """Lengths of prompts and answers, one by one."""
    stated, means = row.text("len_dist"), (row.number("mean_in"), row.number("mean_out"))
    if (drawn := UNIFORM.match(stated)) is not None:
        generator = np.random.RandomState(BENCH_SEED)
        inputs, outputs = (generator.randint(1, int(most) + 1, size=count).tolist() for most in drawn.groups())
        return inputs, outputs
    if None in means:
        raise row.wrong("needs the columns 'mean_in' and 'mean_out'")
    whole = [max(1, round(mean or 1.0)) for mean in means]
    shuffle = np.random.default_rng(0)
    shares, lengths = SHARES.match(stated.lower()), STATED.search(stated)
    if shares is not None and lengths is not None:
        low, high = (float(share or 1) for share in shares.groups())
        drawn_lengths = [
            shuffle.integers(round(low * int(most)), round(high * int(most)), count, endpoint=True).tolist()
            for most in lengths.groups()
        ]
        return drawn_lengths[0], drawn_lengths[1]
    if stated.startswith("sharegpt"):
        inputs, outputs = (
            chat_lengths(name, float(mean or 1.0), count, shuffle)
            for name, mean in zip(("isl", "osl"), means, strict=True)
        )
        return inputs, outputs
    return [whole[0]] * count, [whole[1]] * count
