"""Microseconds of PyTorch's own operators on one GPU: products, convolutions, attention, norms, reductions and others.

    python benchmarks/measure/torch_operators.py OUT_DIR [--seconds 300] [--seed 1 --only linear=600,bmm=300 --names]

Every case is captured into a CUDA graph of several calls, which is replayed; the median of the replays is divided by
the calls. Operands are the same in each call, as in a module whose operators read what was just written, so small ones
are in the L2 cache. Cases are drawn from a seed, family by family in turns, and written as they come; ``--only`` says
which operators and how many cases of each format, ``--names`` adds which kernels a call ran.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FEW = ("fp32", "bf16")
MOST = 400_000_000
"""Elements of an operand."""
Case = tuple[str, str, dict[str, Any]]


def whole(rnd: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A number between, evenly on a logarithmic scale."""
    value = low * (high / low) ** rnd.random()
    return max(multiple, round(value / multiple) * multiple)


def draw_gemm(rnd: random.Random) -> dict[str, Any]:
    multiple = rnd.choice((8, 64, 64, 128))
    size = lambda: whole(rnd, 64, 16384, multiple)  # noqa: E731
    return {"m": whole(rnd, 1, 16384, rnd.choice((1, 8, 64))), "n": size(), "k": size(), "bias": rnd.random() < 0.5}


def draw_bmm(rnd: random.Random) -> dict[str, Any]:
    return {
        "b": whole(rnd, 1, 256),
        "m": whole(rnd, 1, 2048, rnd.choice((1, 8))),
        "n": whole(rnd, 16, 2048, 8),
        "k": whole(rnd, 16, 2048, 8),
    }


def draw_conv(rnd: random.Random) -> dict[str, Any]:
    kind = rnd.choice(("plain", "plain", "plain", "pointwise", "pointwise", "depthwise", "stem"))
    size, channels = rnd.choice((7, 14, 28, 56, 112)), rnd.choice((32, 64, 96, 128, 256, 512, 1024, 2048))
    kernel = {
        "plain": rnd.choice((3, 3, 3, 5)),
        "pointwise": 1,
        "depthwise": rnd.choice((3, 5, 7)),
        "stem": rnd.choice((3, 4, 7, 16)),
    }[kind]
    case = {
        "n": whole(rnd, 1, 64),
        "c": channels,
        "h": size,
        "out": rnd.choice((64, 128, 256, 512, 1024, 2048)),
        "kernel": kernel,
        "stride": rnd.choice((1, 1, 2)),
        "groups": 1,
    }
    if kind == "depthwise":
        case |= {"out": channels, "groups": channels}
    if kind == "stem":
        case |= {
            "c": 3,
            "h": rnd.choice((224, 224, 384)),
            "out": rnd.choice((32, 64, 96, 768)),
            "stride": kernel if kernel in (4, 16) else 2,
        }
    return case | {"last": rnd.random() < 0.25}


