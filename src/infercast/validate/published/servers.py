"""What a published row says of its server: flags of the command, layout, engine and version."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from infercast.engines.registry import AnyEngine, engine_named, measured_engine
from infercast.errors import InfercastError
from infercast.forecast.command.flags import NOT_MODELLED, UNKNOWN, Reading, read_flags
from infercast.validate.published.load import RowReader

Version = tuple[int, ...]

COMMAND = "server_cmd"
"""The column that tells a table of collected runs."""
CLIENT_FLAGS = ("--dataset-name", "--num-prompts", "--max-concurrency", "--random-input-len")
"""Flags of load generators: a command with these starts no server."""
ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "dynamo-sglang": "sglang",
    "mori-sglang": "sglang",
    "dynamo-vllm": "vllm",
}
"""Engines that are modelled, by the names of tables."""
RELEASED = {
    "vllm": (
        ("2024-04", (0, 4)), ("2024-06", (0, 5)), ("2024-09", (0, 6)), ("2025-01", (0, 7)), ("2025-03", (0, 8)),
        ("2025-05", (0, 9)), ("2025-07", (0, 10)), ("2025-10", (0, 11)), ("2025-12", (0, 12)), ("2026-01", (0, 14)),
        ("2026-04", (0, 19)), ("2026-06", (0, 22)),
    ),
    "sglang": (
        ("2024-12", (0, 4, 0)), ("2025-05", (0, 4, 6)), ("2025-09", (0, 5, 2)), ("2025-11", (0, 5, 5)),
        ("2025-12", (0, 5, 6)), ("2026-01", (0, 5, 7)), ("2026-02", (0, 5, 8)), ("2026-03", (0, 5, 9)),
        ("2026-04", (0, 5, 10)), ("2026-05", (0, 5, 12)),
    ),
}  # fmt: skip
"""From which month on a release was likely run, where only the date of a run is known."""
LORA_MODULES = re.compile(r"""['"]lora_modules['"]: \[.*?\],?""", re.DOTALL)
"""Adapters and where they lie."""
BARE_JSON = re.compile(r"([= ])(\{\"[^{}']*\})(?= |$)")
"""A flag's JSON without the quotes that a shell needs."""
CACHE = re.compile(r"\bKV cache (\d+) tokens\b")
"""As vLLM writes it when it starts."""
NOTED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
POOLS = re.compile(r"disagg|prefill workers|\bPD\b", re.IGNORECASE)
"""Prompts and answers on servers of their own."""


@dataclass(frozen=True, slots=True)
class Server:
    """One kind of server, and how many there are."""

    engine: AnyEngine
    version: Version
    reading: Reading
    tensor: int
    pipeline: int
    data: int
    expert_parallel: bool
    instances: int
    gpus: int
    layout_stated: bool


def read_server(row: RowReader, model: str) -> Server:
    """The server of a row; what it does not say is assumed, and listed."""
    stated = row.required("engine").lower()
    if POOLS.search(row.text("notes")):
        raise row.wrong("was served by a prefill pool and a decode pool, which are not read from tables")
    if "lora_modules" in row.text(COMMAND) or re.search(r"\blora \w", row.text("notes")):
        raise row.wrong("was served with LoRA adapters, which are not read from tables")
    engine = measured_engine(ENGINES.get(stated, stated))
    reading = _reading(row, engine, model)
    options, settings = reading.options, reading.settings
    instances = 1
    data = _size(row, options.get("data_parallel_size") or settings.get("dp_size"), "dp")
    pipeline = _size(row, options.get("pipeline_parallel_size") or settings.get("pp_size"), "pp") or 1
    spread = _spread(row)
    expert_parallel = bool(options.get("enable_expert_parallel")) or spread is None or spread > 1
    if (data or 1) > 1 and "separate" in row.text("notes") and "instances" in row.text("notes"):
        instances, data = data or 1, 1
    tensor = _tensor(row, options.get("tensor_parallel_size"), pipeline * (data or 1) * instances, spread or 1)
    version = _version(row, engine)
    return Server(
        engine=engine_named(f"{engine.family}@{'.'.join(map(str, version))}") if version else engine,
        version=version,
        reading=reading,
        tensor=tensor or 1,
        pipeline=pipeline,
        data=data or 1,
        expert_parallel=expert_parallel,
        instances=instances,
        gpus=max(_size(row, None, "num_gpus") or 1, (tensor or 1) * pipeline * (data or 1) * instances),
        layout_stated=tensor is not None,
    )


def check_drafts(row: RowReader) -> None:
    """Raise unless the command says how a run with speculative decoding drafts, in a way that is modelled."""
    stated = row.text("engine").lower()
    if ENGINES.get(stated, stated) != "vllm":
        raise row.wrong("was served with speculative decoding, which is modelled for vLLM")
    if not re.search(r"--speculative-config[ =]+['\"]?\{", row.text(COMMAND)):
        raise row.wrong("was served with speculative decoding, of which too little is stated")


def noted_cache(row: RowReader, server: Server) -> int:
    """Tokens that vLLM's KV cache has room for, where notes say so; 0 where they do not."""
    found = CACHE.search(row.text("notes")) if server.engine.family == "vllm" else None
    if found is None:
        return 0
    row.assume(f"room for {int(found[1]):,} tokens in the KV cache, as the source has it")
    return int(found[1])


def noted_settings(row: RowReader, server: Server) -> dict[str, int]:
    """Settings of vLLM that stand in a row's notes, where its command has none."""
    if server.engine.family != "vllm":
        return {}
    found = {name: re.search(rf"\b{name} (\d+)", row.text("notes")) for name in NOTED}
    return {name: int(match[1]) for name, match in found.items() if match and name not in server.reading.settings}


def _reading(row: RowReader, engine: AnyEngine, model: str) -> Reading:
    """The flags of the server's command; none where it is not known."""
    words = _words(row)
    if not row.text(COMMAND):
        row.assume("the server's command is not known: the engine's defaults")
    try:
        reading = read_flags([model, *words], engine)
    except InfercastError as problem:
        raise row.wrong(f"server_cmd cannot be read: {problem}") from None
    for flag in reading.flags:
        if flag.status in (NOT_MODELLED, UNKNOWN) and flag.name.startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
            row.assume(f"--{flag.name} {flag.text}".strip() + " changes nothing")
    return reading


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
    """As the command says; as the row does where that is silent."""
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


def _version(row: RowReader, engine: AnyEngine) -> Version:
    """``v0.5.5.post1`` as (0, 5, 5); by the date of the run where none is stated; nothing where that is not known."""
    found = re.search(r"(?<!cuda )(?<!rocm )\bv?(\d+)\.(\d+)(?:\.(\d+))?", row.text("version"), re.IGNORECASE)
    if found and any(int(part or 0) for part in found.groups()):
        return tuple(int(part or 0) for part in found.groups())
    date = re.match(r"(\d{4})-?(\d{2})", row.text("date"))
    if date is None:
        row.assume(f"the release of {engine.title} is not known: {engine.name}")
        return ()
    month = "-".join(date.groups())
    release = next((number for since, number in reversed(RELEASED[engine.family]) if since <= month), None)
    if release is None:
        return ()
    row.assume(f"the release of {engine.title} is not stated: {'.'.join(map(str, release))} by its date {month}")
    return release
