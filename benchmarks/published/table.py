"""Published serving results, read from a table: one row a run (README.md has the columns)."""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from infercast.engines.base import Engine, engine_named, measured_engine
from infercast.engines.settings import NOT_MODELLED, REFUSED, version_of
from infercast.errors import InfercastError
from infercast.forecast.command.flags import Reading, read_flags
from infercast.forecast.estimate import read_rows
from infercast.hardware import load_gpu
from infercast.models.library import bundled_name, checkpoint
from infercast.serve.workload.request import Request, Workload
from infercast.units import MILLI
from published import run
from published.run import OPEN, RowReader, read_arguments, read_load, read_workload

Version = tuple[int, ...]
COMMAND = "server_cmd"  # the column that marks a table of collected runs
CLIENT_FLAGS = ("--dataset-name", "--num-prompts", "--max-concurrency", "--random-input-len")
"""Flags of load generators: a command with these starts no server."""
LORA_MODULES = re.compile(r"""['"]lora_modules['"]: \[.*?\],?""", re.DOTALL)
BARE_JSON = re.compile(r"([= ])(\{\"[^{}']*\})(?= |$)")  # a flag's JSON without the quotes that a shell needs
CACHE = re.compile(r"\bKV cache (\d+) tokens\b|\bkv (\d+) blocks\b")
BLOCK = 16  # Tokens of a block of vLLM's cache, where nothing else is said
NOTED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
POOLS = re.compile(r"disagg|prefill workers|\bPD\b", re.IGNORECASE)


def read_server(row: RowReader, engine: Engine, reading: Reading) -> dict[str, Any]:
    """Layout, release and rules of a row's server, as fields of a run; what it does not say is assumed, and listed."""
    options = reading.options
    instances = 1
    data = _size(row, options.get("data_parallel_size") or reading.settings.get("dp_size"), "dp") or 1
    pipeline = _size(row, options.get("pipeline_parallel_size") or reading.settings.get("pp_size"), "pp") or 1
    spread = _spread(row)
    if data > 1 and "separate" in row.text("notes") and "instances" in row.text("notes"):
        instances, data = data, 1
    tensor = _tensor(row, options.get("tensor_parallel_size"), pipeline * data * instances, spread or 1)
    version = _server_version(row, engine)
    return {
        "engine": engine_named(f"{engine.family}@{'.'.join(map(str, version))}").name if version else engine.name,
        "version": version,
        "reading": reading,
        "tensor": tensor or 1,
        "pipeline": pipeline,
        "data": data,
        "expert_parallel": bool(options.get("enable_expert_parallel")) or spread is None or spread > 1,
        "instances": instances,
        "gpus": max(_size(row, None, "num_gpus") or 1, (tensor or 1) * pipeline * data * instances),
        "layout_stated": tensor is not None,
    }


def _engine(row: RowReader) -> Engine:
    stated = row.required("engine").lower()
    if POOLS.search(row.text("notes")):
        raise row.wrong("was served by a prefill pool and a decode pool, which are not read from tables")
    if "lora_modules" in row.text(COMMAND) or re.search(r"\blora \w", row.text("notes")):
        raise row.wrong("was served with LoRA adapters, which are not read from tables")
    return measured_engine(run.NAMES["engines"].get(stated, stated))


def noted_cache(row: RowReader) -> int:
    """Tokens that vLLM's KV cache has room for, if the notes say so; 0 otherwise."""
    found = CACHE.search(row.text("notes"))
    if found is None:
        return 0
    tokens = int(found[1] or 0) or BLOCK * int(found[2])
    row.assume(f"room for {tokens:,} tokens in the KV cache, as the source has it")
    return tokens


def noted_settings(row: RowReader, stated: Mapping[str, Any]) -> dict[str, int]:
    """Settings of vLLM that stand in a row's notes, if its command has none."""
    found = {name: re.search(rf"\b{name} (\d+)", row.text("notes")) for name in NOTED}
    return {name: int(match[1]) for name, match in found.items() if match and name not in stated}


