"""One GPU's view of a model: all that a half of a layer needs to know to be held and computed there."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.formats import WeightFormat
from infercast.models.layout import ParallelLayout


@dataclass(frozen=True, slots=True)
class Shard:
    """What all layers of a model have in common, and the layout that splits them."""

    hidden: int
    architecture: str
    """As config.json names it, for rules of an engine that go by that name."""
    weights: WeightFormat
    cache_dtype: str
    """The format that keys and values are cached in."""
    layout: ParallelLayout
