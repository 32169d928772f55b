"""Throughput measured against size for each kernel configuration, interpolated (after PM2Lat).

A configuration's throughput is kept as a share of what its busiest pipe could do, on curves over waves, one for each
length of the inner loop. Between two lengths and two numbers of waves it is interpolated in logarithms. On a GPU that
was not measured the share is the nearest GPU's, so throughput scales with the ratio of the peaks.
"""

from dataclasses import dataclass

import numpy as np

from points import Array, Kernel, Points
from sources import nearest_rows
from splits import ByGpu

PER_OCTAVE = 4
"""Points of a curve an octave of waves."""


@dataclass(frozen=True)
class Surface:
    """log share over log waves, one curve for each log length."""

    lengths: Array
    curves: list[tuple[Array, Array]]

    def at(self, length: Array, waves: Array) -> Array:
        upper = np.clip(np.searchsorted(self.lengths, length), 0, len(self.lengths) - 1)
        lower = np.maximum(upper - 1, 0)
        gap = np.where(upper > lower, self.lengths[upper] - self.lengths[lower], 1.0)
        share = np.clip((length - self.lengths[lower]) / gap, 0.0, 1.0)
        return (1.0 - share) * self._along(lower, waves) + share * self._along(upper, waves)

    def _along(self, curve: Array, waves: Array) -> Array:
        result = np.empty(len(waves))
        for number in np.unique(curve):
            chosen = curve == number
            result[chosen] = np.interp(waves[chosen], *self.curves[number])
        return result


def surface(length: Array, waves: Array, share: Array) -> Surface:
    """Medians of what was measured, at most a few an octave of waves."""
    lengths = np.unique(length)
    curves = []
    for value in lengths:
        chosen = length == value
        bins = np.round(PER_OCTAVE * waves[chosen])
        names, position = np.unique(bins, return_inverse=True)
        middle = np.array([np.median(share[chosen][position == number]) for number in range(len(names))])
        curves.append((names / PER_OCTAVE, middle))
    return Surface(lengths, curves)


class Throughput:
    """One surface for each configuration of a kernel, and one of all for configurations never measured."""

    def __init__(self, known: ByGpu, family: str) -> None:
        del family
        self._known = known
        self._surfaces: dict[tuple[Kernel, str], dict[bytes, Surface]] = {}

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        if (kernel, gpu) not in self._surfaces:
            _, source = nearest_rows(self._known, kernel, gpu)
            self._surfaces[kernel, gpu] = _surfaces(source)
        surfaces = self._surfaces[kernel, gpu]
        length, waves = np.log2(rows.length), np.log2(rows.waves)
        share = np.empty(len(length))
        configs, position = np.unique(rows.config, axis=0, return_inverse=True)
        for number, config in enumerate(configs):
            chosen = position == number
            share[chosen] = surfaces.get(config.tobytes(), surfaces[b""]).at(length[chosen], waves[chosen])
        return rows.attainable * np.exp2(-share)


def _surfaces(source: Points) -> dict[bytes, Surface]:
    length, waves = np.log2(source.length), np.log2(source.waves)
    share = np.log2(source.attainable / source.seconds)
    found = {b"": surface(length, waves, share)}
    configs, position = np.unique(source.config, axis=0, return_inverse=True)
    for number, config in enumerate(configs):
        chosen = position == number
        found[config.tobytes()] = surface(length[chosen], waves[chosen], share[chosen])
    return found
