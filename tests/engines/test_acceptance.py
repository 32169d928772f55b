"""How many drafts are accepted, in every form that people give it."""

import pytest

from infercast.engines.speculation import by_length, curves, read_acceptance, usual
from infercast.errors import InputError

LINE = (
    "SpecDecoding metrics: Mean acceptance length: 2.70, Accepted throughput: 810.00 tokens/s, Drafted throughput: "
    "1429.40 tokens/s, Accepted: 8100 tokens, Drafted: 14294 tokens, Per-position acceptance rate: 0.750, 0.550, 0.400"
    ", Avg Draft acceptance rate: 56.7%"
)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0.5", (0.5, 0.25, 0.125)),
        ("rate=1", (1.0, 1.0, 1.0)),
        ("2.4", (1.0, 0.4, 0.0)),
        ("length=1", (0.0, 0.0, 0.0)),
        ("0.75,0.55,0.4", (0.75, 0.55, 0.4)),
        (LINE, (0.75, 0.55, 0.4)),
    ],
)
def test_every_form_gives_a_rate_for_each_position(text: str, rates: tuple[float, ...]) -> None:
    assert read_acceptance(text, 3).rates == pytest.approx(rates)


def test_a_mean_length_of_a_log_is_kept() -> None:
    found = read_acceptance("accept len: 2.31, accept rate: 0.58", 3)
    assert found.length == pytest.approx(2.31)
    assert found.rates[0] > found.rates[1] > found.rates[2] > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1", "say length=1 or rate=1"),
        ("5", "must lie between 1 and 4"),
        ("0.5,0.6,0.1", "must not rise"),
        ("0.5,0.4", "there are 2 acceptance rates for 3 drafts"),
        ("0.5,x,0.4", "'x' is not a number"),
        ("eagle", "unknown acceptance 'eagle'"),
    ],
)
def test_what_is_no_acceptance_is_refused_with_the_reason(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_acceptance(text, 3)


@pytest.mark.parametrize("name", sorted(curves()))
def test_published_curves_keep_their_lengths_as_far_as_these_rise(name: str) -> None:
    curve = curves()[name]
    for drafts in (1, 2, 3, 12):
        found = read_acceptance(name, drafts)
        assert len(found.rates) == drafts
        assert all(1.0 >= before >= after >= 0.0 for before, after in zip(found.rates, found.rates[1:], strict=False))
        if drafts <= min(3, len(curve.lengths)):
            assert found.length == pytest.approx(curve.lengths[drafts - 1], abs=0.02)


def test_where_nobody_says_others_stand_in_and_it_is_said() -> None:
    own = usual("deepseek-v3.1", "mtp", 1)
    assert own.is_assumed
    assert own.rates == (pytest.approx(0.875),)
    other = usual("llama-3.1-8b", "eagle3", 3)
    assert "published curves" in other.source
    assert 2.5 < other.length < 3.1


def test_a_length_is_spread_with_the_least_variance() -> None:
    assert by_length(3.25, 4) == (1.0, 1.0, 0.25, 0.0)
