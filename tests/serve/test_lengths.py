from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercast.errors import InfercastError, InputError
from infercast.serve import Request, simulate
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.step import constant_timer
from infercast.serve.workload.distributions import LENGTH_FORMS, LONGEST, parse_lengths
from infercast.serve.workload.request import Workload
from infercast.serve.workload.synthetic import ended, redrawn, synthetic_workload


def sample(text: str, count: int = 200_000, seed: int = 0) -> np.ndarray:
    return parse_lengths(text, "input").sample(count, np.random.default_rng(seed))


def test_fixed() -> None:
    assert set(sample("512", 10).tolist()) == {512}
    assert parse_lengths("512", "input").mean == 512


def test_uniform_includes_both_ends() -> None:
    lengths = sample("uniform:3:6", 1000)
    assert sorted(set(lengths.tolist())) == [3, 4, 5, 6]
    assert parse_lengths("uniform:3:6", "input").mean == 4.5


def test_lognormal_has_the_written_mean_and_sigma() -> None:
    lengths = sample("lognormal:700:0.9")
    assert lengths.mean() == pytest.approx(700, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.9, rel=0.01)
    assert parse_lengths("lognormal:700:0.9", "input").mean == pytest.approx(700, rel=1e-4)


def test_quantiles_are_those_that_are_written() -> None:
    text = "quantiles:1:1:2:3:10:20:40:80:80:90:200:400:700:900:950:1000"
    lengths = sample(text)
    assert np.quantile(lengths, [0.1, 0.5, 0.9, 0.99]) == pytest.approx([3, 80, 400, 900], rel=0.03)
    assert parse_lengths(f"{text},cap=300", "output").maximum == 300
    with pytest.raises(InputError, match="quantiles that fall"):
        parse_lengths(text.replace("200:400", "400:200"), "input")


def test_normal_has_the_written_mean_and_deviation() -> None:
    lengths = sample("normal:700:100")
    assert lengths.mean() == pytest.approx(700, rel=0.01)
    assert lengths.std() == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "512",
        "uniform:100:900",
        "normal:700:100",
        "normal:100:200",
        "normal:700:300:600:1000",
        "lognormal:700:0.9:16:8000",
        "lognormal:700:1.5:500:900",
        "lognormal:180:0",
        "normal:180:0:200:300",
        "quantiles:1:1:2:3:10:20:40:80:80:90:200:400:700:900:950:1000",
    ],
)
def test_mean_is_the_mean_of_the_samples_with_clipping(text: str) -> None:
    assert parse_lengths(text, "input").mean == pytest.approx(sample(text).mean(), rel=0.01)


@pytest.mark.parametrize("kind", ["lognormal:700:0.9", "normal:700:300"])
def test_clipping_keeps_to_the_bounds(kind: str) -> None:
    lengths = sample(f"{kind}:500:900")
    assert (lengths.min(), lengths.max()) == (500, 900)


def test_lengths_are_at_least_one_and_never_overflow() -> None:
    assert sample("normal:1:100").min() == 1
    wide = sample(f"lognormal:{LONGEST}:5")
    assert wide.min() >= 1
    assert wide.max() == LONGEST


def test_samples_are_integers_and_depend_on_the_seed_only() -> None:
    first = sample("lognormal:700:0.9", 1000, seed=4)
    assert first.dtype == np.int64
    assert first.tobytes() == sample("lognormal:700:0.9", 1000, seed=4).tobytes()
    assert first.tobytes() != sample("lognormal:700:0.9", 1000, seed=5).tobytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4096", "4,096"),
        ("uniform:100:9000", "uniform 100 to 9,000"),
        ("lognormal:700:0.9", "lognormal mean 700"),
        ("Normal:1700:10:1:8000", "normal mean 1,700 (1 to 8,000)"),
    ],
)
def test_in_plain_words(text: str, words: str) -> None:
    assert str(parse_lengths(text, "input")) == words


@pytest.mark.parametrize("text", ["", "many", "512.5", "zipf:3", "uniform:100", "lognormal:700", "normal:7:1:2", "1:2"])
def test_unknown_forms_list_the_known_ones(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_lengths(text, "output")
    assert str(caught.value) == f"output {text!r} is not a length distribution; known forms: {', '.join(LENGTH_FORMS)}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0", "the length must be a whole number from 1 to 2147483647, not '0'"),
        ("-5", "the length must be a whole number from 1 to 2147483647, not '-5'"),
        ("99999999999", "the length must be a whole number from 1 to 2147483647, not '99999999999'"),
        ("uniform:0:5", "the lower bound must be a whole number from 1 to 2147483647, not '0'"),
        ("uniform:1:x", "the upper bound must be a whole number from 1 to 2147483647, not 'x'"),
        ("uniform:9:5", "the lower bound 9 is above the upper bound 5"),
        ("lognormal:700:0.9:20:10", "the lower bound 20 is above the upper bound 10"),
        ("lognormal:0:0.9", "the mean must be a number from 1 to 2147483647, not '0'"),
        ("lognormal:nan:0.9", "the mean must be a number from 1 to 2147483647, not 'nan'"),
        ("lognormal:700:300", "the standard deviation of the logarithm must be a number from 0 to 5, not '300'"),
        ("normal:700:-1", "the standard deviation must be a number from 0 to 2147483647, not '-1'"),
    ],
)
def test_bad_numbers_name_field_value_and_range(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_lengths(text, "input")
    assert str(caught.value) == f"input {text!r}: {problem}"


@given(st.text(alphabet="0123456789:.-+_einfaunormlg ²", max_size=30))
def test_any_text_is_a_distribution_or_an_input_error(text: str) -> None:
    try:
        lengths = parse_lengths(text, "input")
    except InfercastError:
        return
    assert lengths.sample(5, np.random.default_rng(0)).min() >= 1
    assert lengths.minimum <= lengths.mean <= lengths.maximum


def test_answers_under_a_cap_end_by_eos():
    capped = parse_lengths("lognormal:700:1.2, cap=1000", "output")
    assert capped == parse_lengths("lognormal:700:1.2:1:1000", "output")._replace(cap=1000)
    workload = synthetic_workload(rate=5.0, count=500, output_lengths="lognormal:700:1.2,cap=1000")
    outputs = [request.num_output for request in workload.requests]
    assert max(outputs) == 1000
    assert 0.1 < outputs.count(1000) / 500 < 0.4
    assert {request.declared for request in workload.requests} == {1000}
    assert redrawn(workload, seed=1, count=500).requests[0].declared == 1000
    with pytest.raises(InputError, match="leave one of the two out"):
        ended(workload, None, True)


def test_row_of_an_answer_that_ends_by_eos_is_wasted():
    engine = Replica(
        timer=constant_timer(0.01), policy=FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=8), num_blocks=100
    )
    short, cut = (Workload((Request(0.0, 100, num, declared=20),)) for num in (19, 20))
    steps = [simulate(engine, each).decoding.steps for each in (short, cut)]
    assert steps == [19, 19]  # of 18 and 19 tokens: the first is in a step too many
