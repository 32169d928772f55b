"""Prices of GPUs (lists of providers, a user's own, owned hardware), and what a run costs by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf
from os.path import exists, getmtime
from pathlib import Path
from typing import Any

from infercast.bundled import DATA, read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError, require
from infercast.forecast.energy import Facility
from infercast.forecast.slo import Slo, parse_slo
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.load import NOT_NEGATIVE, POSITIVE, TEXT, Rule, check_table, read_table
from infercast.lazy_classes import dataclass, fields, replace
from infercast.units import format_dollars

HEAD: dict[str, Rule] = {"provider": TEXT, "date": TEXT, "source": TEXT, "licence": TEXT}
PRICES = ("on_demand", "on_demand_lowest", "spot", "spot_lowest")
OF_GPU: dict[str, Rule] = {
    "catalogue_name": TEXT, **dict.fromkeys(PRICES, POSITIVE),
    **dict.fromkeys(("capital_cost", "watts", "electricity_price", "monthly"), NOT_NEGATIVE), "years": POSITIVE,
    "pue": ("a number of at least 1", lambda value: POSITIVE[1](value) and value >= 1),
}  # fmt: skip
HOURS_A_YEAR = 365.25 * 24
ON_DEMAND, SPOT, OWNED, GIVEN = "on-demand", "spot", "owned", "given"
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class PriceList:
    provider: str
    date: str
    source: str
    gpus: Mapping[str, Mapping[str, Any]]  # Fields of `OF_GPU` by name of a GPU; dollars, years, watts, dollars per kWh

    def owned_per_hour(self, gpu: str) -> float | None:
        """Dollars per hour of an owned GPU: its cost over its life, and electricity at constant power."""
        entry = self.gpus.get(gpu, {})
        if "capital_cost" not in entry:
            return None
        kilowatts = float(entry.get("watts", 0.0)) / 1000.0 * float(entry.get("pue", 1.0))
        lifetime = float(entry["years"]) * HOURS_A_YEAR
        electricity = kilowatts * float(entry.get("electricity_price", 0.0))
        return (
            float(entry["capital_cost"]) / lifetime + 12 * float(entry.get("monthly", 0.0)) / HOURS_A_YEAR + electricity
        )


@cache
def bundled_lists(gpu: str = "") -> dict[str, PriceList]:
    """Price lists by provider, of those that name a GPU."""
    paths = [path for path in sorted((DATA / "prices").glob("*.toml")) if gpu in path.read_text(encoding="utf-8")]
    return {path.stem: _list_of(path, read_data(path)) for path in paths}


def offers_of(gpu: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Provider, date and prices of all that have a GPU, the cheapest on demand first."""
    found = [(each.provider, each.date, each.gpus[gpu]) for each in bundled_lists(gpu).values() if gpu in each.gpus]
    return sorted(found, key=lambda offer: (offer[2].get("on_demand", inf), offer[0]))


@cache
def _read_file(path: Path, changed: float) -> PriceList:
    del changed
    if path.is_dir():
        raise FileFormatError(path, "is a directory, not a TOML file of prices")
    table = read_table(path, path)
    check_table({name: value for name, value in table.items() if not isinstance(value, dict)}, HEAD, path)
    found = _list_of(path, table)
    if not found.gpus:
        raise FileFormatError(path, "has no prices; write [h100-sxm] and on_demand = 2.5 below it, say")
    owned_fields = ("capital_cost", "years", "watts", "electricity_price", "pue", "monthly")
    for name, entry in found.gpus.items():
        check_table(entry, OF_GPU, path, f"{name}.")
        rented, bought = "on_demand" in entry or "spot" in entry, "capital_cost" in entry
        if rented == bought:
            problem = "has both" if rented else "needs"
            raise FileFormatError(path, f"{name} {problem} on_demand (or spot), for a rented GPU, or capital_cost")
        if bought and "years" not in entry:
            raise FileFormatError(path, f"{name} needs years with capital_cost, the time in which it is written off")
        if bought and "watts" in entry and "electricity_price" not in entry:
            raise FileFormatError(path, f"{name} needs electricity_price ($ per kWh) with watts")
        if rented and (strange := [field for field in owned_fields if field in entry]):
            raise FileFormatError(path, f"{name}.{strange[0]} belongs to a GPU that was bought, with capital_cost")
    return replace(found, gpus={gpu_called(name): entry for name, entry in found.gpus.items()})


