"""What GPUs cost, by whose word, and what comes of it for requests and tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infercast import FileFormatError, InputError, Tariff, UnknownNameError, deploy, simulate
from infercast.forecast.cost import HEAD, HOURS_A_YEAR, OF_GPU, GpuPrice, bundled_lists, cost_at, price_of
from infercast.hardware import gpu_names
from infercast.hardware.load import check_table
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.units import format_dollars

OWN = """
provider = "our cluster"
date = "2026-09-01"

[H200]
capital_cost = 35066
years = 4
watts = 1000
electricity_price = 0.10
pue = 1.25

[my-chip]
on_demand = 1.5
spot = 0.5
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_bundled_lists_are_whole() -> None:
    lists = bundled_lists()
    assert len(lists) > 20
    for name, each in lists.items():
        assert each.provider == name
        assert each.date == "2026-08-22"
        assert "skypilot-catalog, commit f2624ac056eee0df80c03f2e757c5d9dbf4623ed" in each.source
        assert set(each.gpus) <= set(gpu_names())
        for gpu, entry in each.gpus.items():
            check_table(entry, OF_GPU, name, gpu)
            for kind in ("on_demand", "spot"):
                assert (kind in entry) == (f"{kind}_lowest" in entry)
                assert entry.get(f"{kind}_lowest", 0.0) <= entry.get(kind, 0.0)
    assert "licence" in HEAD


