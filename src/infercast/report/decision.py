"""What decides about a deployment: whether it keeps a promise, how sure that is, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.forecast.cost import prices_of
from infercast.forecast.result import Forecast
from infercast.forecast.verdict import JudgedLimit, Verdict
from infercast.report.intervals import format_interval
from infercast.report.layout import facts, grid, section
from infercast.report.quantities import COSTS, PROMISES
from infercast.units import MILLI, format_odds, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT_COLUMNS = ("limit", "forecast", "80 % interval", "headroom", "odds")
PRICE_FIELDS = ("provider", "kind", "date", "source")


def render_decision(forecast: Forecast) -> list[RenderableType]:
    """Tables for a terminal: the SLO if there is one, and the cost."""
    from rich.console import Group  # noqa: PLC0415 - JSON needs none of it

    parts = []
    if forecast.verdict is not None:
        limits = grid(LIMIT_COLUMNS, limit_cells(forecast.verdict))
        parts.append(section(slo_title(forecast.verdict), Group(limits, facts(promise_rows(forecast)))))
    return [*parts, section("Cost", facts(cost_rows(forecast)))]


def render_verdict(verdict: Verdict) -> list[RenderableType]:
    """The limits alone, for a terminal."""
    return [section(slo_title(verdict), grid(LIMIT_COLUMNS, limit_cells(verdict)))]


def slo_title(verdict: Verdict) -> str:
    """Whether it holds, by the forecast's own numbers."""
    failing = [str(each.limit) for each in verdict.limits if each.headroom is not None and each.headroom <= 1.0]
    if verdict.holds:
        return "SLO: holds"
    return f"SLO: fails by {', '.join(failing)}" if failing else "SLO: fails, because more arrives than can be served"


def limit_cells(verdict: Verdict) -> list[list[str]]:
    """One row a limit."""
    return [_cells(each) for each in verdict.limits]


def _cells(each: JudgedLimit) -> list[str]:
    if each.value is None or each.interval is None or each.headroom is None:
        return [str(each.limit), "-", "-", "-", format_odds(each.odds)]
    ends = format_interval(*each.interval)
    return [str(each.limit), format_seconds(each.value), ends, f"{each.headroom:.2f} x", format_odds(each.odds)]


def promise_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """All limits together."""
    return [row for each in PROMISES for row in each.facts(forecast)]


def cost_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What GPUs cost, by whose word, and what comes of it; or how to give a price."""
    rows = [row for each in COSTS for row in each.facts(forecast)]
    prices = [
        forecast.tariff.unknown(gpu) if price is None else price.description
        for _, gpu, price in prices_of(forecast, forecast.tariff)
    ]
    words = list(dict.fromkeys(prices))
    return [*rows, *(("price" if number == 0 else "", text) for number, text in enumerate(words))]


def price_words(forecast: Forecast) -> str:
    """Whose prices stand behind the cost, and of when."""
    prices = [price for _, _, price in prices_of(forecast, forecast.tariff)]
    return "; ".join(dict.fromkeys("unknown" if each is None else each.whose for each in prices))


def decision_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "slo": None if forecast.verdict is None else slo_dict(forecast.verdict),
        **{each.key: each.data(forecast) for each in (*PROMISES, *COSTS)},
        "prices": [
            {
                "gpu": gpu,
                "gpus": count,
                "usd_per_gpu_hour": None if price is None else price.per_hour,
                **{name: None if price is None else getattr(price, name) or None for name in PRICE_FIELDS},
            }
            for count, gpu, price in prices_of(forecast, forecast.tariff)
        ],
    }


def slo_dict(verdict: Verdict) -> dict[str, Any]:
    """An SLO and each of its limits as plain data."""
    return {
        "text": str(verdict.slo),
        "holds": verdict.holds,
        "limits": [
            {
                "quantity": each.limit.quantity,
                "percentile": each.limit.percentile,
                "limit_ms": each.limit.seconds / MILLI,
                "forecast_ms": None if each.value is None else each.value / MILLI,
                "interval_ms": None if each.interval is None else [end / MILLI for end in each.interval],
                "headroom": each.headroom,
                "odds": each.odds,
            }
            for each in verdict.limits
        ],
    }