def gpu_called(name: str) -> str:
    """The bundled name of a GPU, or an unknown name itself. A GPU with changed properties costs the same."""
    name = name.partition("+")[0]
    if name in gpu_names():
        return name
    try:
        return load_gpu(name).name
    except UnknownNameError:
        return name


def _list_of(path: Path, table: Mapping[str, Any]) -> PriceList:
    gpus = {name: value for name, value in table.items() if isinstance(value, dict)}
    return PriceList(table.get("provider", path.stem), table.get("date", ""), table.get("source", f"{path}"), gpus)


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Dollars per hour of one GPU, with its source."""

    gpu: str
    provider: str  # Empty where the price was given
    per_hour: float  # Dollars per hour of one GPU
    kind: str  # ``on-demand``, ``spot``, ``owned`` or ``given``
    date: str
    source: str
    providers: int = 1  # Number of providers of which this is the median
    metered: bool = False  # Whether electricity comes on top, by forecast power: owned GPUs without ``watts``
    watts: float | None = None  # Constant power of an owned GPU with its share of the server, if its price includes it
    electricity_price: float | None = None  # Dollars for each kWh, where the list of owned hardware says so ...
    pue: float | None = None  # ... and the factor of the building.

    def within(self, facility: Facility) -> GpuPrice:
        """The same in a building with another PUE, or with another price of electricity."""
        if self.watts is None:
            return self
        pue, electricity = (1.0 if self.pue is None else self.pue), self.electricity_price or 0.0
        known = facility.or_else(pue=pue, electricity_price=electricity)
        more = (known.pue or 1.0) * (known.electricity_price or 0.0) - pue * electricity
        per_hour = self.per_hour + self.watts / 1000.0 * more
        return replace(self, per_hour=per_hour, pue=known.pue, electricity_price=known.electricity_price)

    @property
    def description(self) -> str:
        """``$4.00 per GPU-hour of h200-sxm: verda, on demand, 2026-08-22 (median of 11 providers)``."""
        middle = f" (median of {self.providers} providers)" if self.providers > 1 else ""
        return f"{format_dollars(self.per_hour)} per GPU-hour of {self.gpu}: {self.whose}{middle}"

    @property
    def whose(self) -> str:
        """``verda, on demand, 2026-08-22``."""
        where = (self.provider, self.kind.replace("-", " "), self.date)
        return "as given" if self.kind == GIVEN else ", ".join(filter(None, where))


@dataclass(frozen=True, slots=True)
class Tariff:
    """Which prices to use; by default the median of on-demand prices."""

    provider: str | None = None
    spot: bool = False
    file: Path | None = None
    per_gpu_hour: float | None = None  # Dollars per GPU and hour, in place of any list
    api: str | None = None  # What an API asks for a million tokens, in and out: ``0.15/0.60``, or one price for both

    @property
    def of_api(self) -> tuple[float, float] | None:
        """Dollars for each token of prompts and of answers."""
        if self.api is None:
            return None
        try:
            prices = [float(part) / MILLION for part in self.api.split("/")]
        except ValueError:
            prices = []
        if not (1 <= len(prices) <= 2 and min(prices) >= 0 and 0 < sum(prices) < inf):
            raise InputError(f"api_price {self.api!r} must be dollars per million tokens as IN/OUT, such as 0.15/0.60")
        return prices[0], prices[-1]

    def __post_init__(self) -> None:
        _ = self.of_api
        if self.per_gpu_hour is None:
            return
        require(0 < self.per_gpu_hour < 1e6, "price_per_gpu_hour", "be dollars above 0", self.per_gpu_hour)
        if self.provider is not None or self.spot or self.file is not None:
            raise InputError("price_per_gpu_hour is the whole price; leave out provider, spot and prices")

    @staticmethod
    def of(price: Tariff | float | None) -> Tariff:
        """The prices that a program asks for: dollars per GPU and hour, or which list."""
        return price if isinstance(price, Tariff) else Tariff(per_gpu_hour=price)

    def price(self, gpu: str, facility: Facility | None = None) -> GpuPrice | None:
        """Price per hour of one GPU in a facility; None if not known. The median, as the cheapest are few and rarely
        free.
        """
        found = self._found(gpu_called(gpu)) if self.per_gpu_hour is None else None
        if self.per_gpu_hour is not None:
            found = GpuPrice(gpu, "", self.per_gpu_hour, GIVEN, "", "given")
        return found if found is None or facility is None else found.within(facility)

    def _found(self, gpu: str) -> GpuPrice | None:
        if self.file is not None:
            path = Path(self.file)
            own = _read_file(path, getmtime(path) if exists(path) else 0.0)  # again when it has changed
            if self.provider not in (None, own.provider):
                wrong = f"provider {self.provider!r} is not that of {self.file}, which is {own.provider!r}"
                raise InputError(f"{wrong}; leave it out")
            return _listed(own, gpu, spot=self.spot)
        if self.provider is not None:
            lists = bundled_lists()
            if self.provider.lower() not in lists:
                raise UnknownNameError("provider", self.provider, lists, " (or give your own prices in a file)")
            return _listed(lists[self.provider.lower()], gpu, spot=self.spot)
        prices = (_listed(each, gpu, spot=self.spot) for each in bundled_lists(gpu).values())
        offers = [price for price in prices if price is not None]
        if not offers:
            return None
        offers.sort(key=lambda price: (price.per_hour, price.provider))
        return replace(offers[(len(offers) - 1) // 2], providers=len(offers))  # of two in the middle the lower one

    def unknown(self, gpu: str) -> str:
        kind, of = (f"{SPOT} " if self.spot else ""), ("" if self.provider is None else f" of {self.provider}")
        where = "" if self.file is None else f" in {self.file}"
        how = "give --price-per-gpu-hour X, or --prices FILE with your own"
        return f"no {kind}price of {gpu}{of}{where} is known; {how}"


def around(prices: Iterable[GpuPrice | None], facility: Facility) -> Facility:
    """The facility with defaults from lists of owned hardware; no price of electricity where prices include it."""
    known = [price for price in prices if price is not None]
    for price in known:
        facility = facility.or_else(pue=price.pue, electricity_price=price.electricity_price)
    is_paid = any(price.watts is not None for price in known) and not any(price.metered for price in known)
    return replace(facility, electricity_price=None) if is_paid else facility


def price_of(gpu_name: str, **which: Any) -> GpuPrice | None:
    """Price per hour of one GPU by the fields of a `Tariff`; None if not known."""
    return Tariff(**which).price(gpu_name)


def _listed(prices: PriceList, gpu: str, *, spot: bool) -> GpuPrice | None:
    entry, owned = prices.gpus.get(gpu, {}), prices.owned_per_hour(gpu)
    kind = OWNED if owned is not None else SPOT if spot else ON_DEMAND
    per_hour = entry.get(kind.replace("-", "_")) if owned is None else owned
    if per_hour is None:
        return None
    price = GpuPrice(gpu, prices.provider, per_hour, kind, prices.date, prices.source)
    if owned is None:
        return price
    watts = entry.get("watts")
    powered = replace(price, electricity_price=entry.get("electricity_price"), pue=entry.get("pue"))
    return replace(powered, metered=watts is None, watts=None if watts is None else float(watts))


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars. Each is the whole cost, divided by one quantity: input and output tokens do not share it."""

    per_hour: float  # Dollars per hour of all GPUs
    per_request: float  # Dollars per request
    per_million_input_tokens: float  # Dollars, with the whole cost attributed to input tokens
    per_million_output_tokens: float  # Dollars, with the whole cost attributed to output tokens
    per_million_tokens: float  # Dollars, input and output tokens alike


