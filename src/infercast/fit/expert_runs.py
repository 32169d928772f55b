"""What rows of routed experts that are spread over GPUs were really a measurement of, told from the table alone.

With half of the experts a GPU has about half of the pairs of tokens and experts to multiply. In some runs of SGLang's
collector (0.5.10, and Marlin's on B200) long batches take as long on a quarter of the experts as on all: there a GPU
multiplies all pairs of every token that has any of its experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

Array = npt.NDArray[Any]

RUN = ["gpu", "engine", "engine_version", "kernel", "dtype"]
SHAPE = ["hidden", "inter", "experts", "topk", "tp", "routing", "tokens"]
MANY_TOKENS, MANY_EXPERTS, GPUS = 8192, 64, (4, 8)
"""Batches and layers that are long and wide enough to tell, on so many GPUs."""
EVEN = ("balanced", "power_law_1.01")
"""Routings that leave no GPU with most of the tokens."""
LONG = 0.62
"""Share of the time with all experts from which on a GPU cannot have had a quarter or an eighth of the pairs."""
ENOUGH = 5
"""Pairs of rows that it takes to tell."""


def takes_whole_tokens(table: pandas.DataFrame) -> Array:
    """For each row, whether it is of spread experts and its run multiplied all pairs of the tokens it saw."""
    run = [name for name in RUN if name in table]
    tells = (table.tokens >= MANY_TOKENS) & (table.experts >= MANY_EXPERTS) & table.routing.isin(EVEN)
    long = table[tells]
    alone = long[long.ep == 1].groupby([*run, *SHAPE]).latency_us.median()
    spread = long[long.ep.isin(GPUS)].set_index([*run, *SHAPE]).latency_us
    ratio = (spread / alone.reindex(spread.index)).dropna().groupby(level=run).agg(["median", "size"])
    whole = ratio.index[(ratio["median"] > LONG) & (ratio["size"] >= ENOUGH)]
    if whole.empty:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(pandas.MultiIndex.from_frame(table[run]).isin(whole) & (table.ep > 1).to_numpy())
