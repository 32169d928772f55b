"""Which model prices a kind of operator on a GPU, and how far it is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.ordering import ratio_bounds
from infercast.predict.artifact.artifact import Entry
from infercast.predict.artifact.forest import Forest
from infercast.predict.identity import SWEEP
from infercast.predict.physics.attention_decode import DECODE_FEATURES
from infercast.predict.physics.attention_prefill import PREFILL_FEATURES
from infercast.predict.physics.terms import Array, Physics

SIBLING_WIDENING = 1.3
"""How much wider a sibling's interval is: H100's rows by H200's models fall into their own 65 to 78 % of the time."""
PHYSICS_INTERVAL = (-0.3, 0.4)
"""Logarithms of the 80 % interval where nothing was learned: what physics alone misses on the families with data."""
PHYSICS_INTERVALS = {"moe": (-0.4, 0.9)}
"""The same for experts: kernels other than those that the physics was fitted to lie between -0.17 and 1.36 of it."""
SIBLING_TRUST = {"attention_prefill": 0.5, "gemm fp8": 0.75, "gemm fp8_block": 0.75, "gemm nvfp4": 0.75}
"""Exponent of the physics ratio between siblings of one die in published tables, by family or by family and variant:
that of prefill and of quantised products overstates what memory bandwidth does to kernels whose operands are warm (H100
and H200). Between chips that multiply at different rates it holds in full: on prompts above 100 us, borrowed from L40S
and A100, RTX 4090, L4, A10G and A30 are 16, 27, 11 and 27 % off, and 20, 36, 43 and 48 % with its square root. A sweep
has its operands as an engine has them, so its ratio holds in full as well."""
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


def is_same_die(gpu: Gpu, other: Gpu) -> bool:
    """Whether two GPUs multiply alike, whatever memory and links they have."""
    return (gpu.kernels, gpu.sms) == (other.kernels, other.sms) and gpu.tensor_flops == other.tensor_flops


def trust_in(entry: Entry, *, same_die: bool) -> float:
    """How far the ratio of physics between two chips is believed for a model's kernels, as its exponent."""
    if entry.engine == SWEEP or not same_die:
        return 1.0
    return SIBLING_TRUST.get(f"{entry.family} {entry.variant}", SIBLING_TRUST.get(entry.family, 1.0))


def base_seconds(family: str, engine: str, physics: Physics) -> Array:
    """What a model's answer is a factor of: for attention of a sweep what its kernel's schedule takes, else physics."""
    if engine != SWEEP or family not in SCHEDULED:
        return np.asarray(physics.seconds)
    return np.asarray(1e-6 * np.exp2(physics.features[:, SCHEDULED[family]]))


@dataclass(frozen=True, slots=True)
class Choice:
    """The model that prices a kind of operator, and by which tier it was found."""

    tier: str
    entry: Entry
    forest: Forest
    known: Gpu | None = None
    """The GPU that a sibling's model was fitted on."""
    is_same_die: bool = False
    """Whether it multiplies as fast as the GPU that is priced: the two differ in memory and links alone."""
    bounds: tuple[float, float] = (0.0, inf)
    """Between what the ratio of the two chips' times can lie: physics may choose other tiles and overshoot."""

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
        return trust_in(self.entry, same_die=self.is_same_die)

    def on_sibling(self, here: Array, there: Array) -> Array:
        """How many times as long a kernel takes as on the sibling, by physics here and there."""
        return np.asarray(np.clip((here / there) ** self.trust, *self.bounds))

    def residual(self, physics: Physics) -> Array:
        """log(measured / physics) as the model believes it."""
        learned = self.entry.offset + self.entry.shrink * self.forest.predict(physics.features)
        base = base_seconds(self.entry.family, self.entry.engine, physics)
        return np.asarray(learned if base is physics.seconds else learned + np.log(base / physics.seconds))


def borrowed(gpu: Gpu, known: Gpu, entry: Entry, forest: Forest) -> Choice:
    """A sibling's model for this GPU."""
    # What bounds a collective are links, of which a board with a bridge has two kinds.
    bounds = (0.0, inf) if entry.family == "collective" else ratio_bounds(gpu, known)
    return Choice("sibling", entry, forest, known, is_same_die(gpu, known), bounds)
