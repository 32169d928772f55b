"""Networks that predict how well a kernel uses a GPU: by the tile (after NeuSight), by pipe demands (after SynPerf).

One network a family and split. Both see the shape, the GPU's datasheet and which kernel it is; they differ in what
they are told of the work, in what stands for a utilisation of 1 and in the head.
"""

from abc import ABC, abstractmethod

import numpy as np

from infercast.hardware import load_gpu
from infercast.lab.fit.train import thin
from network import Head, Network, bounded_by_waves, efficiency
from points import Array, Kernel, Points
from splits import ByGpu

MOST_ROWS = 60_000
LEAST_SECONDS = 1e-12
"""Stands for a pipe that is not used, before taking logarithms."""


class Neural(ABC):
    """What both have in common: rows of all known GPUs and kernels of a family, and one network."""

    head: Head

    def __init__(self, known: ByGpu, family: str) -> None:
        self.family = family
        self._kernels = sorted({kernel for kernels in known.values() for kernel in kernels})
        share = MOST_ROWS // sum(len(kernels) for kernels in known.values())
        parts = []
        for gpu, kernels in known.items():
            for kernel, rows in kernels.items():
                chosen = rows.part(np.sort(thin(np.arange(rows.seconds.size), share)))
                parts.append((self._features(kernel, chosen, gpu), self.limit(chosen), _rounds(chosen), chosen.seconds))
        self._network = Network(self.head).fit(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        return self._network.seconds(self._features(kernel, rows, gpu), self.limit(rows), _rounds(rows))

    @abstractmethod
    def limit(self, rows: Points) -> Array:
        """Seconds at a utilisation of 1."""

    @abstractmethod
    def work(self, rows: Points, gpu: str) -> list[Array]:
        """Features that say what is asked of the GPU."""

    def _features(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        ones = np.ones(rows.seconds.size)
        names = [ones * (kernel == each) for each in self._kernels]
        columns = [*self.work(rows, gpu), *(ones * value for value in _datasheet(gpu)), *names]
        return np.concatenate([rows.shape, np.stack(columns, axis=1)], axis=1)


class TileNetwork(Neural):
    """Seconds of a tile at a multiprocessor's share of the roofline, times whole rounds, over alpha - beta / rounds."""

    head = staticmethod(bounded_by_waves)

    def limit(self, rows: Points) -> Array:
        return rows.attainable * np.where(rows.waves > 1, _rounds(rows) / rows.waves, 1.0)

    def work(self, rows: Points, gpu: str) -> list[Array]:
        rounds = _rounds(rows)
        per_round = [_log(rows.tensor / rounds), _log(rows.moved / rounds), _log(rows.attainable / rounds)]
        return [*per_round, np.log(rounds), 1.0 / rounds, np.log(rows.bytes / load_gpu(gpu).l2_bytes)]


class PipeNetwork(Neural):
    """The busiest pipe over an efficiency; the demands on all pipes, on average and on the busiest multiprocessor."""

    head = staticmethod(efficiency)

    def limit(self, rows: Points) -> Array:
        return rows.attainable

    def work(self, rows: Points, gpu: str) -> list[Array]:
        pipes = [rows.tensor, rows.special, rows.moved]
        uneven = np.log(_rounds(rows) / rows.waves)
        shares = [pipe / rows.attainable for pipe in pipes]
        level = np.log(rows.bytes / load_gpu(gpu).l2_bytes)
        return [*(_log(pipe) for pipe in pipes), _log(rows.attainable), *shares, uneven, np.log(rows.waves), level]


def _rounds(rows: Points) -> Array:
    """Whole rounds of thread blocks; what does not fill one is taken to be cut finer until it does."""
    return np.maximum(np.ceil(rows.waves), 1.0)


def _log(seconds: Array) -> Array:
    return np.log(np.maximum(seconds, LEAST_SECONDS))


def _datasheet(name: str) -> Array:
    gpu = load_gpu(name)
    per_clock = gpu.sms * gpu.boost_clock
    rates = (gpu.dense_flops("bf16") / per_clock, gpu.dram_bandwidth / per_clock, gpu.l2_bytes / gpu.sms)
    return np.log([*rates, gpu.sms, gpu.boost_clock])
