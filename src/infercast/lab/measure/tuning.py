"""Launch configurations of routed experts, tried on the GPU at hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from infercast.errors import InputError
from infercast.lab.measure.cases import Case, Shape
from infercast.lab.measure.device import Monitor, choose_engine, describe, gpu_name, require_gpu
from infercast.lab.measure.prepare import compile_ahead
from infercast.lab.measure.rows import Row, Tally, measure_batch
from infercast.lab.measure.sweep import batches, open_bench

FAMILY = "tuning"
COMPILING = 0.55
SMALL_HIDDEN, SMALL_INTER = 1024, 512
"""A kernel is the same for all sizes that are multiples of 16, so it is compiled on small ones."""


@dataclass
class Trial:
    gpu: str
    facts: dict[str, Any]
    rows: list[Row]
    skipped: dict[str, int]
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """When compiling and measuring were done, in seconds from the start."""


def trial_cases(layer: Shape, configurations: Iterable[dict[str, int] | None]) -> list[Case]:
    """Cases of one layer. ``None`` is what vLLM chooses; a second one is another turn, to see what chance does."""
    flops = 6.0 * layer["tokens"] * layer["topk"] * layer["hidden"] * layer["inter"]
    cases: list[Case] = []
    for each in configurations:
        turn = sum(case.shape["configuration"] == each for case in cases)
        cases.append(Case(FAMILY, layer | {"configuration": each, "turn": turn}, flops))
    return cases


def try_configurations(cases: Sequence[Case], seconds: float) -> Trial:
    """Compile with all cores, then measure, for at most ``seconds``."""
    require_gpu()
    if choose_engine(None) != "vllm":
        raise InputError("trying configurations needs vLLM, whose kernel they are for: pip install vllm")
    begin = time.monotonic()
    trial = Trial(gpu_name(), describe(), [], {})
    kernels = {(case := Case(FAMILY, compiled_shape(each.shape))).key: case for each in cases}
    compile_ahead(list(kernels.values()), "vllm", COMPILING * seconds)
    trial.stages["compiled"] = time.monotonic() - begin
    tally, monitor = Tally(), Monitor()
    try:
        bench = open_bench()
        for dtype in dict.fromkeys(case.shape["dtype"] for case in cases):
            for batch in batches([case for case in cases if case.shape["dtype"] == dtype]):
                trial.rows += measure_batch(batch, bench, monitor, tally, begin + seconds)
    except RuntimeError as problem:  # a kernel has broken the GPU's context: what was measured before is still good
        tally.skip(cases[0], problem)
    finally:
        monitor.stop()
    trial.skipped, trial.seconds = tally.skipped, time.monotonic() - begin
    trial.stages["measured"] = trial.seconds
    return trial


def compiled_shape(shape: Shape) -> Shape:
    """A layer with less weight and the same kernels. Block scales are counted in the sizes, so those stay."""
    if shape["dtype"] == "fp8_block":
        return shape | {"turn": 0}
    small = {"hidden": SMALL_HIDDEN if shape["hidden"] % 16 == 0 else shape["hidden"], "turn": 0}
    return shape | small | {"inter": SMALL_INTER if shape["inter"] % 16 == 0 else shape["inter"]}
