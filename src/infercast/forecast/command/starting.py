"""What would let a command start that does not fit: shorter sequences, narrower formats, more GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infercast.errors import DoesNotFitError, InputError
from infercast.forecast.command.changes import NARROW, Change
from infercast.forecast.command.point import Point
from infercast.forecast.memory import Fit

USEFUL = 2048
"""Shorter sequences than this help nobody."""
TIMES = (1, 2, 4, 8, 16)


def changes_that_fit(point: Point, fit: Fit) -> Iterator[Change]:
    """For the checkpoint's own format and for narrower ones: shorter sequences on so few GPUs, and the fewest GPUs."""
    own = fit.model.weights.name in ("bf16", "fp16") and not point.options.get("quantization")
    for weights in (None, *(NARROW if own else ())):
        formats: dict[str, Any] = {} if weights is None else {"quantization": weights}
        shorter_said = False
        for times in TIMES:
            tensor = times * fit.layout.tensor
            if tensor * fit.layout.pipeline > fit.gpu.gpus_per_node:
                break
            values = formats | ({"tensor_parallel_size": tensor} if times > 1 else {})
            try:
                point.changed(values).deploy()
            except DoesNotFitError:
                longest = point.changed(values).fit(fit.context).longest_sequence // 1024 * 1024
                if USEFUL <= longest < fit.settings.max_model_len and not shorter_said:
                    shorter_said = True
                    yield _change(values | {point.engine.bounds[2]: longest}, weights, times)
                continue
            except InputError:  # a layout that the model does not allow
                continue
            yield _change(values, weights, times)
            break


def _change(values: dict[str, Any], weights: str | None, times: int) -> Change:
    label = ", ".join(f"{name} {value}" for name, value in values.items())
    return Change("fit", values, label, answers=weights is not None, gpus=float(times))
