"""Heads that predict further tokens: how many a config.json has, and which layers each is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer, gather
from infercast.models.spec import PredictionPart

COUNT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""``num_mtp_modules`` is not one of them: MiniMax-M2 counts modules there whose weights are not published."""
PREDICTION = "heads that predict further tokens take memory with speculative decoding only"

HeadLayers = Callable[[Fields, Sequence[Layer]], Sequence[Layer]]
"""The layers of one head, from the config and the layers of the model."""


def last_layer(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """DeepSeek, GLM, Qwen and most others: one layer like the model's last."""
    return layers[-1:]


def read_prediction(
    fields: Fields, layers: Sequence[Layer], head: HeadLayers, heads: int = 0, own_table: bool = False
) -> PredictionPart | None:
    """The heads that a config counts, or ``heads`` where it does not; None without any."""
    count = fields.count(*COUNT_KEYS, default=heads)
    return PredictionPart(count, gather(head(fields, layers))[0], own_table=own_table) if count else None