def _words(row: RowReader) -> list[str]:
    """The words of the command from its first flag on; what a program printed of its arguments is read as well."""
    text = row.text(COMMAND)
    if text.startswith("{"):
        return _from_printed(row, text)
    if any(flag in text for flag in CLIENT_FLAGS):
        row.assume("the published command is the load generator's")
        return []
    try:
        plain = BARE_JSON.sub(r"\1'\2'", re.sub(r"\\|```|--max-model-len auto", " ", text))
        words = shlex.split(plain, comments=True)
    except ValueError:
        raise row.wrong(f"server_cmd cannot be read: {text!r}") from None
    if "docker" in words[:2] and any(word.startswith("vllm/") for word in words):
        words = words[next(place for place, word in enumerate(words) if word.startswith("vllm/")) + 2 :]
    starts = [place for place, word in enumerate(words) if re.match(r"--?[a-zA-Z]", word) and word != "-m"]
    return words[starts[0] :] if starts else []


def _from_printed(row: RowReader, text: str) -> list[str]:
    """``{'max_model_len': 4096}`` or the same as JSON as ``--max-model-len 4096``."""
    plain = LORA_MODULES.sub("", text)
    try:
        printed = json.loads(plain) if '"' in plain else ast.literal_eval(plain)
    except (ValueError, SyntaxError):
        raise row.wrong(f"server_cmd cannot be read: {text!r}") from None
    words: list[str] = []
    for name, value in printed.items() if isinstance(printed, dict) else ():
        if name not in ("host", "model", "port") and value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def _size(row: RowReader, flag: Any, column: str) -> int | None:
    if flag:
        return int(flag)
    text = row.text(column)
    return int(float(text)) if re.fullmatch(r"\d+(\.0+)?", text) else None


def _spread(row: RowReader) -> int | None:
    """Over how many GPUs the row says experts are spread; None where it does not say how many."""
    text = row.text("ep").lower()
    if text in ("on", "true", "yes"):
        return None
    return int(float(text)) if re.fullmatch(r"\d+(\.0+)?", text) else 1


