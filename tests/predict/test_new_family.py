"""A kernel family is an operator and a record: predictors learn of it by nothing else."""

from dataclasses import dataclass

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.hardware import load_gpu
from infercast.ops.op import Quantity, Size
from infercast.predict import families
from infercast.predict.array_api import Physics, kit_of
from infercast.predict.ceilings import AtCeiling, default_ceilings
from infercast.predict.families.family import Ceiling, Family, dram_seconds, floats, lone
from infercast.predict.learned import Changed, make_predictor
from infercast.predict.roofline import Roofline, Typical, launch_floor


@dataclass(frozen=True)
class Scan:
    """A recurrent state for each sequence, read and written once a step."""

    sequences: Size
    state_bytes: int
    family: str = "scan"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        return 2.0 * self.bytes_read

    @property
    def bytes_read(self) -> Quantity:
        return 1.0 * self.state_bytes * self.sequences

    @property
    def bytes_written(self) -> Quantity:
        return self.bytes_read


class Scanning:
    """Seconds of one kernel or of many."""

    def __init__(self, op, gpu):
        self.op, self.gpu = op, gpu

    def physics(self, size, *, engine=False):
        x, moving = kit_of(size), 2.0 * self.op.state_bytes * size / self.gpu.dram_bandwidth / 0.8
        return Physics(moving + launch_floor(self.gpu), {"dram": moving}, x.columns(x.log2(moving)))


SCAN = Family(
    name="scan",
    op=Scan,
    step_sizes=("sequences",),
    sizes=lambda op: floats(op.sequences),
    size_of_one=lambda op: lone(op.sequences),
    kind=lambda _: (),
    core=Scanning,
    features={"scan": ("log_moving",)},
    pipes=lambda op, gpu: {"dram": dram_seconds(op, gpu)},
    limits=lambda op, gpu: {"dram": np.ravel(dram_seconds(op, gpu))},
    variants=lambda *_: ("",),
    typical=lambda _: ("attention_decode",),
    ceiling=Ceiling(),
)


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "scan", SCAN)
    monkeypatch.setitem(families._BY_OP, Scan, (SCAN,))


H200, R9700 = load_gpu("h200-sxm"), load_gpu("r9700")
LEARNED = make_predictor()
PREDICTORS = {
    "roofline": (Roofline(), "roofline"),
    "learned": (LEARNED, "physics"),
    "typical": (Typical(), "typical"),
    "changed": (Changed(LEARNED, load_gpu("h100-sxm")), "physics"),
    "closing": (AtCeiling(LEARNED, default_ceilings()), "physics"),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_estimates_it(name):
    predictor, source = PREDICTORS[name]
    one, many = Scan(64, 1 << 20), Scan(np.array([64, 640]), 1 << 20)
    alone, together = predictor.estimate(one, H200), predictor.estimate(many, H200)
    assert alone.source == source
    assert 2 * one.bytes_read / H200.dram_bandwidth < alone.seconds < 100e-6
    assert alone.low <= alone.seconds <= alone.high
    assert together.seconds[0] == pytest.approx(alone.seconds, rel=1e-12)
    assert together.seconds[1] > 5 * together.seconds[0]
    assert np.allclose(predictor.seconds(many, H200), together.seconds, rtol=1e-12)
    assert alone.bound == "dram"
    assert predictor.explain(one, H200)["dram"] > 0


def test_chips_that_nobody_modelled_take_the_row_that_it_names():
    assert LEARNED.estimate(Scan(64, 1 << 20), R9700).source == "typical"


def test_what_has_no_record_is_refused():
    with pytest.raises(InputError, match="nothing is known of operators of type int"):
        LEARNED.estimate(3, H200)
