"""What could be different: settings around a point, one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from infercast.forecast.command.point import Point
from infercast.forecast.memory import Fit

FACTORS = (0.25, 0.5, 2.0, 4.0)
STEPS = (256, 65_536)
"""Tokens of the smallest and the largest step that is tried."""
UTILIZATION = 0.95
PIECES = (1024, 4096)
"""Most tokens of one prompt in a step, where it is not limited."""
BLOCKS = (16, 32, 64)
EITHER = ("enable_prefix_caching", "disable_radix_cache", "enable_mixed_chunk")
"""Switches of engines that may help in either position."""
ONE_WAY = {
    "enable_chunked_prefill": True, "async_scheduling": True, "disable_overlap_schedule": False,
    "enforce_eager": False, "disable_cuda_graph": False,
}  # fmt: skip
"""Switches that help in one position."""
WITHOUT_GRAPHS = ("enforce_eager", "disable_cuda_graph")
CHOICES: dict[str, tuple[Any, ...]] = {"schedule_policy": ("fcfs", "lpm"), "schedule_conservativeness": (0.3, 1.0)}
NARROW = ("fp8", "int4")
"""Formats of weights to try; the second needs a checkpoint of its own."""


class Change(NamedTuple):
    """Other values of one axis."""

    axis: str
    values: dict[str, Any]
    """By the names of flags; None leaves the flag out."""
    label: str
    kernels: bool = False
    """Whether other kernels run, whose estimates err each for itself."""
    answers: bool = False
    """Whether the model computes with other numbers, so that its answers change."""
    gpus: float = 1.0
    """Times as many GPUs."""


def changes_around(point: Point, fit: Fit) -> Iterator[Change]:
    """Every change to try; some of them the engine will refuse."""
    settings = fit.settings
    tokens, sequences, _ = point.engine.bounds
    yield from _sizes(tokens, settings.max_num_batched_tokens, STEPS)
    yield from _sizes(sequences, settings.max_num_seqs, (8, 4096))
    yield from _scheduling(point, fit)
    yield from _formats(point, fit)
    if point.engine.shares_copies or fit.layout.sharing == 1:  # groups of one server are left as they are
        yield from _layouts(point, fit)


def _sizes(name: str, now: int, limits: tuple[int, int]) -> Iterator[Change]:
    for factor in FACTORS:
        value = int(now * factor)
        if limits[0] <= value <= limits[1]:
            yield Change(name, {name: value}, f"{name} {value}")


def _scheduling(point: Point, fit: Fit) -> Iterator[Change]:
    """Switches and limits that change when steps run and what is in them."""

    def now(name: str) -> Any:
        return getattr(fit.settings, name, None)

    if now("gpu_memory_utilization") is not None and now("gpu_memory_utilization") < UTILIZATION:
        name = "gpu_memory_utilization"
        yield Change(name, {name: UTILIZATION}, f"{name} {UTILIZATION}")
    yield from _switches(fit)
    for name, choices in CHOICES.items():
        for value in choices if now(name) is not None else ():
            if value != now(name):
                yield Change(name, {name: value}, f"{name} {value}")
    name = "long_prefill_token_threshold"
    if now(name) is not None:
        for value in (0,) if now(name) else PIECES:
            yield Change(name, {name: value}, f"{name} {value}")
    if "block_size" in point.settings or point.settings.get("enable_prefix_caching"):
        for value in BLOCKS:
            if value != now("block_size"):
                yield Change("block_size", {"block_size": value}, f"block_size {value}")


def _switches(fit: Fit) -> Iterator[Change]:
    """Those of the engine that may be better the other way round."""

    def switch(name: str, value: bool) -> Change:
        return Change(name, {name: value}, f"{name} {'on' if value else 'off'}", kernels=name in WITHOUT_GRAPHS)

    for name in EITHER:
        if (now := getattr(fit.settings, name, None)) is not None:
            yield switch(name, not now)
    for name, better in ONE_WAY.items():
        if getattr(fit.settings, name, None) is (not better):
            yield switch(name, better)


def _formats(point: Point, fit: Fit) -> Iterator[Change]:
    name = "kv_cache_dtype"
    other = None if fit.model.cache_dtype == "fp8" and name in point.options else "fp8"
    if other != fit.model.cache_dtype:
        yield Change(name, {name: other}, f"{name} {other or 'auto'}", kernels=True, answers=True)
    name = "quantization"
    if point.options.get(name):
        yield Change(name, {name: None}, "no quantization", kernels=True, answers=True)
    elif fit.model.weights.name in ("bf16", "fp16"):
        for value in NARROW:
            yield Change(name, {name: value}, f"{name} {value}", kernels=True, answers=True)


def _layouts(point: Point, fit: Fit) -> Iterator[Change]:
    """Other layouts on the same GPUs, then half and twice as many."""
    layout = fit.layout
    tensor, data, pipeline = layout.tensor, layout.data, layout.pipeline
    t, d, p = "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size"
    choices: list[tuple[dict[str, Any], float]] = []
    if tensor > 1 and tensor % 2 == 0:
        choices += [({t: tensor // 2, d: 2 * data}, 1.0), ({t: tensor // 2}, 0.5)]
    if data > 1 and data % 2 == 0:
        choices.append(({t: 2 * tensor, d: data // 2}, 1.0))
    if pipeline > 1 and pipeline % 2 == 0:
        choices.append(({t: 2 * tensor, p: pipeline // 2}, 1.0))
    if 2 * tensor * pipeline <= fit.gpu.gpus_per_node:
        choices.append(({t: 2 * tensor}, 2.0))
    choices.append(({d: 2 * data}, 2.0))
    for values, gpus in choices:
        label = ", ".join(f"{name} {value}" for name, value in values.items())
        yield Change("layout", values, label, kernels=t in values or p in values, gpus=gpus)
    if fit.model.has_experts and layout.tensor * layout.data > 1:
        spread = point.engine.sizes_for(replace(layout, experts=True))
        for name in [name for name in spread if name not in (t, d, p)]:
            label = f"{name} {'off' if layout.experts else 'on' if spread[name] is True else spread[name]}"
            yield Change(name, {name: None if layout.experts else spread[name]}, label, kernels=True)
