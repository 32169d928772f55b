"""Arrays of very many shapes: equal ones are estimated once, and parts are small enough for the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from infercast.ops import Op
from infercast.predict.estimate import Estimate
from infercast.predict.physics.terms import Array

MANY = 4096
"""Shapes from which on it is worth while."""
PART = 16_384
"""Shapes at once."""


def are_many(size: Any) -> bool:
    """Whether sizes are of so many shapes."""
    lengths = getattr(size, "keys", size)
    return isinstance(lengths, np.ndarray) and lengths.size >= MANY and len(lengths) > 1


def parts_of(op: Any, names: Sequence[str]) -> tuple[list[Op], Array | None]:
    """Operators of some of the shapes each, and which of them all each shape is; None where all are kept.

    ``names`` are the fields that differ between shapes. Where others differ too, there is one part.
    """
    others = [getattr(op, each.name) for each in fields(op) if each.name not in names]
    if any(isinstance(other, np.ndarray) for other in others):
        return [op], None
    sizes, which = _distinct(np.broadcast_arrays(*(np.asarray(getattr(op, name)) for name in names)))
    starts = range(0, len(sizes[0]), PART)
    parts = [[size[start : start + PART] for size in sizes] for start in starts]
    return [replace(op, **dict(zip(names, part, strict=True))) for part in parts], which


def joined(parts: Sequence[Estimate]) -> Estimate:
    """Estimates of parts as one."""
    arrays = ([np.ravel(getattr(part, name)) for part in parts] for name in ("seconds", "low", "high", "bound"))
    seconds, low, high, bound = map(np.concatenate, arrays)
    return Estimate(seconds, low, high, parts[0].source, bound)


def _distinct(sizes: Sequence[Array]) -> tuple[Sequence[Array], Array | None]:
    """The different shapes of many, in rising order, and which of them each is.

    Shapes that lie near each other have most answers of a forest in common, so the order spares more than it takes.
    """
    if sizes[0].ndim > 2 or sizes[0].size != len(sizes[0]):
        return sizes, None
    spans = [int(size.max()) + 1 for size in sizes]
    if not all(np.issubdtype(size.dtype, np.integer) for size in sizes) or np.prod(spans, dtype=float) > 2.0**62:
        return sizes, None
    codes = np.ravel_multi_index([size.ravel() for size in sizes], spans)
    if np.all(codes[1:] > codes[:-1]):
        return sizes, None
    codes, which = np.unique(codes, return_inverse=True)
    shape = (-1, *sizes[0].shape[1:])
    return [size.reshape(shape) for size in np.unravel_index(codes, spans)], which
