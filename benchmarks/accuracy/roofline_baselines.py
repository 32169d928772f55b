"""The datasheet alone, and the datasheet times one number a family and format."""

from collections import defaultdict

import numpy as np

from points import Array, Kernel, Points
from splits import ByGpu


class Plain:
    """max(FLOP / peak, bytes / bandwidth)."""

    def __init__(self, known: ByGpu, family: str) -> None:
        del known, family

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        return rows.plain


class Waves(Plain):
    """Work in whole rounds of tiles, and a launch on top."""

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        return rows.wave


class Scaled:
    """The roofline with rounds, times the median of measured / roofline over the family's rows of the same variant."""

    def __init__(self, known: ByGpu, family: str) -> None:
        del family
        ratios = defaultdict(list)
        for kernels in known.values():
            for (_, variant), rows in kernels.items():
                ratios[variant].append(rows.seconds / rows.wave)
        self._factor = {variant: float(np.median(np.concatenate(parts))) for variant, parts in ratios.items()}
        self._common = float(np.median([*self._factor.values()]))

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        return self._factor.get(kernel[1], self._common) * rows.wave
