"""How the steps of a run are made up: prompts alone, prompts beside decoding, decoding alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from infercast.forecast.explain.step_log import KINDS, EngineRun
from infercast.forecast.explain.watched import Watched


class StepKind(NamedTuple):
    """All steps of one kind, over all replicas."""

    name: str
    """Of `KINDS`."""
    steps: int
    gpu_seconds: float
    share: float
    """Of the GPU's time in steps of any kind."""
    prompt_tokens: float
    """In a step, on average ..."""
    decoding: float
    """... as are sequences that decode in it."""
    padding: float
    """The share of computed tokens that only fill a recorded size up."""
    of_gaps: float
    """The share of the time between two tokens of a request that goes by in such steps."""

    @property
    def tokens(self) -> float:
        """In a step, on average, padding aside."""
        return self.prompt_tokens + self.decoding


def step_kinds(run: Watched) -> tuple[StepKind, ...]:
    """One entry for each kind that occurs, in the order of `KINDS`."""
    engines = run.engines
    whole = sum(float(engine.log.steps.gpu_seconds.sum()) for engine in engines)
    between = sum(_between_tokens(engine) for engine in engines)
    kinds = (_kind(number, engines, whole, between) for number in range(len(KINDS)))
    return tuple(kind for kind in kinds if kind.steps)


def _kind(number: int, engines: Sequence[EngineRun], whole: float, between: float) -> StepKind:
    steps = tokens = prompts = padded = 0
    seconds = gaps = 0.0
    for engine in engines:
        log = engine.log.steps
        of_kind = log.kind == number
        steps += int(of_kind.sum())
        tokens += int(log.tokens[of_kind].sum())
        prompts += int(log.prompt_tokens[of_kind].sum())
        padded += int(engine.timer.computed_tokens(log.rows[0][of_kind]).sum())
        seconds += float(log.gpu_seconds[of_kind].sum())
        gaps += _between_tokens(engine, np.where(of_kind, log.gpu_seconds, 0.0))
    return StepKind(
        name=KINDS[number],
        steps=steps,
        gpu_seconds=seconds,
        share=seconds / whole if whole else 0.0,
        prompt_tokens=prompts / steps if steps else 0.0,
        decoding=(tokens - prompts) / steps if steps else 0.0,
        padding=max(0.0, 1.0 - tokens / padded) if padded else 0.0,
        of_gaps=gaps / between if between else 0.0,
    )


def _between_tokens(engine: EngineRun, seconds: np.ndarray | None = None) -> float:
    """Seconds from first to last token over all requests, or what of the ``seconds`` of each step is in them."""
    record = engine.record
    several = np.flatnonzero(record.num_output > 1)
    start, end = record.first_token[several], record.last_token[several]
    if seconds is None:
        return float((end - start).sum())
    steps = engine.log.steps
    return float((steps.until(end, seconds) - steps.until(start, seconds)).sum())
