"""From GPU boards to the wall: servers, building, carbon and the electricity bill."""

from dataclasses import replace
from pathlib import Path

import pytest

from infercast import Forecast, InputError, Tariff, UnknownNameError, deploy, simulate
from infercast.forecast.energy import Facility
from infercast.forecast.plan.request import question_of
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload

LOAD = synthetic_workload(rate=20, count=12, input_lengths=200, output_lengths=10)


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    return simulate(deploy("qwen3-0.6b", "h200-sxm"), LOAD)


def test_a_share_of_the_server_and_its_losses_come_on_top(forecast: Forecast) -> None:
    energy, wall = forecast.energy, forecast.wall
    assert energy is not None
    assert wall is not None
    assert wall.gpu_watts == energy.mean_watts
    assert wall.server_watts == pytest.approx(1370 / 8 + 1.21 * energy.mean_watts)
    assert wall.watts == wall.server_watts
    assert wall.peak_watts > wall.watts
    assert wall.joules / energy.joules == pytest.approx(wall.watts / wall.gpu_watts)
    assert wall.joules_per_output_token == pytest.approx(energy.joules_per_output_token * wall.watts / wall.gpu_watts)
    assert wall.kilowatt_hours_per_day == pytest.approx(wall.watts * 0.024)
    assert (wall.grams_co2_per_hour, wall.usd_per_hour) == (None, None)


def test_the_interval_holds_that_of_the_boards_and_of_the_server(forecast: Forecast) -> None:
    energy, wall = forecast.energy, forecast.wall
    assert energy is not None
    assert wall is not None
    assert wall.high / wall.joules > energy.high / energy.joules
    assert wall.low / wall.joules < energy.low / energy.joules


def test_every_factor_may_be_given(forecast: Forecast) -> None:
    given = Facility(pue=1.5, server_watts=800, server_factor=1.1, grid_carbon=400, electricity_price=0.2)
    plain, wall = forecast.wall, replace(forecast, facility=given).wall
    assert plain is not None
    assert wall is not None
    assert wall.watts == pytest.approx(1.5 * (100 + 1.1 * plain.gpu_watts))
    assert wall.usd_per_hour == pytest.approx(wall.watts / 1000 * 0.2)
    assert wall.grams_co2_per_hour == pytest.approx(wall.watts / 1000 * 400)
    assert wall.grams_co2_per_million_output_tokens == pytest.approx(
        wall.watt_hours_per_million_output_tokens / 1000 * 400
    )
    desktop = replace(forecast, facility=Facility(server="desktop")).wall
    assert desktop is not None
    assert desktop.server_watts == pytest.approx(80 + 1.12 * plain.gpu_watts)


def test_two_pools_are_in_servers_of_their_own() -> None:
    run = simulate(deploy("qwen3-0.6b", "l40s"), LOAD, prefill=deploy("qwen3-0.6b", "h200-sxm"))
    both, drawn = run.wall, run.energy
    assert both is not None
    assert drawn is not None
    assert [server.kind for server in both.servers] == ["baseboard", "cards"]
    first, second = drawn.pools
    assert second.peak_watts < 350 < first.peak_watts, "an L40S may draw 350 W"
    assert both.server_watts == pytest.approx(1370 / 8 + 1.21 * first.mean_watts + 315 / 8 + 1.175 * second.mean_watts)


@pytest.mark.parametrize(
    ("field", "value"),
    [("pue", 0.9), ("server_watts", -1), ("server_factor", 0.5), ("grid_carbon", -1), ("electricity_price", -0.1)],
)
def test_a_factor_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} must be a number from"):
        Facility(**{field: value})  # type: ignore[arg-type]


def test_a_kind_of_server_that_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="blade"):
        Facility(server="blade")


def owned(path: Path, text: str) -> Tariff:
    path.write_text(f"[h200-sxm]\ncapital_cost = 35064\nyears = 4\n{text}", encoding="utf-8")
    return Tariff(file=path)


def test_electricity_of_owned_gpus_is_what_they_draw(forecast: Forecast, tmp_path: Path) -> None:
    tariff = owned(tmp_path / "ours.toml", "electricity_price = 0.10\npue = 1.2\n")
    found = replace(forecast, tariff=tariff)
    assert found.wall is not None
    assert found.cost is not None
    assert found.wall.pue == 1.2
    assert found.wall.usd_per_hour == pytest.approx(found.wall.watts * 1e-4)
    assert found.cost.per_hour == pytest.approx(1.0 + found.wall.watts * 1e-4)


def test_given_factors_go_before_those_of_the_list(forecast: Forecast, tmp_path: Path) -> None:
    tariff = owned(tmp_path / "ours.toml", "electricity_price = 0.10\npue = 1.2\n")
    found = replace(forecast, tariff=tariff, facility=Facility(pue=1.0, electricity_price=0.3))
    assert found.wall is not None
    assert found.cost is not None
    assert found.wall.pue == 1.0
    assert found.cost.per_hour == pytest.approx(1.0 + found.wall.watts * 3e-4)


def test_watts_of_the_list_are_taken_as_they_are(forecast: Forecast, tmp_path: Path) -> None:
    tariff = owned(tmp_path / "ours.toml", "watts = 1000\nelectricity_price = 0.10\n")
    cost = replace(forecast, tariff=tariff).cost
    assert cost is not None
    assert cost.per_hour == pytest.approx(1.1)


def test_what_is_given_goes_before_the_list_with_watts_too(forecast: Forecast, tmp_path: Path) -> None:
    tariff = owned(tmp_path / "ours.toml", "watts = 1000\nelectricity_price = 0.10\npue = 1.2\n")
    found = replace(forecast, tariff=tariff, facility=Facility(electricity_price=0.3))
    assert found.cost is not None
    assert found.wall is not None
    assert found.cost.per_hour == pytest.approx(1.0 + 1.2 * 0.3)
    assert found.wall.pue == 1.2
    assert found.wall.usd_per_hour is None  # it is in the price, and counted once
    dearer = replace(found, facility=Facility(electricity_price=0.3, pue=2.0)).cost
    assert dearer is not None
    assert dearer.per_hour == pytest.approx(1.0 + 2.0 * 0.3)


def test_a_plan_asked_for_anywhere_has_the_electricity_of_owned_gpus(tmp_path: Path) -> None:
    tariff = owned(tmp_path / "ours.toml", "electricity_price = 0.10\npue = 1.2\n")
    slo = parse_slo("ttft_p99<1s")
    for given, expected in ((None, (1.2, 0.1)), (Facility(electricity_price=0.5), (1.2, 0.5))):
        asked = question_of(
            "llama-3.1-8b", lambda _: LOAD, slo, gpus=["h200-sxm"], engines=["vllm"], tariff=tariff, facility=given
        )
        assert asked.metered == ("h200-sxm",)
        assert (asked.facility.pue, asked.facility.electricity_price) == expected


def test_rents_have_electricity_in_their_price(forecast: Forecast) -> None:
    plain, given = forecast.cost, replace(forecast, facility=Facility(electricity_price=0.3)).cost
    assert plain == given
