"""What the new tokens of a batch look back at in sparse and compressed attention, in plain floats or as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.either import Kit, Number

DECODE, PROMPT = "decode", "prompt"


def phase_of(op: Any) -> str:
    """Whether a batch decodes, one new token for each sequence, or has prompts in it."""
    queries = op.queries
    most = queries.item() if queries.size == 1 else np.maximum.reduce(queries, axis=None)
    return DECODE if most <= 1 else PROMPT


def entries_up_to(tokens: Number, compress: int, most: int, x: Kit) -> Number:
    """Entries that the first ``tokens`` queries of a sequence see together: see ``ops.sparse``."""
    free = x.smaller(tokens, most * compress - 1.0) if most else tokens
    whole = x.floor(free / compress)
    seen = compress * (whole * (whole - 1.0) / 2.0) + whole * (free - compress * whole + 1.0)
    return seen + most * (tokens - free) if most else seen


def pairs_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the new tokens of each sequence look at, added up over its tokens."""
    before = entries_up_to(batch.keys - batch.queries, compress, most, batch.x)
    return entries_up_to(batch.keys, compress, most, batch.x) - before


def entries_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the last token of each sequence looks at."""
    entries = batch.x.floor(batch.keys / compress) if compress > 1 else batch.keys
    return batch.x.smaller(entries, float(most)) if most else entries