def draw_rows(rnd: random.Random) -> dict[str, Any]:
    rows = whole(rnd, 1, 262144)
    return {"rows": rows, "cols": whole(rnd, 32, max(64, min(32768, MOST // rows)), 8)}


def draw_size(rnd: random.Random) -> dict[str, Any]:
    return {"elements": whole(rnd, 256, 500_000_000, 8)}


def draw_image(rnd: random.Random) -> dict[str, Any]:
    return {
        "n": whole(rnd, 1, 64),
        "c": rnd.choice((32, 64, 128, 256, 512, 1024, 2048)),
        "h": rnd.choice((7, 14, 28, 56, 112)),
    }


def draw_attention(rnd: random.Random) -> dict[str, Any]:
    return {
        "b": whole(rnd, 1, 16),
        "heads": rnd.choice((8, 12, 16, 20, 25, 32)),
        "q": whole(rnd, 1, 4096, rnd.choice((1, 16, 64))),
        "kv": whole(rnd, 16, 4096, 16),
        "dim": rnd.choice((64, 64, 64, 72, 80, 128)),
        "causal": rnd.random() < 0.4,
    }


def draw_embedding(rnd: random.Random) -> dict[str, Any]:
    return {
        "tokens": whole(rnd, 1, 131072),
        "vocabulary": rnd.choice((1000, 32000, 50257, 128256)),
        "cols": whole(rnd, 64, 8192, 64),
    }


def draw_top(rnd: random.Random) -> dict[str, Any]:
    return {"rows": whole(rnd, 1, 4096), "cols": whole(rnd, 64, 131072, 8), "k": rnd.choice((1, 2, 8, 32, 50, 128))}


def draw_lstm(rnd: random.Random) -> dict[str, Any]:
    return {
        "n": whole(rnd, 1, 128),
        "steps": whole(rnd, 8, 512),
        "size": rnd.choice((128, 256, 512, 1024, 2048)),
        "layers": rnd.choice((1, 2)),
    }


def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def gemm(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
    x, w = tensor(case["m"], case["k"], dtype=dtype), tensor(case["n"], case["k"], dtype=dtype)
    bias = tensor(case["n"], dtype=dtype) if case["bias"] else None
    return lambda: F.linear(x, w, bias)


def bmm(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
    x, y = tensor(case["b"], case["m"], case["k"], dtype=dtype), tensor(case["b"], case["k"], case["n"], dtype=dtype)
    return lambda: torch.bmm(x, y)


def conv2d(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
    x = tensor(case["n"], case["c"], case["h"], case["h"], dtype=dtype)
    w = tensor(case["out"], case["c"] // case["groups"], case["kernel"], case["kernel"], dtype=dtype)
    if case["last"]:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    padding = 0 if case["stride"] == case["kernel"] else case["kernel"] // 2
    return lambda: F.conv2d(x, w, stride=case["stride"], padding=padding, groups=case["groups"])


def attention(case: dict[str, Any], dtype: torch.dtype, backend: SDPBackend) -> Callable[[], Any]:
    lengths = (case["kv"], case["kv"]) if case["causal"] else (case["q"], case["kv"])
    q, k, v = (
        tensor(case["b"], case["heads"], length, case["dim"], dtype=dtype)
        for length in (lengths[0], lengths[1], lengths[1])
    )

    def call() -> Any:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"])

    return call


def rowwise(name: str) -> Callable[[dict[str, Any], torch.dtype], Callable[[], Any]]:
    def make(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
        x = tensor(case["rows"], case["cols"], dtype=dtype)
        w, b = tensor(case["cols"], dtype=dtype), tensor(case["cols"], dtype=dtype)
        calls: dict[str, Callable[[], Any]] = {
            "softmax": lambda: F.softmax(x, -1),
            "layer_norm": lambda: F.layer_norm(x, (case["cols"],), w, b),
            "rms_norm": lambda: F.rms_norm(x, (case["cols"],), w),
            "sum_last": lambda: x.sum(-1),
            "max_last": lambda: x.amax(-1),
            "mean_first": lambda: x.mean(0),
            "argmax": lambda: x.argmax(-1),
            "transpose_copy": lambda: x.t().contiguous(),
            "cumsum": lambda: x.cumsum(-1),
            "add_row": lambda: x + w,
            "cat_last": lambda: torch.cat((x, x), -1),
        }
        return calls[name]

    return make


def elementwise(name: str) -> Callable[[dict[str, Any], torch.dtype], Callable[[], Any]]:
    def make(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
        x = tensor(case["elements"], dtype=dtype)
        y = tensor(case["elements"], dtype=dtype) if name in ("add", "mul", "where") else x
        other = torch.bfloat16 if dtype == torch.float32 else torch.float32
        calls: dict[str, Callable[[], Any]] = {
            "add": lambda: x + y,
            "mul": lambda: x * y,
            "gelu": lambda: F.gelu(x),
            "relu": lambda: F.relu(x),
            "silu": lambda: F.silu(x),
            "tanh": lambda: torch.tanh(x),
            "pow": lambda: x.pow(3.0),
            "rsqrt": lambda: torch.rsqrt(x),
            "clone": x.clone,
            "cast": lambda: x.to(other),
            "where": lambda: torch.where(x > 0, x, y),
            "scale": lambda: x * 0.125,
        }
        return calls[name]

    return make


def image(name: str) -> Callable[[dict[str, Any], torch.dtype], Callable[[], Any]]:
    def make(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
        x = tensor(case["n"], case["c"], case["h"], case["h"], dtype=dtype)
        mean, var, w, b = (torch.rand(case["c"], device="cuda", dtype=dtype) + 0.5 for _ in range(4))
        calls: dict[str, Callable[[], Any]] = {
            "batch_norm": lambda: F.batch_norm(x, mean, var, w, b, False),
            "group_norm": lambda: F.group_norm(x, 32, w, b),
            "max_pool": lambda: F.max_pool2d(x, 3, 2, 1),
            "avg_pool": lambda: F.adaptive_avg_pool2d(x, 1),
            "upsample": lambda: F.interpolate(x, scale_factor=2.0, mode="nearest"),
            "channels_last": lambda: x.contiguous(memory_format=torch.channels_last),
        }
        return calls[name]

    return make


def embedding(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
    table = tensor(case["vocabulary"], case["cols"], dtype=dtype)
    tokens = torch.randint(case["vocabulary"], (case["tokens"],), device="cuda")
    return lambda: F.embedding(tokens, table)


def top(name: str) -> Callable[[dict[str, Any], torch.dtype], Callable[[], Any]]:
    def make(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
        x = tensor(case["rows"], case["cols"], dtype=dtype)
        return (lambda: x.topk(min(case["k"], case["cols"]))) if name == "topk" else (lambda: x.sort(-1))

    return make


def lstm(case: dict[str, Any], dtype: torch.dtype) -> Callable[[], Any]:
    layers = torch.nn.LSTM(case["size"], case["size"], case["layers"], batch_first=True, device="cuda", dtype=dtype)
    x = tensor(case["n"], case["steps"], case["size"], dtype=dtype)
    return lambda: layers(x)


Operator = tuple[Callable[[random.Random], dict[str, Any]], Callable[..., Callable[[], Any]], tuple[str, ...], int]


def operators() -> dict[str, Operator]:
    """For each operator how a case is drawn and made, its formats, and how many of each format."""
    found: dict[str, Operator] = {
        "linear": (draw_gemm, gemm, ("fp32", "tf32", "bf16", "fp16"), 240),
        "bmm": (draw_bmm, bmm, ("fp32", "tf32", "bf16"), 150),
        "conv2d": (draw_conv, conv2d, ("fp32", "tf32", "bf16"), 260),
        "embedding": (draw_embedding, embedding, FEW, 50),
        "topk": (draw_top, top("topk"), FEW, 50),
        "sort": (draw_top, top("sort"), FEW, 40),
        "lstm": (draw_lstm, lstm, ("fp32", "tf32", "bf16"), 40),
    }
    for backend, formats in (
        ("flash_attention", ("bf16",)),
        ("efficient_attention", FEW),
        ("cudnn_attention", ("bf16",)),
        ("math", FEW),
    ):
        make = partial(attention, backend=getattr(SDPBackend, backend.upper()))
        found[f"sdpa_{backend}"] = draw_attention, make, formats, 60 if backend == "math" else 120
    for name in (
        "softmax",
        "layer_norm",
        "rms_norm",
        "sum_last",
        "max_last",
        "mean_first",
        "argmax",
        "transpose_copy",
        "cumsum",
        "add_row",
        "cat_last",
    ):
        found[name] = (draw_rows, rowwise(name), FEW, 60 if name in ("softmax", "layer_norm") else 35)
    for name in ("add", "mul", "gelu", "relu", "silu", "tanh", "pow", "rsqrt", "clone", "cast", "where", "scale"):
        found[name] = (draw_size, elementwise(name), FEW, 30)
    for name in ("batch_norm", "group_norm", "max_pool", "avg_pool", "upsample", "channels_last"):
        found[name] = (draw_image, image(name), FEW, 40)
    return found


def cases(seed: str, only: dict[str, int]) -> Iterator[Case]:
    """All cases, a share of every operator and format in turns."""
    queues = []
    for name, (draw, _, formats, usual) in operators().items():
        for dtype in formats:
            rnd, count = random.Random(f"{name} {dtype}{seed}"), only.get(name, 0) if only else usual
            queues.append([(name, dtype, draw(rnd)) for _ in range(count)])
    longest = max(map(len, queues))
    for turn in range(longest):
        for queue in queues:
            # Short queues are spread over all turns.
            if turn * len(queue) // longest != (turn + 1) * len(queue) // longest:
                yield queue[turn * len(queue) // longest]


def microseconds(call: Callable[[], Any]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
    stream.synchronize()
    calls = int(min(50, max(1, 400.0 / (1e3 * begin.elapsed_time(end) + 1.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    graph.replay()
    taken = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(1e3 * begin.elapsed_time(end) / calls)
    return sorted(taken)[3]


def kernels_of(call: Callable[[], Any]) -> str:
    """Names of the kernels that a call launches, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    launched = sorted(profile.events(), key=lambda event: event.time_range.start)
    return " | ".join(event.name for event in launched if event.device_type == torch.autograd.DeviceType.CUDA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", default="")
    parser.add_argument("--only", default="", help="operator=cases of each format, with commas between")
    parser.add_argument("--names", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until, kinds, failed = time.monotonic() + options.seconds, operators(), dict[str, str]()
    torch.set_grad_enabled(False)
    with (options.out / "torch_operators.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("operator", "format", "case", "microseconds", *(["kernels"] if options.names else [])))
        only = {name: int(count) for name, count in (each.split("=") for each in options.only.split(",") if each)}
        for name, dtype, case in cases(options.seed, only):
            if time.monotonic() > until:
                print("time is up")
                break
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = dtype == "tf32"
            try:
                call = kinds[name][1](case, DTYPES[dtype])
                value = microseconds(call)
                names = [kernels_of(call)] if options.names else []
            except Exception as problem:  # a kernel that refuses a shape says so in many ways
                failed[f"{name} {dtype}"] = f"{case}: {str(problem).splitlines()[0][:120]}"
                torch.cuda.synchronize()
                continue
            rows.writerow((name, dtype, json.dumps(case), f"{value:.3f}", *names))
            file.flush()
            torch.cuda.empty_cache()
    print(json.dumps(failed, indent=1))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
