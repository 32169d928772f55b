"""What an hour of a GPU costs: by the lists of providers, by a user's own list, or as it is given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from infercast.errors import InputError
from infercast.forecast.price_list import PriceList, bundled_lists, gpu_called, provider_list, read_price_list
from infercast.forecast.wall import Facility
from infercast.units import format_dollars

ON_DEMAND, SPOT, OWNED, GIVEN = "on-demand", "spot", "owned", "given"
HOW_TO_GIVE = "give --price-per-gpu-hour X, or --prices FILE with your own"


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """$ an hour of one GPU, and who says so."""

    gpu: str
    provider: str
    """Empty where the price was given."""
    per_hour: float
    """Dollars per hour of one GPU."""
    kind: str
    """``on-demand``, ``spot``, ``owned`` or ``given``."""
    date: str
    source: str
    providers: int = 1
    """Of so many providers this is the middle one."""
    metered: bool = False
    """Whether electricity comes on top, by what a forecast says is drawn: owned GPUs without watts of their own."""
    watts: float | None = None
    """What an owned GPU draws all the time with its share of the server, whose electricity is in its price."""
    electricity_price: float | None = None
    """Dollars for each kWh, where the list of owned hardware says so ..."""
    pue: float | None = None
    """... and the factor of the building."""

    def within(self, facility: Facility) -> GpuPrice:
        """The same in a building with another PUE, or with another price of electricity."""
        if self.watts is None:
            return self
        pue, electricity = (1.0 if self.pue is None else self.pue), self.electricity_price or 0.0
        known = facility.or_else(pue, electricity)
        more = (known.pue or 1.0) * (known.electricity_price or 0.0) - pue * electricity
        per_hour = self.per_hour + self.watts / 1000.0 * more
        return replace(self, per_hour=per_hour, pue=known.pue, electricity_price=known.electricity_price)

    @property
    def description(self) -> str:
        """``$4.00 per h200-sxm and hour: verda, on demand, 2026-08-22 (the middle of 11 providers)``."""
        middle = f" (the middle of {self.providers} providers)" if self.providers > 1 else ""
        return f"{format_dollars(self.per_hour)} per {self.gpu} and hour: {self.whose}{middle}"

    @property
    def whose(self) -> str:
        """``verda, on demand, 2026-08-22``."""
        where = (self.provider, self.kind.replace("-", " "), self.date)
        return "as given" if self.kind == GIVEN else ", ".join(filter(None, where))


@dataclass(frozen=True, slots=True)
class Tariff:
    """Whose prices are asked for; by default on demand, of the provider in the middle."""

    provider: str | None = None
    spot: bool = False
    file: Path | None = None
    per_gpu_hour: float | None = None
    """Dollars per GPU and hour, in place of any list."""

    def __post_init__(self) -> None:
        if self.per_gpu_hour is None:
            return
        if not 0 < self.per_gpu_hour < 1e6:
            raise InputError(f"price_per_gpu_hour must be dollars above 0, not {self.per_gpu_hour:g}")
        if self.provider is not None or self.spot or self.file is not None:
            raise InputError("price_per_gpu_hour is the whole price; leave out provider, spot and prices")

    def price(self, gpu: str, facility: Facility | None = None) -> GpuPrice | None:
        """What an hour of one GPU costs in a facility; None where nobody says."""
        found = price_of(gpu, provider=self.provider, spot=self.spot, file=self.file, per_gpu_hour=self.per_gpu_hour)
        return found if found is None or facility is None else found.within(facility)

    def unknown(self, gpu: str) -> str:
        """What to say where no price is known."""
        kind, of = (f"{SPOT} " if self.spot else ""), ("" if self.provider is None else f" of {self.provider}")
        where = "" if self.file is None else f" in {self.file}"
        return f"no {kind}price of {gpu}{of}{where} is known; {HOW_TO_GIVE}"


def around(prices: Iterable[GpuPrice | None], facility: Facility) -> Facility:
    """What stands around GPUs of these prices: as it was given, and else as lists of owned hardware have it.

    Electricity is counted once: none is where all of it is in prices.
    """
    known = [price for price in prices if price is not None]
    for price in known:
        facility = facility.or_else(price.pue, price.electricity_price)
    is_paid = any(price.watts is not None for price in known) and not any(price.metered for price in known)
    return replace(facility, electricity_price=None) if is_paid else facility


def price_of(
    gpu_name: str,
    *,
    provider: str | None = None,
    spot: bool = False,
    file: str | Path | None = None,
    per_gpu_hour: float | None = None,
) -> GpuPrice | None:
    """What an hour of one GPU costs; None where nobody says.

    ``per_gpu_hour`` is taken as it is. ``file`` is a list of a user's own, and then the only one. ``provider`` names
    one of the bundled lists. Without any of these it is the provider in the middle of all that have this GPU: the
    cheapest is mostly a market where few GPUs are ever free.
    """
    if per_gpu_hour is not None:
        return GpuPrice(gpu_name, "", per_gpu_hour, GIVEN, "", "given")
    gpu = gpu_called(gpu_name)
    if file is not None:
        own = read_price_list(Path(file))
        if provider is not None and provider != own.provider:
            raise InputError(f"provider {provider!r} is not that of {file}, which is {own.provider!r}; leave it out")
        return _listed(own, gpu, spot=spot)
    if provider is not None:
        return _listed(provider_list(provider), gpu, spot=spot)
    return _middle(found for each in bundled_lists().values() if (found := _listed(each, gpu, spot=spot)) is not None)


def _listed(prices: PriceList, gpu: str, *, spot: bool) -> GpuPrice | None:
    """What one list says."""
    kind, per_hour = OWNED, prices.owned_per_hour(gpu)
    if per_hour is None:
        kind = SPOT if spot else ON_DEMAND
        per_hour = prices.gpus.get(gpu, {}).get(kind.replace("-", "_"))
    if per_hour is None:
        return None
    price = GpuPrice(gpu, prices.provider, per_hour, kind, prices.date, prices.source)
    entry = prices.gpus[gpu]
    if kind != OWNED:
        return price
    watts = entry.get("watts")
    powered = replace(price, electricity_price=entry.get("electricity_price"), pue=entry.get("pue"))
    return replace(powered, metered=True) if watts is None else replace(powered, watts=float(watts))


def _middle(prices: Iterable[GpuPrice]) -> GpuPrice | None:
    """The middle one of several, the lower of two."""
    ranked = sorted(prices, key=lambda price: (price.per_hour, price.provider))
    if not ranked:
        return None
    middle = ranked[(len(ranked) - 1) // 2]
    return replace(middle, providers=len(ranked))
