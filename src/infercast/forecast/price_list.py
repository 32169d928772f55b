"""Price lists: bundled ones of providers, and a user's own file with what GPUs are rented or were bought for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from infercast.bundled import DATA, read_data
from infercast.errors import FileFormatError, UnknownNameError
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.schema import NOT_NEGATIVE, POSITIVE, TEXT, Rule, check_table, read_table

HEAD: dict[str, Rule] = {"provider": TEXT, "date": TEXT, "source": TEXT, "licence": TEXT}
OWNED = ("capital_cost", "years", "watts", "electricity_price", "pue")
PRICES = ("on_demand", "on_demand_lowest", "spot", "spot_lowest")
AT_LEAST_ONE: Rule = ("a number of at least 1", lambda value: POSITIVE[1](value) and value >= 1)
OF_GPU: dict[str, Rule] = {
    "catalogue_name": TEXT,
    **dict.fromkeys(PRICES, POSITIVE),
    **dict.fromkeys(("capital_cost", "watts", "electricity_price"), NOT_NEGATIVE),
    "years": POSITIVE,
    "pue": AT_LEAST_ONE,
}
HOURS_A_YEAR = 365.25 * 24


@dataclass(frozen=True, slots=True)
class PriceList:
    """What the GPUs of one provider, or of a user, cost."""

    provider: str
    date: str
    source: str
    gpus: Mapping[str, Mapping[str, Any]]
    """Fields of `OF_GPU` by name of a GPU; dollars, years, watts, dollars per kWh."""

    def owned_per_hour(self, gpu: str) -> float | None:
        """$ an hour of a GPU that was bought: its cost over its life, and electricity at full power all the time."""
        entry = self.gpus.get(gpu, {})
        if "capital_cost" not in entry:
            return None
        kilowatts = float(entry.get("watts", 0.0)) / 1000.0 * float(entry.get("pue", 1.0))
        lifetime = float(entry["years"]) * HOURS_A_YEAR
        electricity = kilowatts * float(entry.get("electricity_price", 0.0))
        return float(entry["capital_cost"]) / lifetime + electricity


@cache
def bundled_lists() -> dict[str, PriceList]:
    """Those of all providers, by name."""
    paths = sorted((DATA / "prices").glob("*.toml"))
    return {path.stem: _list_of(read_data(f"prices/{path.name}")) for path in paths}


def offers_of(gpu: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Provider, date and prices of all that have a GPU, the cheapest on demand first."""
    found = [(each.provider, each.date, each.gpus[gpu]) for each in bundled_lists().values() if gpu in each.gpus]
    return sorted(found, key=lambda offer: (offer[2].get("on_demand", inf), offer[0]))


def provider_list(provider: str) -> PriceList:
    """That of one provider."""
    lists = bundled_lists()
    if provider.lower() not in lists:
        raise UnknownNameError("provider", provider, lists, " (or give your own prices in a file)")
    return lists[provider.lower()]


def read_price_list(path: Path) -> PriceList:
    """A user's own file; it is read again when it has changed."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return _read_file(path, changed)


@cache
def _read_file(path: Path, changed: int) -> PriceList:
    del changed
    if path.is_dir():
        raise FileFormatError(path, "is a directory, not a TOML file of prices")
    table = read_table(path, path)
    check_table({name: value for name, value in table.items() if not isinstance(value, dict)}, HEAD, path)
    entries = {name: value for name, value in table.items() if isinstance(value, dict)}
    if not entries:
        raise FileFormatError(path, "has no prices; write [h100-sxm] and on_demand = 2.5 below it, say")
    for name, entry in entries.items():
        _check_entry(name, entry, path)
    gpus = {gpu_called(name): entry for name, entry in entries.items()}
    return _list_of({"provider": path.stem, "date": "", "source": f"{path}", **table}, gpus)


def _check_entry(name: str, entry: Mapping[str, Any], path: Path) -> None:
    check_table(entry, OF_GPU, path, f"{name}.")
    rented, bought = "on_demand" in entry or "spot" in entry, "capital_cost" in entry
    if rented == bought:
        problem = "has both" if rented else "needs"
        raise FileFormatError(path, f"{name} {problem} on_demand (or spot), for a rented GPU, or capital_cost")
    if bought and "years" not in entry:
        raise FileFormatError(path, f"{name} needs years beside capital_cost, the time in which it is written off")
    if bought and "watts" in entry and "electricity_price" not in entry:
        raise FileFormatError(path, f"{name} needs electricity_price ($ per kWh) beside watts")
    if rented and (strange := [field for field in OWNED if field in entry]):
        raise FileFormatError(path, f"{name}.{strange[0]} belongs to a GPU that was bought, with capital_cost")


def gpu_called(name: str) -> str:
    """Our name of a GPU; a name that we do not know is somebody's own. One with other properties costs what it did."""
    name = name.partition("+")[0]
    if name in gpu_names():
        return name
    try:
        return load_gpu(name).name
    except UnknownNameError:
        return name


def _list_of(table: Mapping[str, Any], gpus: Mapping[str, Mapping[str, Any]] | None = None) -> PriceList:
    own = {name: value for name, value in table.items() if isinstance(value, dict)}
    return PriceList(table["provider"], table["date"], table["source"], own if gpus is None else gpus)
