"""The roofline: hard limits of operators, the bound with waves and launch floor, and typical efficiencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from math import exp, inf, log
from typing import Any, NamedTuple, Protocol

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.ops import Call, Op
from infercast.ops.op import Quantity, tensor_rate_of
from infercast.predict.array_api import Number
from infercast.predict.estimate import Estimate, exposed_seconds
from infercast.predict.families import families_of, family_of
from infercast.predict.families.family import Array, Pipes

# What each operator asks of each part of a GPU, in seconds at the datasheet's rates.
#
# The *pipes* of a roofline pay for whole rounds of thread blocks. The hard *limit* is what no implementation can beat:
# every operation at the peak rate of its pipe, every byte that must move once at full bandwidth, nothing else.


def pipes_of(op: Op, gpu: Gpu) -> Pipes:
    """Seconds each pipe is busy if nothing else holds it up."""
    return families_of(op)[0].pipes(op, gpu)


def pipe_limits(op: Op, gpu: Gpu) -> dict[str, Array]:
    """Seconds that each pipe needs at least, for one launch or an array of them."""
    family = families_of(op)[0]
    if family.limits is not None:
        return family.limits(op, gpu)
    return {name: np.ravel(seconds) for name, seconds in family.pipes(op, gpu).items()}


def limit_seconds(op: Op, gpu: Gpu) -> Array:
    return np.asarray(reduce(np.maximum, pipe_limits(op, gpu).values()))


class Floor:
    """No product is faster than the tensor cores or, where what it reads is ``cold``, than reading it."""

    def __init__(self, op: Op, gpu: Gpu, *, cold: bool = True) -> None:
        self._work, self._peak = families_of(op)[0].work, gpu.dense_flops(tensor_rate_of(op.compute_dtype))
        self._bandwidth = gpu.dram_bandwidth if cold else inf

    def __call__(self, op: Op, size: Any, seconds: Number) -> Number:
        if self._work is None:
            return seconds
        flops, moved = self._work(op, size)
        if isinstance(seconds, np.ndarray):
            limit = np.maximum(np.ravel(flops) / self._peak, np.ravel(moved) / self._bandwidth)
            return np.maximum(seconds, limit)
        return max(seconds, flops / self._peak, moved / self._bandwidth)


# The shortest kernels of a replayed CUDA graph take about this long on an H200 at 1.83 GHz; the part
# that is instructions scales with the clock, the part that is wires and memory latency does not.
LAUNCH_FLOOR = 2.0e-6
REFERENCE_CLOCK = 1.83e9
CLOCK_SHARE = 0.55

# 90th percentile of measured / roofline latency over the public kernel tables of A100, L40S, H100, H200 and B200
# described in docs/predict.md, where a family has none. The roofline itself is the lower end: nearly nothing is faster.
SPREAD = 1.5
MOVING = ("dram", "link")  # Pipes that move bytes; the others compute


class Predictor(Protocol):
    is_cheap: bool  # Whether a single estimate is too cheap to be worth caching
    is_bound: bool  # Whether its estimates are the least that hardware allows, not what is expected

    def describe(self, gpu: Gpu) -> str: ...  # What its estimates on this GPU rest on, in words
    def estimate(self, op: Op, gpu: Gpu) -> Estimate: ...  # One launch; arrays of shapes give arrays of times
    def seconds(self, op: Op, gpu: Gpu) -> Quantity: ...  # The same without interval and reason, for many operators
    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe, and what their sum is multiplied by (``efficiency``)."""


def overlapped_share(calls: Sequence[Call], predictor: Predictor, gpu: Gpu) -> Quantity:
    """What is left of the time of kernels that run side by side instead of one after the other, at best: as long as
    the longest, and as each pipe of the GPU has work from all of them.
    """
    each = [np.asarray(exposed_seconds(call, predictor.seconds(call.op, gpu))) for call in calls]
    busy: dict[str, Any] = {}
    for call in calls:
        for name, seconds in pipe_limits(call.op, gpu).items():
            busy[name] = busy.get(name, 0.0) + call.count * seconds
    least: Quantity = reduce(np.maximum, [*each, *busy.values()])
    return np.minimum(1.0, least / np.maximum(sum(each), 1e-12))


class Adjusted:
    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.is_cheap, self.is_bound = predictor.is_cheap, predictor.is_bound

    def describe(self, gpu: Gpu) -> str:
        return self._predictor.describe(gpu)

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        return self._predictor.explain(op, gpu)


class Efficiency(NamedTuple):
    launches: float = 1.0  # Empty launches that one takes besides its work
    share: float = 1.0  # Of the busiest pipe's rate
    low: float = 0.0
    high: float = 0.0  # Logarithms of the ends of the 80 % interval, as kernels and GPUs differ
    memory: float = 0.0  # Of the rate of memory or links, where it differs from that of arithmetic; the two then add up

    def work_seconds(self, pipes: Pipes) -> Quantity:
        if not self.memory:
            busiest: Quantity = reduce(np.maximum, pipes.values())
            return busiest / self.share
        of_kind = [[pipes[name] for name in pipes if (name in MOVING) == moves] for moves in (True, False)]
        moved, computed = (reduce(np.maximum, each) if each else 0.0 for each in of_kind)
        seconds: Quantity = moved / self.memory + computed / self.share
        return seconds


