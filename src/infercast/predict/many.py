"""Arrays of very many shapes: equal ones are estimated once, and parts are small enough for the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from infercast.ops import Attention, Collective, Elementwise, MoE, Op
from infercast.predict.physics.terms import Array, Physics

MANY = 4096
"""Shapes from which on it is worth while."""
PART = 16_384
"""Shapes at once."""

_SIZES: dict[type, tuple[str, ...]] = {
    Attention: ("sequences", "queries", "keys"),
    MoE: ("tokens",),
    Collective: ("message_bytes",),
    Elementwise: ("rows",),
}


def distinct(op: Op) -> tuple[Op, Array | None]:
    """The different shapes of many, in rising order, and which of them each is; None where all are kept.

    Shapes that lie near each other have most answers of a forest in common, so the order spares more than it takes.
    """
    sizes = _arrays(op)
    if sizes is None or sizes[0].ndim > 2 or sizes[0].size != len(sizes[0]):
        return op, None
    spans = [int(size.max()) + 1 for size in sizes]
    if not all(np.issubdtype(size.dtype, np.integer) for size in sizes) or np.prod(spans, dtype=float) > 2.0**62:
        return op, None
    codes = np.ravel_multi_index([size.ravel() for size in sizes], spans)
    if np.all(codes[1:] > codes[:-1]):
        return op, None
    codes, which = np.unique(codes, return_inverse=True)
    shape = (-1, *sizes[0].shape[1:])
    values = [size.reshape(shape) for size in np.unravel_index(codes, spans)]
    return _with(op, values), which


def in_parts(op: Op, function: Callable[[Op], tuple[Physics, Array]]) -> tuple[Physics, Array]:
    """Physics and learned factors of all shapes; of very many without their features, which are large."""
    sizes = _arrays(op)
    if sizes is None:
        return function(op)
    found = [function(part) for part in _parts(op, sizes)]
    seconds, factors = (np.concatenate(each) for each in zip(*[(one.seconds, two) for one, two in found], strict=True))
    terms = {name: np.concatenate([one.terms[name] for one, _ in found]) for name in found[0][0].terms}
    return Physics(seconds, terms, None), factors


def _parts(op: Op, sizes: list[Array]) -> Iterator[Op]:
    for start in range(0, len(sizes[0]), PART):
        yield _with(op, [size[start : start + PART] for size in sizes])


def _arrays(op: Op) -> list[Array] | None:
    """The sizes that differ between shapes, the first axis over them; None where they are few, or others differ too."""
    names = _SIZES.get(type(op), ())
    sizes = [np.asarray(getattr(op, name)) for name in names]
    if not sizes or max(size.size for size in sizes) < MANY:
        return None
    if isinstance(op, Elementwise) and max(np.ndim(each) for each in (op.read_per_row, op.written_per_row, op.reduced)):
        return None
    sizes = [*np.broadcast_arrays(*sizes)]
    return sizes if sizes[0].ndim > 1 or not isinstance(op, Attention) else None


def _with(op: Any, sizes: list[Array]) -> Op:
    changed: Op = replace(op, **dict(zip(_SIZES[type(op)], sizes, strict=True)))
    return changed
