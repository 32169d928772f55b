"""What a launch costs when a kernel does nothing: one replay of a graph, many kernels of a graph, launches one by one.

A table of kernels that replays a graph of one kernel has the replay in every row; an engine's step has one replay for
all of its kernels. Wall time by CUDA events, because gaps between kernels are what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infercast.measure.device import require_gpu
from infercast.measure.table import Row, Store

TABLE = "launch"
MANY, REPLAYS, WARM = 1000, 50, 5
ELEMENTS = (1, 1024, 131_072)
"""Of a copy: one thread block, one, and as many as there are multiprocessors."""


def measure_floors(store: Store) -> int:
    """Rows of the table ``launch`` that are not there yet; returns how many came new."""
    done, rows = store.done(), []
    for elements in ELEMENTS:
        for way, each in _ways(elements):
            key = f"{TABLE} {way} {elements}"
            if key not in done:
                microseconds = each()
                row: Row = {"key": key, "table": TABLE, "gpu": store.folder.name, "family": TABLE, "way": way}
                rows.append(row | {"elements": elements, "latency_us": round(microseconds, 4)})
    store.append(rows)
    return len(rows)


def _ways(elements: int) -> list[tuple[str, Callable[[], float]]]:
    """How a kernel can be launched, and the microseconds of one."""
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
    """Between two events with nothing else under way, the median."""
    times = sorted(_between(torch, launch, 1) for _ in range(REPLAYS + WARM))
    return times[len(times) // 2]


def _in_a_row(torch: Any, launch: Callable[[], None], count: int) -> float:
    """Each of so many without a pause, the median of three turns."""
    _between(torch, launch, WARM)
    return sorted(_between(torch, launch, count) for _ in range(3))[1] / count


def _between(torch: Any, launch: Callable[[], None], count: int) -> float:
    """Microseconds of all."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    torch.cuda.synchronize()
    return float(1e3 * begin.elapsed_time(end))
