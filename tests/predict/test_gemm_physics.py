"""Matrix products: floats, arrays in double and arrays in single precision all say what a plain reference says."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.hardware.load import facts_of
from infercast.ops import Gemm
from infercast.ops.op import bytes_of, tensor_rate_of
from infercast.predict.array_api import columns, fill, log2, miss_share, soft_max
from infercast.predict.families import gemm as constants
from infercast.predict.families.gemm import (
    GEMM,
    MANY_COPIES,
    MOST_SPLITS,
    SHARES,
    SHORTEST_SPLIT,
    TABLE_COPIES,
)
from infercast.predict.kernels import MANY
from infercast.predict.learned import make_predictor

FILL_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (192, 192))

FORMATS = {
    "bf16": {},
    "fp8": {"dtype": "fp8"},
    "int4 weights": {"weight_dtype": "int4"},
    "batched": {"batch": 16},
}
EQUAL = 1 - 1e-9


class Reference:
    """Products timed the plain way: every candidate in turn, in double precision, in a table or in an engine."""

    def __init__(self, op, gpu, *, engine):
        if op.dtype == "fp8" and not gpu.supports("fp8"):  # weights are widened, so nothing is quantised
            op = replace(op, dtype="bf16", weight_dtype="fp8")
        self.op, self.gpu = op, gpu
        self.m, self.n, self.k = np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in (op.m, op.n, op.k)))
        self.c = constants.library_of(op.dtype, gpu.kernels)
        self.late = int(gpu.compute_capability.split(".")[0]) >= constants.ASYNCHRONOUS
        self.slow = constants.REFERENCE_CLOCK / gpu.boost_clock
        self.bytes_x, self.bytes_w = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        self.peak = gpu.dense_flops(tensor_rate_of(op.dtype))
        self.weights = op.batch * self.bytes_w * self.n * self.k
        activations = op.batch * (self.bytes_x * self.m * self.k + bytes_of(op.out_dtype) * self.m * self.n)
        self.moved = self.weights + activations
        cache = gpu.l2_bytes * (self.c.split_cache if gpu.compute_capability in constants.PARTITIONED else 1.0)
        working_set = self.c.copies_margin * (MANY_COPIES if engine else TABLE_COPIES) * self.weights + activations
        self.miss = miss_share(working_set, cache, self.c.miss_sharpness)
        cold = gpu.dram_bandwidth * self.c.dram * self.where_late(self.c.async_dram)
        self.dram = self.moved * (self.miss / cold + (1 - self.miss) / (gpu.l2_bandwidth * self.c.warm))
        self.quantise = op.dtype in constants.SCALED and not engine
        self._choose()

    def where_late(self, factor):
        return factor if self.late else 1.0

    def blocks(self, rows, cols):
        return self.op.batch * np.ceil(self.m / rows) * np.ceil(self.n / cols)

    def pipes(self, rows, cols, split):
        """Seconds of tensor cores, L2, latency, DRAM and storing."""
        gpu, c = self.gpu, self.c
        rounds = self.blocks(rows, cols) * split / gpu.sms
        busiest = np.maximum(c.whole_rounds * np.ceil(rounds) + (1 - c.whole_rounds) * rounds, 1.0)
        depth = self.k / split
        lost = 0.0 if self.late else 0.5 * c.small_tile * (1 / rows + 1 / cols)
        tensor = busiest * depth * 2 * rows * cols * (1 + lost) * gpu.sms / (self.peak * c.tensor)
        tensor = tensor * (1 + (gpu.sustained_fraction**-c.throttle - 1) * tensor / (tensor + c.throttle_after))
        l2_rate = gpu.l2_bandwidth * c.l2 * self.where_late(constants.MULTICAST) / gpu.sms
        l2 = rounds * depth * (rows * self.bytes_x + cols * self.bytes_w) / l2_rate
        steps = np.ceil(depth * self.bytes_x / constants.STEP_BYTES)
        latency = busiest * steps * c.step * self.where_late(c.async_step) / gpu.boost_clock
        drawn = np.minimum(rounds * c.stream * gpu.boost_clock * gpu.sms / gpu.dram_bandwidth, 1.0)
        store = busiest * c.store * self.where_late(c.async_store) * self.slow * rows * cols / (128 * 128)
        return [tensor, l2, latency, self.dram / drawn, store]

    def reduce(self, split):
        per_sum = constants.PARTIAL_BYTES / (self.gpu.l2_bandwidth * self.c.reduce_l2)
        sums = split * self.op.batch * self.m * self.n * per_sum
        return np.where(split > 1, sums + self.c.reduce * self.slow, 0.0)

    def _choose(self):
        best = np.full(self.m.shape, np.inf)
        self.choice = [np.ones_like(best), np.ones_like(best), np.ones_like(best)]
        most = np.clip(np.floor(self.k / SHORTEST_SPLIT), 1.0, MOST_SPLITS)
        for tile in constants.TILES:
            filling = np.clip(np.floor(self.gpu.sms / self.blocks(*tile)), 1.0, most)
            for split in (np.ones_like(best), filling) if self.c.split else (np.ones_like(best),):
                *pipes, store = self.pipes(*tile, split)
                seconds = np.max(pipes, axis=0) + store + self.reduce(split)
                better = seconds < best * EQUAL
                for into, value in zip((best, *self.choice), (seconds, *tile, split), strict=True):
                    np.copyto(into, value, where=better)

    def estimate(self):
        """Seconds and terms."""
        *pipes, store = self.pipes(*self.choice)
        per_launch = constants.CLOCK_FREE_LAUNCH + (1 - constants.CLOCK_FREE_LAUNCH) * self.slow
        per_launch *= facts_of(self.gpu).launch
        launch = self.c.launch * self.where_late(self.c.async_launch) * per_launch
        launch = launch + self.c.cold_start * self.where_late(self.c.async_cold) * self.miss
        quantising = np.zeros_like(store)
        if self.quantise:
            both = bytes_of("bf16") + self.bytes_x
            moved = self.op.batch * self.m * self.k * both / (constants.QUANTISE_DRAM * self.gpu.dram_bandwidth)
            rows = self.m * self.op.batch * constants.QUANTISE_ROW / self.gpu.sms
            quantising = constants.QUANTISE_LAUNCH * per_launch + np.maximum(moved, rows)
        reduce = self.reduce(self.choice[2])
        seconds = soft_max(self.c.power, *pipes) + store + reduce + launch + quantising
        return seconds, dict(zip(SHARES, (*pipes, store, reduce, launch, quantising), strict=True))

    def features(self):
        """As in ``FEATURES``."""
        gpu, (seconds, terms) = self.gpu, self.estimate()
        rounds = self.blocks(*self.choice[:2]) * self.choice[2] / gpu.sms
        intensity = self.op.batch * self.m * self.n * self.k / self.moved
        return columns(
            *map(log2, (self.m, self.n, self.k, seconds / 1e-6, self.n / self.k)),
            *(term / seconds for term in terms.values()),
            *(self.miss, log2(self.moved / gpu.l2_bytes), log2(self.weights / gpu.l2_bytes)),
            *(log2(intensity * 2 * gpu.dram_bandwidth / self.peak), log2(rounds), fill(rounds, 1)),
            *map(log2, self.choice),
            *(fill(self.blocks(*tile), gpu.sms) for tile in FILL_TILES),
            log2(self.blocks(128, 128) / gpu.sms),
            *(fill(size, side) for size, side in ((self.m, 8), (self.m, 64), (self.m, 256))),
            *(fill(self.n, 256), fill(self.k, 512), log2(self.bytes_x), log2(self.bytes_w), float(not self.c.split)),
            *(log2(self.peak / (gpu.sms * gpu.boost_clock)), gpu.sustained_fraction),
            *(log2(gpu.dram_bandwidth / gpu.boost_clock), self.m * 1e-6 / gpu.sms / seconds, log2(self.m / gpu.sms)),
        )


def random_sizes(count, seed=0):
    rng = np.random.default_rng(seed)
    m = np.exp2(rng.uniform(0, 15, count)).astype(int)
    n, k = (16 * np.exp2(rng.uniform(0, 11, count)).astype(int) for _ in range(2))
    return m, n, k


@pytest.fixture(params=["h200-sxm", "a100-sxm", "b200-sxm", "l4", "t4"])
def gpu(request):
    return load_gpu(request.param)


@pytest.fixture(params=FORMATS)
def options(request):
    return FORMATS[request.param]


def test_arrays_say_what_the_reference_says(gpu, options):
    op = Gemm(*random_sizes(2000), **options)
    table, engine = Reference(op, gpu, engine=False), Reference(op, gpu, engine=True)
    for reference, physics in ((table, GEMM.physics(op, gpu)), (engine, GEMM.physics(op, gpu, engine=True))):
        seconds, terms = reference.estimate()
        assert np.allclose(physics.seconds, seconds, rtol=1e-9, atol=0)
        for name, term in terms.items():
            assert np.allclose(physics.terms[name], term, rtol=1e-9, atol=1e-15), name
        assert np.allclose(physics.features, table.features(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", [False, True])
def test_one_product_is_priced_as_in_an_array(gpu, options, engine):
    sizes = random_sizes(200, seed=1)
    op = Gemm(*sizes, **options)
    many, core = GEMM.physics(op, gpu, engine=engine), GEMM.core(op, gpu)
    alone = [core.physics(tuple(map(float, size)), engine=engine) for size in zip(*sizes, strict=True)]
    assert np.allclose([each.seconds for each in alone], many.seconds, rtol=1e-12, atol=0)
    for name, term in many.terms.items():
        assert np.allclose([each.terms[name] for each in alone], term, rtol=1e-12, atol=0), name
    assert np.allclose([each.features for each in alone], many.features, rtol=1e-9, atol=1e-9)


def test_many_prices_are_those_of_a_few():
    predictor, gpu = make_predictor(), load_gpu("h200-sxm")
    m, n, k = random_sizes(MANY + 10, seed=3)
    together = predictor.estimate(Gemm(m, n, k), gpu)
    assert np.array_equal(together.seconds, predictor.seconds(Gemm(m, n, k), gpu))
    few = predictor.estimate(Gemm(m[:500], n[:500], k[:500]), gpu)
    assert np.allclose(together.seconds[:500], few.seconds, rtol=1e-12, atol=0)
    assert (together.bound[:500] == few.bound).all()


def test_sizes_of_any_kind():
    predictor, gpu = make_predictor(), load_gpu("h200-sxm")
    plain = predictor.estimate(Gemm(7, 4096, 512), gpu)
    assert predictor.estimate(Gemm(np.int64(7), np.array([4096]), 512), gpu) == plain
    assert predictor.seconds(Gemm(np.int64(7), 4096, 512), gpu) == plain.seconds
    assert predictor.seconds(Gemm(np.array([7]), 4096, 512), gpu) == plain.seconds
    assert predictor.seconds(Gemm(np.empty(0), 4096, 512), gpu).shape == (0,)
