"""Probes of the GPU at hand: small kernels that published tables hold only inside of others, and bare launches.

    PYTHONPATH=src python benchmarks/measure/probes/run.py OUT [MINUTES]     (needs a GPU, PyTorch and Triton)

Writes OUT/<gpu>/probe.parquet, in which ``op`` names the operation and ``by`` the library, and launch.parquet; the same
command takes up what is left. `benchmarks/accuracy/fit_operators.py` learns from the first.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from infercast.lab.measure.device import Monitor, choose_engine, describe, gpu_name, require_gpu
from infercast.lab.measure.rows import Case, Row, Store, Tally, measure_batch
from infercast.lab.measure.sweep import Meta, batches

PROBE = tomllib.loads(Path(__file__).with_name("grid.toml").read_text(encoding="utf-8"))
ENGINES = ("triton", "vllm")
# PyTorch's FlashAttention is version 2 and takes bf16 only.
ATTENTION_KERNELS = (("triton", "bf16"), ("triton", "fp8"), ("flash2", "bf16"), ("cudnn", "bf16"))
MOST_PROBED_KEYS = 1_100_000
LONGEST_FLOPS = 8e12
LOOPS = {"mma_sync": (1000, 3000), "wgmma": (1500, 4500)}


def probe_cases() -> Iterator[Case]:
    for dtype, (heads, width), rows, by in product(("bf16", "fp8"), PROBE["written"], PROBE["written_rows"], ENGINES):
        yield _probe("kv_write", by, dtype, rows, width, heads)
    for op, (number, width) in product(("quantise_token", "quantise_block"), enumerate(PROBE["quantised_widths"])):
        for rows, by in product(PROBE["quantised_rows"][number % 2 :: 2], ENGINES):
            yield _probe(op, by, "fp8", rows, width)
    for heads, kv_heads, width in PROBE["layouts"]:
        for by, dtype in ATTENTION_KERNELS:
            for batch, length in PROBE["prompts"]:
                flops = min(2.0 * batch * heads * width * length * length, LONGEST_FLOPS)
                yield _probe("prompts", by, dtype, batch, width, heads, kv_heads, length, flops=flops)
            for batch, length in PROBE["decodes"] if by != "cudnn" else ():
                if batch * length <= MOST_PROBED_KEYS:
                    yield _probe("decode", by, dtype, batch, width, heads, kv_heads, length)
    for op, loops_of in LOOPS.items():
        for dtype in ("bf16", "fp8"):  # heavy: at the power limit, and after a pause
            yield from (_probe(op, "cuda", dtype, loops, 0, flops=1e11) for loops in loops_of)


def _probe(op: str, by: str, dtype: str, rows: int, width: int, *sizes: int, flops: float = 0.0) -> Case:
    """``sizes``: heads, key-value heads and length, at values that do not matter where they are left out."""
    heads, kv_heads, length = (*sizes, *(1, 0, 0)[len(sizes) :])
    shape = {"op": op, "by": by, "dtype": dtype, "rows": rows, "width": width}
    return Case("probe", shape | {"heads": heads, "kv_heads": kv_heads, "length": length}, flops)


# What a launch costs when a kernel does nothing, by CUDA events: gaps between kernels are what is asked for.

LAUNCH_TABLE = "launch"
MANY, REPLAYS, WARM = 1000, 50, 5
ELEMENTS = (1, 1024, 131_072)  # of a copy: one thread block, one, and as many as there are multiprocessors


def measure_floors(store: Store) -> int:
    """Rows of the table ``launch`` that are not there yet; returns how many came new."""
    done, rows = store.done(), []
    for elements in ELEMENTS:
        for way, each in _ways(elements):
            key = f"{LAUNCH_TABLE} {way} {elements}"
            if key not in done:
                microseconds = each()
                row: Row = {"key": key, "table": LAUNCH_TABLE, "gpu": store.folder.name, "family": LAUNCH_TABLE}
                rows.append(row | {"way": way, "elements": elements, "latency_us": round(microseconds, 4)})
    store.append(rows)
    return len(rows)


def _ways(elements: int) -> list[tuple[str, Callable[[], float]]]:
    torch = require_gpu()
    source = torch.ones(elements, device="cuda")
    target = torch.empty_like(source)

    def work(count: int) -> None:
        for _ in range(count):
            target.copy_(source)

    one, many = _graph(torch, work, 1), _graph(torch, work, MANY)
    return [
        ("one replay, alone", lambda: _alone(torch, one.replay)),
        ("one replay after another", lambda: _in_a_row(torch, one.replay, REPLAYS * 10)),
        ("inside a graph", lambda: _in_a_row(torch, many.replay, REPLAYS) / MANY),
        ("one launch after another", lambda: _in_a_row(torch, lambda: work(1), MANY)),
    ]


def _graph(torch: Any, work: Callable[[int], None], count: int) -> Any:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(count)
    return graph


def _alone(torch: Any, launch: Callable[[], None]) -> float:
    times = sorted(_between(torch, launch, 1) for _ in range(REPLAYS + WARM))
    return times[len(times) // 2]


def _in_a_row(torch: Any, launch: Callable[[], None], count: int) -> float:
    """Microseconds of each of ``count`` launches without a pause, the median of three turns."""
    _between(torch, launch, WARM)
    return sorted(_between(torch, launch, count) for _ in range(3))[1] / count


def _between(torch: Any, launch: Callable[[], None], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    torch.cuda.synchronize()
    return float(1e3 * begin.elapsed_time(end))


def main(out: Path, minutes: float) -> None:
    from probe_kernels import build_probe  # noqa: PLC0415 - needs PyTorch

    from infercast.lab.measure.kernels import BUILDERS, GpuBench  # noqa: PLC0415 - needs PyTorch

    BUILDERS["probe"] = build_probe
    require_gpu()
    engine, store, tally, monitor = choose_engine(None), Store(out / gpu_name()), Tally(), Monitor()
    begin = time.monotonic()
    try:
        facts = {"gpu": store.folder.name, **describe(), "kernels": engine}
        meta = Meta(store.folder, facts, monitor.since(0.0))
        bench, new, done = GpuBench(), measure_floors(store), store.done()
        for batch in batches([case for case in probe_cases() if case.key not in done]):
            rows = measure_batch(batch, bench, monitor, tally, begin + 60 * minutes)
            store.append([{"gpu": store.folder.name, **row} for row in rows])
            new += len(rows)
        meta.finish(time.monotonic() - begin, len(done) + new, tally.skipped, monitor.since(begin))
    finally:
        monitor.stop()
    print(store.write_tables(), tally.skipped)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 10.0)