def _tensor(row: RowReader, flag: Any, others: int, spread: int) -> int | None:
    """GPUs that share a layer; None where several may be used in any way."""
    tensor, gpus = _size(row, flag, "tp"), _size(row, None, "num_gpus") or 1
    if tensor is not None and spread > tensor * others and not flag:
        # Experts are spread over the GPUs of all tensor and data ranks.
        row.assume(f"experts over {spread} GPUs: attention is split over as many")
        return spread // others
    if tensor is not None or gpus == 1:
        return tensor or 1
    if row.text("load_kind").lower().startswith(("offline", "poisson")):
        return None
    tensor = max(1, gpus // others)
    row.assume(f"the layout is not stated: tensor parallelism over {tensor} GPUs")
    return tensor


def _server_version(row: RowReader, engine: Engine) -> Version:
    """``v0.5.5.post1`` as (0, 5, 5); by the date of the run where none is stated; nothing where that is not known."""
    found = re.search(r"(?<!cuda )(?<!rocm )\bv?(\d+)\.(\d+)(?:\.(\d+))?", row.text("version"), re.IGNORECASE)
    if found and any(int(part or 0) for part in found.groups()):
        return tuple(int(part or 0) for part in found.groups())
    date = re.match(r"(\d{4})-?(\d{2})", row.text("date"))
    if date is None:
        row.assume(f"the release of {engine.title} is not known: {engine.name}")
        return ()
    month = "-".join(date.groups())
    known: Iterable[tuple[str, Version]] = reversed(run.NAMES["released"][engine.family])
    release = next((number for since, number in known if since <= month), None)
    if release is None:
        return ()
    row.assume(f"the release of {engine.title} is not stated: {'.'.join(map(str, release))} by its date {month}")
    return release


# What tables get wrong about what was measured: units, and what a time is called.

SAME_TIME, OTHER_TIME = 0.001, 0.05  # relative differences of two times that are one, and that are surely not
THOUSANDFOLD = (math.log(250.0), math.log(4000.0))  # between these, as logarithms, is a factor that a wrong unit makes


def read_measured(row: RowReader, gpus: int) -> dict[str, Any]:
    """What was measured, in seconds, as fields of a run: medians if they are published, means otherwise."""
    rate = _whole_rate(row, row.measured("output_tok_s"), gpus)
    if row.text("itl_p50") and row.measured("itl_p50") is None:
        row.assume("half of the times between tokens are 0: tokens came in lumps, and only their rate is compared")
        return {"output_tokens_per_second": rate, "median": True}
    token, mean = "tpot", "tpot_mean_ms"
    if _counts_first_token(row):
        token, mean = "itl", "itl_mean"
        row.assume("the published TPOT counts the first token: the time between tokens is compared")
    median = row.measured("ttft_p50") is not None and row.measured(f"{token}_p50") is not None
    ttft = row.measured("ttft_p50" if median else "ttft_mean_ms") or row.measured("ttft_p50")
    tpot = row.measured(f"{token}_p50" if median else mean)
    gaps = tpot is None and row.measured("itl_p50") is not None
    if gaps:
        tpot, median = row.measured("itl_p50"), True
    unit = _unit(row, None if tpot is None else tpot / 1e3)
    if unit != MILLI:
        row.assume("times are in seconds, though their columns say milliseconds")
    times = {"ttft": ttft, "tpot": tpot, "end_to_end": None if median else row.measured("e2e_mean_ms")}
    seconds = {name: None if value is None else value * unit for name, value in times.items()}
    return {**seconds, "output_tokens_per_second": rate, "median": median, "gaps": gaps}


def _whole_rate(row: RowReader, rate: float | None, gpus: int) -> float | None:
    """Tokens a second of all GPUs, where a table has those of one."""
    if rate is None or gpus < 2 or "per gpu" not in row.text("notes").lower():
        return rate
    row.assume("tokens a second are those of one GPU")
    return rate * gpus


def _counts_first_token(row: RowReader) -> bool:
    """Whether the published TPOT counts the first token, as guidellm's: TTFT and ITL of the others add up to it."""
    names = ("mean_out", "ttft_mean_ms", "itl_mean", "tpot_mean_ms")
    tokens, first, other, stated = (row.measured(name) or 0.0 for name in names)
    if not (tokens and first and other and stated):
        return False
    whole = (first + other * (tokens - 1)) / tokens
    return abs(whole / stated - 1) < SAME_TIME and abs(other / stated - 1) > OTHER_TIME


def _unit(row: RowReader, tpot: float | None) -> float:
    """1 where seconds stand in a column of milliseconds: the stated clients could not get as many tokens a second."""
    rate, clients = row.measured("output_tok_s"), re.search(r"concurrency (\d+)", row.text("concurrency_or_rate"))
    if rate is None or tpot is None or clients is None:
        return MILLI
    off = math.log(int(clients[1]) / (rate * tpot))
    waiting = (row.measured("ttft_mean_ms") or row.measured("ttft_p50") or 0.0) / 1e3
    answered = tpot * (row.number("mean_out") or 1.0)
    return 1.0 if THOUSANDFOLD[0] < off < THOUSANDFOLD[1] and waiting < 100 * answered else MILLI


BLOCKS, IN_BLOCKS, IN_PARTS = "fp8_block", ("qwen/",), "nvidia/"
"""Publishers with a scale for each block of weights in their fp8 checkpoints, and one that quantises parts alone."""


@cache
def known_model(name: str) -> str | None:
    """The bundled model that a published name means, by itself or without what quantising and tuning add to it."""
    try:
        found = checkpoint(name)
    except InfercastError:
        return None
    return bundled_name(name) or (found.base if found else None)


def model_of(row: RowReader) -> tuple[str, str]:
    """Our name of the row's model, in the stated format if that is bundled, and the format otherwise."""
    published, listed, wanted = row.text("model"), row.text("infercast_model"), format_of(row)
    found = known_model(published)
    short = published.lower().rpartition("/")[2]
    if found is None:
        found = next((ours for name, ours in run.NAMES["same_shape"].items() if short.startswith(name)), None)
        if found is None and listed and _looks_alike(published, listed):
            found = listed
        if found is not None:
            row.assume(f"{published} has the shape of {found}")
    stored = "fp8" if wanted == BLOCKS else wanted
    if found is not None and wanted and bundled_name(f"{found}-{stored}"):
        return f"{found}-{stored}", ""
    # vLLM 0.12, of the other rows, keeps keys and values in 16 bits, as its room for them says.
    if found is not None and wanted and published.startswith(IN_PARTS) and row.text("engine") == "sglang":
        return published, ""
    return found or published or listed, wanted


def _looks_alike(published: str, listed: str) -> bool:
    """Whether a table's own match can be: GLM-4.5V is no GLM-4.6, which shares but its first letters."""
    words = re.findall(r"\d+(?:\.\d+)?[a-z]?", listed.lower())
    plain = published.lower().replace("_", ".")
    return all(word in plain for word in words) or not published


def gpu_of(row: RowReader) -> str:
    listed, stated = row.text("infercast_gpu"), row.text("gpu")
    if listed:
        return run.GPUS.get(listed, listed)
    chip = re.sub(r"\b\d+ ?gb\b|nvidia|geforce|amd|instinct", "", stated.lower())
    plain = re.sub(r"[^a-z0-9]+", "-", chip).strip("-")
    for name in (run.GPUS.get(stated, ""), plain, plain.replace("ti-", "ti")):
        if name and _is_gpu(name):
            return name
    return plain or stated


@cache
def _is_gpu(name: str) -> bool:
    try:
        load_gpu(name)
    except InfercastError:
        return False
    return True


def format_of(row: RowReader) -> str:
    """The format that weights are in, by the names of `quantization`; nothing where the checkpoint's config says it."""
    stated, published = row.text("precision").lower(), row.text("model").lower()
    if "native" in stated:
        return ""
    wanted = run.FORMATS.get(stated.split(" ")[0].strip("()"))
    if wanted is None:
        row.assume(f"precision {stated!r}: weights as the checkpoint has them")
        return ""
    if stated in ("", "unset") and "fp8" in published:
        row.assume("precision is not stated: fp8 by the name of the checkpoint")
        return "fp8"
    return BLOCKS if wanted == "fp8" and published.startswith(IN_BLOCKS) else wanted


# Published results as collected from many sources: what a row does not say is assumed and listed with the run.

UNKNOWN_LOAD = Workload((Request(0.0, 1, 1),))


def read_collected(row: RowReader) -> run.PublishedRun:
    """One line of the table; one that says too little, or what is not modelled, is kept with the reason."""
    try:
        return _read(row)
    except InfercastError as problem:
        return _named(row, problem=str(problem))


def _named(row: RowReader, **values: Any) -> run.PublishedRun:
    unknown: dict[str, Any] = {
        "run_id": f"line {row.line}", "source": row.text("source_repo"), "gpu": gpu_of(row), "model": row.text("model"),
        "workload": UNKNOWN_LOAD, "engine": row.text("engine"), "grade": row.text("quality"),
        "load": row.text("load_kind"), "precision": row.text("precision"), "assumptions": tuple(row.assumptions),
    }  # fmt: skip
    return run.PublishedRun(**{**unknown, **values})


def _read(row: RowReader) -> run.PublishedRun:
    if "s" in row.text("quality"):
        # Raise unless the command says how a run with speculative decoding drafts, in a way that is modelled.
        stated = row.text("engine").lower()
        if run.NAMES["engines"].get(stated, stated) != "vllm":
            raise row.wrong("was served with speculative decoding, which is modelled for vLLM")
        if not re.search(r"--speculative-config[ =]+['\"]?\{", row.text(COMMAND)):
            raise row.wrong("was served with speculative decoding, of which too little is stated")
    model, dtype = model_of(row)
    engine = _engine(row)
    # The flags of the server's command; none where it is not known
    words = _words(row)
    if not row.text(COMMAND):
        row.assume("the server's command is not known: the engine's defaults")
    try:
        reading = read_flags([(row.text("model") or model), *words], engine)
    except InfercastError as problem:
        raise row.wrong(f"server_cmd cannot be read: {problem}") from None
    for flag in reading.flags:
        if flag.status in (NOT_MODELLED, REFUSED):
            row.assume(f"--{flag.name} {flag.text}".strip() + " changes nothing")
    server = read_server(row, engine, reading)
    load, is_vllm = read_load(row), engine.family == "vllm"
    measured = read_measured(row, server["gpus"])
    if load.steady and load.kind not in OPEN:
        measured["ttft"] = None
    settings: dict[str, Any] = {**noted_settings(row, server["reading"].settings)} if is_vllm else {}
    if load.cap is not None:
        settings["max_num_seqs" if is_vllm else "max_running_requests"] = load.cap
    if "prefix caching off" in row.text("prefix_note"):
        settings["enable_prefix_caching" if is_vllm else "disable_radix_cache"] = not is_vllm
    return _named(
        row,
        model=model,
        dtype=dtype,
        **server,
        **measured,
        cache_tokens=noted_cache(row) if is_vllm else 0,
        workload=load.workload,
        load=load.kind,
        steady=load.steady,
        chat="chat" in row.text("bench_cmd"),
        served="queued_ts" not in row.text("notes"),
        top_p="top-p" in row.text("bench_cmd"),
        settings=settings,
        assumptions=tuple(row.assumptions),
    )


CACHE_UNKNOWN = "prefix_cache_on"  # ``flags``: prompts may have been in the prefix cache, it is not known how many


def read_published(path: Path) -> list[run.PublishedRun]:
    """Every run of a table, with or without a column of commands; files of single requests lie next to it."""
    rows = read_rows(path)
    read = read_collected if COMMAND in rows[0] else _read_row
    return [read(RowReader(path, line, row)) for line, row in enumerate(rows, start=2)]


def _read_row(row: RowReader) -> run.PublishedRun:
    name = f"vllm@{row.text('engine_version').strip('*? ')}"
    version = version_of(name)  # ``0.10.2*`` as (0, 10, 2); what cannot be read is the measured release
    flags = run.read_server_flags(row.text("server_flags"), row.whole("concurrency"), row.whole("isl"))
    stated = read_arguments(row)
    flags = run.with_arguments(flags, stated)
    is_known = CACHE_UNKNOWN not in row.text("flags")
    gpu = row.required("gpu")
    return run.PublishedRun(
        run_id=row.required("run_id"),
        source=row.text("source"),
        gpu=run.GPUS.get(gpu, gpu),
        model=row.required("model"),
        dtype=row.text("dtype"),
        tensor=row.whole("tp") or 1,
        data=stated.get("data_parallel_size") or row.whole("replicas") or 1,
        expert_parallel=flags.expert_parallel or (row.whole("ep") or 1) > 1,
        engine=name if version else measured_engine("vllm").name,
        version=version,
        flags=flags,
        workload=read_workload(row, cached=not is_known),
        max_model_len=row.whole("max_model_len") or flags.settings["max_model_len"],
        ttft=row.milliseconds("ttft_mean_ms") if is_known else None,
        tpot=row.milliseconds("tpot_mean_ms"),
        end_to_end=row.milliseconds("e2e_mean_ms"),
        output_tokens_per_second=row.number("out_tok_s"),
    )