class Roofline:
    is_cheap = True
    is_bound = True
    source = "roofline"

    def describe(self, gpu: Gpu) -> str:
        return "roofline with wave quantisation: nothing learned, so times are lower bounds"

    def reached(self, op: Op, gpu: Gpu) -> Efficiency:
        return Efficiency(high=log(families_of(op)[0].spread.get(op.family, SPREAD)))

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        pipes, reached = pipes_of(op, gpu), self.reached(op, gpu)
        launch = reached.launches * launch_floor(gpu)
        demands = np.stack(np.broadcast_arrays(launch, *pipes.values()))
        bound = np.array(["launch", *pipes])[np.argmax(demands, axis=0)]
        busiest = np.max(demands[1:], axis=0)
        seconds = np.asarray(launch + reached.work_seconds(pipes))
        # Nothing is faster than the busiest pipe at its full rate.
        low, high = np.maximum(seconds * exp(reached.low), busiest), seconds * exp(reached.high)
        source = self.source_of(op, gpu)
        if seconds.ndim == 0:
            return Estimate(float(seconds), float(low), float(high), source, str(bound))
        return Estimate(seconds, low, high, source, bound)

    def source_of(self, op: Op, gpu: Gpu) -> str:
        return self.source

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        reached = self.reached(op, gpu)
        return reached.launches * launch_floor(gpu) + reached.work_seconds(pipes_of(op, gpu))

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe at its full rate, and of launching."""
        terms = {name: float(np.ravel(value)[0]) for name, value in pipes_of(op, gpu).items()}
        return {**terms, "launch": self.reached(op, gpu).launches * launch_floor(gpu)}


def launch_floor(gpu: Gpu) -> float:
    return LAUNCH_FLOOR * (1 - CLOCK_SHARE + CLOCK_SHARE * REFERENCE_CLOCK / gpu.boost_clock)


PUBLISHED = "published"
OLDER = "older"  # Behind the name of an architecture's kernels: those of engines of before they were tuned for it ...
OLDER_LAUNCHES = 2.4  # ... which take this many times as long to launch, because fewer of them were joined in one ...
OLDER_KERNELS = frozenset({"gemm/fp8_block", "moe/fp8_block", "latent", "quantise"})
"""... if they are of these families: what DeepSeek-R1 has and models in bf16 have not. Those were as fast before."""


class Typical(Roofline):
    """The roofline at typical efficiencies (typical.toml), for GPUs without measured kernels. Best known are
    architectures with numbers of their own, from published rows and runs (source ``published``). Other vendors' kernels
    are taken to be as good as those measured on NVIDIA's GPUs (source ``typical``), and the upper end of the interval
    holds what products lose.
    """

    is_bound = False
    source = "typical"

    def describe(self, gpu: Gpu) -> str:
        if is_published(gpu):
            return (
                f"the roofline at what kernels of {_architecture(gpu)} reach of it, by published rows of products and "
                "experts and by published runs of engines; nobody measured them here, so intervals are wide"
            )
        return (
            "the roofline at what kernels of measured GPUs typically reach of it; no kernel of "
            f"{gpu.vendor}'s GPUs in an engine was measured, so intervals are wide"
        )

    def reached(self, op: Op, gpu: Gpu) -> Efficiency:
        """What kernels like this one typically reach on GPUs like this one."""
        return _found(family_of(op).typical(op), gpu.kernels, gpu.vendor)[0]

    def source_of(self, op: Op, gpu: Gpu) -> str:
        """Whether it rests on what is known of its own architecture."""
        return _found(family_of(op).typical(op), gpu.kernels, gpu.vendor)[1]

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        return {**super().explain(op, gpu), "efficiency factor": self.reached(op, gpu).share}


def is_published(gpu: Gpu) -> bool:
    return _architecture(gpu) in _typical()


def with_older_kernels(gpu: Gpu) -> Gpu:
    """The same GPU under an engine of before its kernels were tuned for this architecture."""
    return replace(gpu, kernels=f"{gpu.kernels} {OLDER}") if is_published(gpu) else gpu


def _architecture(gpu: Gpu) -> str:
    return gpu.kernels.partition(f" {OLDER}")[0]


@cache
def _found(names: tuple[str, ...], kernels: str, vendor: str) -> tuple[Efficiency, str]:
    """The first row that fits, of the architecture, of the vendor or of all, and where it is from."""
    own, _, older = kernels.partition(" ")
    group, name = next(
        (group, name) for group in (own, vendor, "all") for name in names if name in _typical().get(group, {})
    )
    efficiency = _typical()[group][name]
    if older == OLDER and not OLDER_KERNELS.isdisjoint(names):
        efficiency = efficiency._replace(launches=OLDER_LAUNCHES * efficiency.launches)
    return efficiency, PUBLISHED if group == own else Typical.source


@cache
def _typical() -> dict[str, dict[str, Efficiency]]:
    """What was fitted, by architecture, vendor (``all``: any) and name."""
    groups = read_data("typical.toml").items()
    return {group: {name: Efficiency(**row) for name, row in rows.items()} for group, rows in groups}
