"""Energy as an objective, power as a budget, and power limits as a choice."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from infercast.errors import InputError
from infercast.forecast.energy import Facility
from infercast.forecast.plan.candidate import Row
from infercast.forecast.plan.evaluate import evaluate
from infercast.forecast.plan.executors import from_plain, to_plain
from infercast.forecast.plan.question import Plan, Question, least_watts, rough_joules
from infercast.forecast.plan.search import plan
from infercast.report.plan import plan_dict
from infercast.report.plan_folder import candidates_csv, pareto_svg

Ask = Callable[..., Question]


def joules(row: Row) -> float:
    assert row.figures is not None
    assert row.figures.drawn is not None
    return row.figures.drawn.wall_joules_per_output_token


@pytest.fixture(scope="module")
def answer(ask: Ask) -> Plan:
    return plan(ask(objective="energy", max_gpus=2, facility=Facility(pue=1.2, grid_carbon=300)))


def test_the_winner_takes_no_more_energy_than_any_other(answer: Plan) -> None:
    question = answer.question
    found = []
    for unit in question.units():
        for count in range(1, question.max_gpus // unit.layout.gpus + 1):
            row = evaluate(unit.times(count), question)
            found += [joules(row)] if row.holds else []
    assert answer.winner is not None
    assert joules(answer.winner) == pytest.approx(min(found))


def test_energy_is_in_rows_files_and_the_picture(answer: Plan) -> None:
    winner = plan_dict(answer)["winner"]
    assert winner["energy"]["wall_watts"] > 1.2 * winner["energy"]["gpu_watts"]
    assert winner["energy"]["grams_co2_per_million_output_tokens"] > 0
    head, *_ = candidates_csv(answer)
    assert {"wall_joules_per_output_token", "power_limit_w"} <= set(head.strip().split(","))
    assert "J per output token at the wall" in (pareto_svg(answer) or "")


def test_a_power_budget_holds_for_servers_at_their_peak(ask: Ask) -> None:
    free = plan(ask(gpus=("h100-sxm",), max_gpus=1))
    assert free.winner is not None
    assert free.winner.figures is not None
    drawn = free.winner.figures.drawn
    assert drawn is not None
    short = ask(gpus=("h100-sxm",), max_gpus=1, power_budget=0.9 * drawn.peak_watts)
    none = plan(short)
    assert none.winner is None
    assert "above the power budget of" in none.why
    assert any("keeps" in each.sentence for each in none.nearest)
    held = plan(replace(short, power_limits=(None, 400.0)))
    assert held.winner is not None
    assert held.winner.candidate.power_limit == 400
    assert "on h100-sxm at 400 W" in str(held.winner.candidate)


def test_what_cannot_even_idle_is_ruled_out_before_anything_is_timed(ask: Ask) -> None:
    question = ask(gpus=("h100-sxm",), max_gpus=1, power_budget=100.0)
    unit = next(question.units())
    assert least_watts(question, unit) > 100
    assert not question.allows(unit)
    assert "idle" in plan(question).why


def test_limits_that_a_board_does_not_take_are_left_out(ask: Ask) -> None:
    question = ask(gpus=("l40s", "h100-sxm"), max_gpus=1, power_limits=(None, 100.0, 500.0, 900.0))
    found = {(unit.gpu, unit.power_limit) for unit in question.units()}
    assert found == {("l40s", None), ("l40s", 100), ("h100-sxm", None), ("h100-sxm", 500)}


def test_the_rough_order_follows_gpus_and_their_limits(ask: Ask) -> None:
    question = ask(gpus=("h100-sxm",))
    unit = next(question.units())
    assert rough_joules(question, unit.times(2)) == pytest.approx(2 * rough_joules(question, unit))
    assert rough_joules(question, replace(unit, power_limit=350.0)) < rough_joules(question, unit)


def test_electricity_of_owned_gpus_is_in_the_cost(ask: Ask) -> None:
    rented = ask(gpus=("h100-sxm",), max_gpus=1, facility=Facility(electricity_price=0.5))
    owned = replace(rented, metered=("h100-sxm",))
    unit = next(rented.units())
    before, after = evaluate(unit, rented), evaluate(unit, owned)
    assert after.figures is not None
    assert after.figures.drawn is not None
    assert before.cost == 3.0
    assert after.cost == pytest.approx(3.0 + after.figures.drawn.wall_watts * 5e-4)
    tight = evaluate(unit, replace(owned, budget=3.0))
    assert not tight.holds
    assert "with electricity, above the budget" in tight.reason


def test_rows_are_kept_for_a_search_that_goes_on(ask: Ask) -> None:
    row = evaluate(next(ask(gpus=("h100-sxm",), max_gpus=1).units()), ask(gpus=("h100-sxm",), max_gpus=1))
    assert from_plain(to_plain(row)) == row


def test_a_budget_that_cannot_be(ask: Ask) -> None:
    with pytest.raises(InputError, match="power_budget must be watts above 0"):
        ask(power_budget=0.0)
    with pytest.raises(InputError, match="power_budget must be watts above 0, not inf"):
        ask(power_budget=float("inf"))


def test_a_power_limit_that_no_gpu_takes(ask: Ask) -> None:
    with pytest.raises(InputError, match=r"a power limit of 5 W is lower than these GPUs take: .* W on"):
        ask(power_limits=(None, 5.0))
