"""Which shapes a sweep measures, and in which order."""

import gzip
import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from infercast.errors import UnknownNameError
from infercast.lab.measure.rows import FAMILIES, SHAPES, SHARES, Case, sweep_cases

CHOSEN = Path(__file__).parents[2] / "benchmarks" / "measure"
LONGEST_FLOPS, LARGEST_WEIGHT, MOST_KEYS, MOST_ROWS = 8e12, 2**31, 1_000_000, 131_072


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not CHOSEN.is_dir():
        pytest.skip("benchmarks are not part of a source distribution")
    monkeypatch.syspath_prepend(str(CHOSEN))
    return import_module("choose_shapes")


def test_shapes_are_those_that_are_chosen(chosen: Any) -> None:
    assert json.loads(gzip.decompress(SHAPES.read_bytes())) == json.loads(json.dumps(chosen.tables()))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return sweep_cases()


def test_how_many_of_each_family(cases: list[Case]) -> None:
    assert Counter(case.family for case in cases) == {
        "gemm": 31_322,
        "attention_decode": 6_203,
        "attention_prefill": 6_186,
        "attention_mixed": 1_804,
        "moe": 726,
        "elementwise": 1_942,
    }


def test_no_case_comes_twice(cases: list[Case]) -> None:
    assert len({case.key for case in cases}) == len(cases)


def test_the_same_list_every_time(cases: list[Case]) -> None:
    assert [case.key for case in sweep_cases()] == [case.key for case in cases]


@pytest.mark.parametrize("length", [50, 100, 200])
def test_any_beginning_has_all_families_in_their_shares(cases: list[Case], length: int) -> None:
    counts = Counter(case.family for case in cases[:length])
    assert set(counts) == set(FAMILIES)
    for family, share in SHARES.items():
        assert counts[family] == pytest.approx(share * length / sum(SHARES.values()), abs=2)


def test_every_prefix_of_the_first_two_hundred_is_spread(cases: list[Case]) -> None:
    """From the point where the smallest share is due, no family is ever missing."""
    first = {family: next(n for n, case in enumerate(cases) if case.family == family) for family in FAMILIES}
    assert max(first.values()) < 20
    products = [case.shape for case in cases[:200] if case.family == "gemm"]
    assert len({(shape["n"], shape["k"]) for shape in products}) > 60
    assert {shape["dtype"] for shape in products} >= {"bf16", "fp8"}


def test_fewer_families_keep_their_order(cases: list[Case]) -> None:
    chosen = [case.key for case in sweep_cases(["moe", "gemm"])]
    assert chosen == [case.key for case in cases if case.family in ("moe", "gemm")]


def test_unknown_families_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gemm"):
        sweep_cases(["gem"])


def test_products_are_within_their_limits(cases: list[Case]) -> None:
    for case in cases:
        if case.family == "gemm":
            m, n, k = (case.shape[name] for name in "mnk")
            assert m >= 1
            assert n % 8 == 0
            assert k % 8 == 0
            assert case.flops == 2.0 * m * n * k <= LONGEST_FLOPS
            assert max(m * n, n * k) <= LARGEST_WEIGHT


def test_attention_is_within_its_limits(cases: list[Case]) -> None:
    for case in cases:
        if case.family.startswith("attention"):
            shape = case.shape
            assert shape["heads"] % shape["kv_heads"] == 0
            assert shape.get("decodes", shape["batch"]) * shape.get("kv_len", 0) <= MOST_KEYS
            if "q_len" in shape:
                assert shape["batch"] * shape["q_len"] <= 16_500
                assert shape["batch"] * shape["prefix"] <= 131_072
            assert ("kv_len" in shape) == (case.family != "attention_prefill")


def test_experts_and_the_rest_are_within_their_limits(cases: list[Case]) -> None:
    for case in cases:
        shape = case.shape
        if case.family == "moe":
            assert shape["tokens"] * shape["topk"] <= MOST_ROWS
            assert shape["topk"] <= shape["experts"]
        elif case.family == "elementwise":
            assert 1 <= shape["rows"] <= 1.2 * 16_384
            assert case.flops == 0
            assert shape["rows"] <= 1.2 * 256 or shape["op"] not in ("sample", "to_float")


def test_weight_shapes_are_spread_and_any_number_of_them_begins_the_same(chosen: Any) -> None:
    pairs = list(chosen.weight_shapes(320))
    assert len(set(pairs)) == 320
    assert list(chosen.weight_shapes(40)) == pairs[:40]
    # Half of the layers' pairs on either side of the middle of log(n).
    layers = [n for n, k in pairs if 512 < n < 32_000]
    assert 0.35 < sum(n < 5_000 for n in layers) / len(layers) < 0.65


def test_sparse_kernels_are_measured_where_they_are_named(cases: list[Case]) -> None:
    assert not any(case.family == "sparse" for case in cases)
    sparse = sweep_cases(["sparse"])
    kernels = Counter(case.shape["op"] for case in sparse)
    assert sum(kernels.values()) == 1_246
    assert min(kernels.values()) >= 48
    assert {case.shape["op"] for case in sparse[:60]} == set(kernels), "any beginning has all of them"
    for shape in (case.shape for case in sparse):
        decodes = shape["op"].endswith(("_decode", "decode_choice"))
        assert (shape["q_len"] == 1) if decodes else shape["q_len"] >= 1
