"""Files that are not what they should be: noise, wrong types, missing fields, and some that are right."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from infercast import simulate
from infercast.bundled import DATA
from infercast.hardware import load_gpu
from infercast.hardware.load import GPU_FIELDS

WRONG: tuple[Any, ...] = (
    0,
    -1,
    1.5,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "many",
    None,
    True,
    [],
    {},
    [1],
    "é",
)
"""In place of a value."""
NOISE: dict[str, bytes] = {
    "empty": b"",
    "noise": bytes(range(256)) * 4,
    "utf16": "a,b\n1,2\n".encode("utf-16"),
    "bom": "\ufeffarrival,input,output\n0,10,10\n".encode(),
    "list.json": b"[]",
    "null.json": b"null",
    "deep.json": b"[" * 100_000,
    "torn.json": b'{"architectures": ["LlamaForCausalLM"',
    "number.json": b"1e999",
    "torn.gz": gzip.compress(b"{}" * 1000)[:40],
    "torn.npz": b"PK\x03\x04" + bytes(100),
    "torn.toml": b"gpu = [",
    "wide.csv": b"m,n,k\n" + b"9" * 200_000 + b",1,1\n",
    "quote.csv": b'm,n,k\n"1,2,3\n',
    "header.csv": b"arrival,input,output\n",
    "ragged.csv": b"arrival,input,output\n0,1\n1,2,3,4\n",
    "gemm.parquet": b"PAR1 not really PAR1",
}
MODELS = ("qwen3-0.6b", "deepseek-v2-lite", "gemma-3-1b", "gpt-oss-20b", "qwen3-0.6b-fp8", "qwen3-30b-a3b")
GPU_VALUES = (*WRONG, 1, 2, 1e-300, 1e300, 10**12)
GPU_NAMES = (*GPU_FIELDS, "nothing_known")


def write_files(folder: Path, random: Random, each: int = 12) -> dict[str, list[str]]:
    """Write files of every kind; returns their paths by what they pretend to be."""
    made: dict[str, list[str]] = {"noise": [_write(folder / f"noise-{name}", text) for name, text in NOISE.items()]}
    makers = {
        "model": _model, "gpu": _gpu, "trace": _trace, "host": _host, "shapes": _shapes, "runs": _runs, "table": _table,
        "result": _result, "calibration": _calibration, "run": _saved_run,
    }  # fmt: skip
    for kind, make in makers.items():
        made[kind] = []
        for number in range(each):
            suffix, text = make(random, wrong=number > 0)
            made[kind].append(_write(folder / f"{kind}-{number}{suffix}", text.encode()))
    made["folder"] = [str(folder), str(folder / "missing"), "/dev/null"]
    return made


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _spoil(document: Any, random: Random) -> None:
    """Replace, remove or add one value somewhere in a document."""
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            return
        key = random.choice(keys)
        inner = document[key]
        if isinstance(inner, dict | list) and inner and random.random() < 0.7:
            document = inner
            continue
        if random.random() < 0.2:
            del document[key]
        else:
            document[key] = random.choice((*WRONG, 1, 2, 3, 10**6, 10**12))
        return


def _model(random: Random, wrong: bool) -> tuple[str, str]:
    name = random.choice(MODELS)
    document = json.loads((DATA / "models" / f"{name}.json").read_text(encoding="utf-8"))
    for _ in range(random.randint(1, 2) if wrong else 0):
        _spoil(document, random)
    return ".json", json.dumps(document)


def _gpu(random: Random, wrong: bool) -> tuple[str, str]:
    lines = ['base = "h200-sxm"', f"dram_gb_per_s = {load_gpu('h200-sxm').dram_bandwidth / 1e9}"]
    if wrong:
        for name in random.sample(GPU_NAMES, random.randint(1, 2)):
            lines = [line for line in lines if not line.startswith(f"{name} ")]
            lines.append(f"{name} = {_toml(random.choice(GPU_VALUES))}")
    return ".toml", "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or value is None:
        return {"None": "''", "nan": "nan", "inf": "inf"}.get(str(value), repr(value))
    return "{}" if value == {} else json.dumps(value, ensure_ascii=False)


def _trace(random: Random, wrong: bool) -> tuple[str, str]:
    rows: list[list[Any]] = [[0.1 * number, 100, 8] for number in range(6)]
    if wrong:
        _spoil(rows, random)
    kind = random.choice(("csv", "jsonl", "mooncake"))
    if kind == "csv":
        return ".csv", "arrival,input,output\n" + "".join(f"{','.join(map(str, row or []))}\n" for row in _lists(rows))
    names = ("arrival", "input", "output") if kind == "jsonl" else ("timestamp", "input_length", "output_length")
    more = {} if kind == "jsonl" else {"hash_ids": random.choice(([], [1], "x", [1, 2, 3], None))}
    return ".jsonl", "".join(json.dumps({**dict(zip(names, row, strict=False)), **more}) + "\n" for row in _lists(rows))


def _lists(rows: list[Any]) -> list[list[Any]]:
    return [row if isinstance(row, list) else [row] for row in rows]


def _host(random: Random, wrong: bool) -> tuple[str, str]:
    lines = (DATA / "engines/vllm/host.toml").read_text(encoding="utf-8").splitlines()
    if wrong:
        number = random.choice([number for number, line in enumerate(lines) if " = " in line and line[0] != "#"])
        name = lines[number].split(" = ")[0]
        lines[number] = random.choice(("", f"{name} = {_toml(random.choice(WRONG))}", f"extra_{name} = 1"))
    return ".toml", "\n".join(lines) + "\n"


def _shapes(random: Random, wrong: bool) -> tuple[str, str]:
    rows: list[Any] = [[4, 64, 64], [8, 128, 64]]
    if wrong:
        _spoil(rows, random)
    return ".csv", "m,n,k\n" + "".join(f"{','.join(map(str, row))}\n" for row in _lists(rows))


def _runs(random: Random, wrong: bool) -> tuple[str, str]:
    request = {"arrival": 0.0, "n_in": 64, "n_out": 4, "ttft_ms": 20.0, "tpot_ms": 2.0, "e2e_ms": 30.0}
    requests = [request, dict(request)]
    document = {
        "config": {
            "name": "qwen3-0.6b", "gpu": "NVIDIA H200", "quant": None, "kv_cache_dtype": "auto", "max_model_len": 8192,
            "max_num_batched_tokens": 8192, "max_num_seqs": 256, "block_size": 16, "num_gpu_blocks": 68000,
            "async_scheduling": True, "gpu_memory_utilization": 0.9,
        },
        "runs": [{"kind": "static", "batch": 2, "n_in": 64, "n_out": 4, "rep": 0, "requests": requests}],
    }  # fmt: skip
    for _ in range(random.randint(1, 2) if wrong else 0):
        _spoil(document, random)
    return ".json", json.dumps(document)


def _result(random: Random, wrong: bool) -> tuple[str, str]:
    """What a load generator saved, of one of three kinds."""
    means = {f"{kind}_{name}_ms": 20.0 for kind in ("mean", "median", "p99") for name in ("ttft", "tpot")}
    plain: dict[str, Any] = {
        "model_id": "qwen3-0.6b", "request_rate": 4.0, "burstiness": 1.0, "max_concurrency": None, "duration": 2.0,
        "completed": 4, "failed": 0, "total_input_tokens": 256, "total_output_tokens": 16, "request_throughput": 2.0,
        "output_throughput": 8.0, **means,
    }  # fmt: skip
    lists = {
        "input_lens": [64] * 4, "output_lens": [4] * 4, "ttfts": [0.02] * 4, "itls": [[0.002] * 3] * 4,
        "start_times": [0.0, 0.3, 0.6, 0.9],
    }  # fmt: skip
    metric = {"unit": "ms", "avg": 20.0, "p50": 20.0, "std": 1.0, "min": 10.0, "max": 90.0}
    other: dict[str, Any] = {
        "input_config": {"loadgen": {"concurrency": 2}}, "request_latency": dict(metric),
        "time_to_first_token": dict(metric), "inter_token_latency": dict(metric), "request_count": {"avg": 8},
        "input_sequence_length": {**metric, "unit": "tokens"}, "output_sequence_length": {**metric, "unit": "tokens"},
    }  # fmt: skip
    document = random.choice((plain, {**plain, **lists}, other))
    for _ in range(random.randint(1, 2) if wrong else 0):
        _spoil(document, random)
    return ".json", json.dumps(document)


@cache
def _forecast() -> str:
    """What ``infercast simulate --json`` prints."""
    found = simulate("qwen3-0.6b", gpu="h200-sxm", rate=5.0, num_requests=8)
    return json.dumps(found.to_dict())


def _saved_run(random: Random, wrong: bool) -> tuple[str, str]:
    document = json.loads(_forecast())
    for _ in range(random.randint(1, 6) if wrong else 0):
        _spoil(document, random)
    return ".json", json.dumps(document)


def _calibration(random: Random, wrong: bool) -> tuple[str, str]:
    host = "Xeon server, 16 vCPU"
    lines = [
        "form = 1", "[deployment]", 'engine = "vllm@0.32"', 'model = "qwen3-0.6b"', 'gpu = "h200-sxm"',
        'layout = "TP1"',
        'weights = "bf16"', 'kv_cache = "bf16"', "api_server = true", f'host = "{host}"',
        *(f"[{name}]\nfactor = 1.1\nspread = 0.05\nspread_before = 0.2" for name in ("host", "prefill", "decode")),
        "[path]\nextra_ms = 1.0\nspread_ms = 1.0\nspread_before_ms = 3.0",
    ]  # fmt: skip
    for _ in range(random.randint(1, 2) if wrong else 0):
        place = random.randrange(len(lines))
        lines[place] = random.choice(("", lines[place].replace("1", "-1"), lines[place].replace("=", "= nan #")))
    return ".toml", "\n".join(lines)


PUBLISHED = {
    "run_id": "a", "engine": "vllm", "engine_version": "0.10.2", "gpu": "H100", "model": "qwen3-0.6b", "dtype": "bf16",
    "tp": 1, "isl": 128, "osl": 8, "len_dist": "fixed", "load": "closed-loop", "concurrency": 2, "n_requests": 4,
    "ttft_mean_ms": 20.0, "tpot_mean_ms": 2.0,
}  # fmt: skip


def _table(random: Random, wrong: bool) -> tuple[str, str]:
    row: dict[str, Any] = dict(PUBLISHED)
    for _ in range(random.randint(1, 2) if wrong else 0):
        _spoil(row, random)
    return ".csv", f"{','.join(row)}\n{','.join(str(value) for value in row.values())}\n"
