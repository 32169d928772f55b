"""Tables of kernels: sizes to estimate, kernels of one step, and sums over many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.ops import Call
from infercast.predict.adjust.mixed import ADDED_SHARE, SHARED_SECONDS, slowed_by
from infercast.predict.adjust.power import THROTTLED, weight_of

Table = npt.NDArray[Any]

DENSE, SPACING = 128, 32
"""Where an estimate is costly: every size up to the first, and one in so many beyond."""


def sequence_kernels(calls_of: Callable[[Table, Table], list[Call]]) -> tuple[dict[str, str], dict[str, int]]:
    """The family of each kernel that sequences need, and how often a step launches it.

    One decoding sequence and one prompt have nearly all; some kinds decode otherwise beside prompts than alone.
    """
    families: dict[str, str] = {}
    launches: dict[str, int] = {}
    for batch in (np.array([1, 2]), np.array([1]), np.array([2])):
        counts = Counter[str]()
        for call in calls_of(batch, batch):
            families.setdefault(call.name, call.op.family)
            counts[call.name] += call.count
        launches |= {name: count for name, count in counts.items() if count > launches.get(name, 0)}
    return families, launches


def together(prompts: float, decodes: float, launches: int, padded: float) -> float:
    """`together` for plain numbers, which numpy is slow on."""
    if not prompts or not decodes:  # each form has a kernel of its own
        return prompts + decodes
    if padded:
        return prompts + max(decodes, padded)
    prompts *= slowed_by(prompts, decodes, launches)
    longer, shorter = (prompts, decodes) if prompts > decodes else (decodes, prompts)
    return longer + ADDED_SHARE * max(shorter - SHARED_SECONDS * launches, 0.0)


def weighted(counts: Mapping[int, float], table: Table) -> Table:
    """The sum of some rows of a table, each so many times."""
    return np.asarray(np.array([*counts.values()]) @ table[[*counts]]) if counts else np.zeros(table.shape[1])


def products_of(calls: list[Call]) -> Table:
    """Operations of the matrix products of a step; narrow formats draw half."""
    throttled = (call for call in calls if call.op.family in THROTTLED)
    return np.asarray(sum(call.count * call.op.flops * weight_of(call.op.compute_dtype) for call in throttled))


def thinned(most: int, padded_to: tuple[int, ...]) -> Table:
    """Sizes to estimate: those that graphs pad to (or every small one), and a regular choice beyond."""
    small = padded_to or range(1, DENSE + 1)
    first = small[-1] // SPACING * SPACING + SPACING
    return np.array(sorted({*small, *range(first, most + SPACING, SPACING)}))
