"""Which model prices a kind of operator on a GPU, and how far it is trusted."""

from __future__ import annotations

import numpy as np

from infercast.hardware import Gpu
from infercast.predict.artifact import Entry
from infercast.predict.forest import Forest
from infercast.predict.identity import SWEEP
from infercast.predict.physics.attention_decode import DECODE_FEATURES
from infercast.predict.physics.attention_prefill import PREFILL_FEATURES
from infercast.predict.physics.terms import Array, Physics
from infercast.records import dataclass

SIBLING_WIDENING = 1.3
"""How much wider a sibling's interval is: H100's rows by H200's models fall into their own 65 to 78 % of the time."""
PHYSICS_INTERVAL = (-0.3, 0.4)
"""Logarithms of the 80 % interval where nothing was learned: what physics alone misses on the families with data."""
PHYSICS_INTERVALS = {"moe": (-0.4, 0.9)}
"""The same for experts: kernels other than those that the physics was fitted to lie between -0.17 and 1.36 of it."""
SIBLING_TRUST = {"attention_prefill": 0.5, "gemm fp8": 0.75, "gemm fp8_block": 0.75, "gemm nvfp4": 0.75}
"""Exponent of the physics ratio between siblings, by family or by family and variant: that of prefill and of quantised
products overstates what memory bandwidth does (H100 and H200)."""
IN_ENGINE = {
    "gemm": (1.03, 0.5e-6),
    "gemm fp8": (1.0, 0.0),
    "attention_prefill": (1.0, 0.5e-6),
    "memory_bound": (1.0, 0.25e-6),
    "memory_bound rope": (1.12, 0.1e-6),
    "memory_bound add_norm_quantise": (1.18, 0.25e-6),
    "memory_bound compiled_quantise": (1.12, 0.0),
}
"""Factor and seconds, by family or by family and variant, that a kernel of a sweep takes longer between other kernels
of an engine, which leave its instructions and descriptors cold. Read off profiles of four models on an H200. There what
is rotated lies apart in the projection's output, and quantising is fused with a little more than in the sweep."""
SCHEDULED = {
    "attention_prefill": PREFILL_FEATURES.index("log_scheduled_us"),
    "attention_decode": DECODE_FEATURES.index("log_scheduled_us"),
}


def base_seconds(family: str, engine: str, physics: Physics) -> Array:
    """What a model's answer is a factor of: for attention of a sweep what its kernel's schedule takes, else physics."""
    if engine != SWEEP or family not in SCHEDULED:
        return physics.seconds
    return np.asarray(1e-6 * np.exp2(physics.features[:, SCHEDULED[family]]))


@dataclass(frozen=True, slots=True)
class Choice:
    """The model that prices a kind of operator, and by which tier it was found."""

    tier: str
    entry: Entry
    forest: Forest
    known: Gpu | None = None
    """The GPU that a sibling's model was fitted on."""

    @property
    def interval(self) -> tuple[float, float]:
        """Logarithms of the ends of the 80 % interval; borrowed knowledge is worth less than one's own."""
        wider = SIBLING_WIDENING if self.known is not None else 1.0
        return wider * self.entry.low, wider * self.entry.high

    @property
    def in_engine(self) -> tuple[float, float]:
        """Factor and seconds that an engine adds to the price; published tables carry a launch instead."""
        if self.entry.engine != SWEEP:
            return 1.0, 0.0
        by_family = IN_ENGINE.get(self.entry.family, (1.0, 0.0))
        return IN_ENGINE.get(f"{self.entry.family} {self.entry.variant}", by_family)

    @property
    def trust(self) -> float:
        """How far the ratio of two siblings' physics is believed, as its exponent."""
        if self.entry.engine == SWEEP:
            return 1.0
        by_family = SIBLING_TRUST.get(self.entry.family, 1.0)
        return SIBLING_TRUST.get(f"{self.entry.family} {self.entry.variant}", by_family)

    def residual(self, physics: Physics) -> Array:
        """log(measured / physics) as the model believes it."""
        learned = self.entry.offset + self.entry.shrink * self.forest.predict(physics.features)
        base = base_seconds(self.entry.family, self.entry.engine, physics)
        return np.asarray(learned if base is physics.seconds else learned + np.log(base / physics.seconds))