def test_the_provider_in_the_middle_is_the_default() -> None:
    found = price_of("H100")
    assert found is not None
    offered = sorted(each.gpus["h100-sxm"]["on_demand"] for each in bundled_lists().values() if "h100-sxm" in each.gpus)
    assert found.per_hour == offered[(len(offered) - 1) // 2]
    assert found.providers == len(offered)
    assert (found.gpu, found.kind, found.date) == ("h100-sxm", "on-demand", "2026-08-22")
    assert found.provider in found.description
    assert "2026-08-22" in found.description


def test_a_provider_by_name_and_spot() -> None:
    on_demand, spot = price_of("h100-sxm", provider="AWS"), price_of("h100-sxm", provider="aws", spot=True)
    assert on_demand is not None
    assert spot is not None
    assert spot.kind == "spot"
    assert spot.per_hour < on_demand.per_hour == 7.3616
    assert price_of("h100-sxm", provider="lambda", spot=True) is None
    with pytest.raises(UnknownNameError, match="unknown provider 'awss'; did you mean aws"):
        price_of("h100-sxm", provider="awss")


def test_a_price_that_nobody_knows_is_none() -> None:
    assert price_of("h20") is None
    assert price_of("some-chip") is None
    assert Tariff(spot=True).unknown("h20") == (
        "no spot price of h20 is known; give --price-per-gpu-hour X, or --prices FILE with your own"
    )


def test_a_given_price_is_taken_as_it_is() -> None:
    assert price_of("some-chip", per_gpu_hour=2.5) == GpuPrice("some-chip", "", 2.5, "given", "", "given")
    with pytest.raises(InputError, match="above 0"):
        Tariff(per_gpu_hour=0.0)
    with pytest.raises(InputError, match="leave out provider"):
        Tariff(per_gpu_hour=2.0, provider="aws")


def test_owned_hardware_is_written_off_and_powered(own: Path) -> None:
    found = price_of("h200-sxm", file=own)
    assert found is not None
    assert found.per_hour == pytest.approx(35066 / (4 * HOURS_A_YEAR) + 1.0 * 1.25 * 0.10)
    dollars = format_dollars(found.per_hour)
    assert found.description == f"{dollars} per GPU-hour of h200-sxm: our cluster, owned, 2026-09-01"


def test_an_own_file_is_the_only_list(own: Path) -> None:
    rented = price_of("my-chip", file=own, spot=True)
    assert rented is not None
    assert rented.per_hour == 0.5
    assert price_of("l4", file=own) is None
    assert str(own) in Tariff(file=own).unknown("l4")
    with pytest.raises(InputError, match="which is 'our cluster'"):
        price_of("my-chip", file=own, provider="aws")


def test_an_own_file_that_changes_is_read_again(own: Path) -> None:
    import os  # noqa: PLC0415 - this test alone

    assert price_of("my-chip", file=own) is not None
    own.write_text(OWN.replace("1.5", "1.75"), encoding="utf-8")
    os.utime(own, ns=(1, 1))
    found = price_of("my-chip", file=own)
    assert found is not None
    assert found.per_hour == 1.75


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no prices"),
        ("[h100-sxm]\non_demnd = 2", "did you mean on_demand"),
        ("[h100-sxm]\non_demand = -2", "must be a finite number"),
        ("[h100-sxm]\nwatts = 700", "needs on_demand"),
        ("[h100-sxm]\non_demand = 2\ncapital_cost = 30000", "has both"),
        ("[h100-sxm]\ncapital_cost = 30000", "needs years"),
        ("[h100-sxm]\ncapital_cost = 30000\nyears = 4\nwatts = 700", "needs electricity_price"),
        ("[h100-sxm]\non_demand = 2\nwatts = 700", "h100-sxm.watts belongs to a GPU that was bought"),
        ("[h100-sxm]\ncapital_cost = 3\nyears = 4\npue = 0.9", "at least 1"),
        ("provder = 'me'\n[h100-sxm]\non_demand = 2", "did you mean provider"),
        ("[h100-sxm", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError) as problem:
        price_of("h100-sxm", file=path)
    assert words in str(problem.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.toml", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(FileFormatError, match=words):
            price_of("h100-sxm", file=path)


def test_what_tokens_and_requests_cost() -> None:
    cost = cost_at(per_hour=36.0, requests_per_second=2.0, input_tokens=1000.0, output_tokens=250.0)
    assert cost.per_request == pytest.approx(0.005)
    assert cost.per_million_input_tokens == pytest.approx(10.0)
    assert cost.per_million_output_tokens == pytest.approx(40.0)
    assert cost.per_million_tokens == pytest.approx(8.0)


@pytest.fixture(scope="module")
def forecast() -> Any:
    workload = synthetic_workload(rate=8, count=30, input_lengths="uniform:50:900", output_lengths="uniform:2:60")
    return simulate(deploy("llama-3.1-8b", "h200-sxm", data_parallel_size=2), workload)


def test_a_run_costs_its_gpus(forecast: Any) -> None:
    cost = replace(forecast, tariff=Tariff(per_gpu_hour=1.8)).cost
    assert cost is not None
    assert cost.per_hour == 3.6
    paid = forecast.duration * cost.per_hour / 3600
    requests = forecast.workload.requests
    assert cost.per_request * len(requests) == pytest.approx(paid)
    assert cost.per_million_input_tokens * sum(each.num_input for each in requests) / 1e6 == pytest.approx(paid)
    assert cost.per_million_output_tokens * sum(each.num_output for each in requests) / 1e6 == pytest.approx(paid)
    default = price_of("h200-sxm")
    assert default is not None
    assert forecast.cost.per_hour == pytest.approx(2 * default.per_hour)


def test_two_pools_pay_for_both_kinds_of_gpu_or_nothing_is_known(forecast: Any) -> None:
    prefill, decode = deploy("qwen3-0.6b", "h100-sxm"), deploy("qwen3-0.6b", "h20")
    workload = synthetic_workload(rate=4, count=10, input_lengths=100, output_lengths=10)
    run = simulate(decode, workload, prefill=prefill, decode_instances=2)
    assert run.cost is None
    cost = replace(run, tariff=Tariff(per_gpu_hour=1.0)).cost
    assert cost is not None
    assert cost.per_hour == 3.0


def test_dollars_as_people_read_them() -> None:
    amounts = (1234.5, 12.4, 1.0, 0.5, 0.0123, 0.000103)
    assert [*map(format_dollars, amounts)] == ["$1,234.50", "$12.40", "$1.00", "$0.500", "$0.0123", "$0.000103"]