def hourly(gpus: Sequence[tuple[int, GpuPrice | None]]) -> float | None:
    """Dollars per hour of all GPUs; None if a price is not known."""
    parts = [count * price.per_hour for count, price in gpus if price is not None]
    return sum(parts) if len(parts) == len(gpus) else None


def cost_at(per_hour: float, requests_per_second: float, input_tokens: float, output_tokens: float) -> Cost:
    """Cost per request and token; ``input_tokens`` and ``output_tokens`` are per second."""
    second = per_hour / 3600.0
    return Cost(
        per_hour=per_hour,
        per_request=second / requests_per_second,
        per_million_input_tokens=MILLION * second / input_tokens,
        per_million_output_tokens=MILLION * second / output_tokens,
        per_million_tokens=MILLION * second / (input_tokens + output_tokens),
    )


def slo_of(given: Mapping[str, Any]) -> Slo | None:
    return None if given["slo"] is None else parse_slo(given["slo"])


def tariff_of(given: Mapping[str, Any]) -> Tariff:
    """The prices that they ask for; a file or a provider that cannot be read is an error before anything is run."""
    named = given["provider"], given["spot"], given.get("prices"), given["price_per_gpu_hour"], given.get("api_price")
    tariff = Tariff(*named)
    if tariff.provider is not None or tariff.file is not None:
        tariff.price("")
    return tariff


def facility_of(given: Mapping[str, Any]) -> Facility:
    return Facility(**{each.name: given[each.name] for each in fields(Facility) if each.name in given})
