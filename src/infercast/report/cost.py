"""SLO verdict, price, power, energy and carbon of a run, as tables and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.forecast.energy import Energy, FacilityEnergy
from infercast.forecast.result import Forecast, Verdict, prices_of
from infercast.hardware.server import Server
from infercast.report.fields import Field, at, cells, per, record
from infercast.report.quantities import COSTS, ENERGIES, PROMISES, format_interval
from infercast.report.terminal import facts, grid, section
from infercast.units import MILLI, format_joules, format_odds, format_percent, format_seconds, format_watts

if TYPE_CHECKING:
    from rich.console import RenderableType


LIMIT_FIELDS = (
    Field("", at("limit"), "limit"),
    Field("quantity", at("limit.quantity")),
    Field("percentile", at("limit.percentile")),
    Field("limit_ms", at("limit.seconds"), data=per(MILLI)),
    Field("forecast_ms", at("value"), "forecast", format_seconds, data=per(MILLI)),
    Field(
        "interval_ms", at("interval"), "80 % interval", lambda ends: format_interval(*ends),
        data=lambda ends: None if ends is None else [end / MILLI for end in ends],
    ),
    Field("headroom", at("headroom"), "headroom", "{:.2f} x".format),
    Field("odds", at("odds"), "odds", format_odds),
)  # fmt: skip
PRICE_FIELDS = ("provider", "kind", "date", "source")


def render_decision(forecast: Forecast) -> list[RenderableType]:
    from rich.console import Group  # noqa: PLC0415 - JSON needs none of it

    parts = []
    if forecast.verdict is not None:
        limits = grid(*cells(LIMIT_FIELDS, forecast.verdict.limits))
        parts.append(section(slo_title(forecast.verdict), Group(limits, facts(promise_rows(forecast)))))
    return [*parts, section("Cost", facts(cost_rows(forecast)))]


def render_verdict(verdict: Verdict) -> list[RenderableType]:
    return [section(slo_title(verdict), grid(*cells(LIMIT_FIELDS, verdict.limits)))]


def slo_title(verdict: Verdict) -> str:
    failing = [str(each.limit) for each in verdict.limits if each.headroom is not None and each.headroom <= 1.0]
    if verdict.holds:
        return "SLO: holds"
    return f"SLO: fails by {', '.join(failing)}" if failing else "SLO: fails, because more arrives than can be served"


def promise_rows(forecast: Forecast) -> list[tuple[str, str]]:
    return [row for each in PROMISES for row in each.facts(forecast)]


def cost_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What GPUs cost, by whose word, and what comes of it; or how to give a price."""
    rows = [row for each in COSTS for row in each.facts(forecast)]
    prices = [
        forecast.tariff.unknown(gpu) if price is None else price.description for _, gpu, price in prices_of(forecast)
    ]
    words = list(dict.fromkeys(prices))
    return [*rows, *(("price" if number == 0 else "", text) for number, text in enumerate(words))]


def price_words(forecast: Forecast) -> str:
    prices = [price for _, _, price in prices_of(forecast)]
    return "; ".join(dict.fromkeys("unknown" if each is None else each.whose for each in prices))


def decision_fields(forecast: Forecast) -> dict[str, Any]:
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
            for count, gpu, price in prices_of(forecast)
        ],
    }


def slo_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "text": str(verdict.slo),
        "holds": verdict.holds,
        "limits": [record(LIMIT_FIELDS, each) for each in verdict.limits],
    }


LEAST_SHARE = 0.01
"""Parts of the energy below this share are told together."""
BASIS = {
    "measured": "measured power of kernels on this GPU",
    "few-shot": "some measured kernels of this GPU",
    "sibling": "the measured power of a GPU of the same generation",
    "unseen": "its data sheet and the measured power of other GPUs",
    "physics": "its data sheet and the measured power of other GPUs",
}
"""What is known of a GPU's power, by the names of `predict.estimate.SOURCES`."""


def render_energy(forecast: Forecast) -> list[RenderableType]:
    rows = energy_rows(forecast)
    return [section("Energy", facts(rows))] if rows else []


def energy_rows(forecast: Forecast) -> list[tuple[str, str]]:
    energy, wall = forecast.energy, forecast.wall
    if energy is None or wall is None:
        return []
    rows = [row for each in ENERGIES for row in each.facts(forecast)]
    return [
        *rows,
        *_pool_rows(forecast, energy),
        ("80 % interval", f"{energy_interval(energy)} per output token of GPU energy"),
        ("goes into", part_words(energy)),
        *(("" if number else "server", text) for number, text in enumerate(server_words(wall))),
        ("rests on", BASIS.get(energy.source, energy.source)),
    ]


def _pool_rows(forecast: Forecast, energy: Energy) -> list[tuple[str, str]]:
    if len(energy.pools) == 1:
        return []
    return [
        (
            f"{pool.role} pool",
            f"{format_watts(drawn.mean_watts)} per GPU on average, {format_watts(drawn.peak_watts)} at most",
        )
        for pool, drawn in zip(forecast.pools, energy.pools, strict=True)
    ]


def energy_interval(energy: Energy) -> str:
    """The ends of the joules of an output token, with one unit if they share it."""
    low, high = (format_joules(energy.joules_per_output_token * factor) for factor in energy.interval)
    return f"{low.removesuffix(f' {high.split()[-1]}')} to {high}"


def part_words(energy: Energy) -> str:
    shares = {name: value / energy.joules for name, value in energy.by_part.items()}
    told = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    rest = sum(shares.values()) - sum(told.values())
    if rest >= 0.0005:
        told["other"] = rest
    return ", ".join(f"{name} {format_percent(share)}" for name, share in told.items())


def server_words(wall: FacilityEnergy) -> list[str]:
    """The factors between GPU boards and the wall, one sentence for each kind of server."""
    return [f"{_server_words(server)}; PUE {wall.pue:g}" for server in dict.fromkeys(wall.servers)]


def _server_words(server: Server) -> str:
    known = "fitted on servers at the wall" if server.fitted else "stated, not measured"
    share = f"of {server.gpus} GPUs" if server.gpus > 1 else "of one GPU"
    return f"{server.base_watts:g} W {share} and {server.factor:g} x their boards ({server.kind}, {known})"


def energy_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data; null where the power of a GPU is not known."""
    return {
        **{each.key: each.data(forecast) for each in ENERGIES},
        "energy": None if forecast.energy is None else _energy_dict(forecast.energy),
        "wall": None if forecast.wall is None else wall_dict(forecast.wall),
    }


def _energy_dict(energy: Energy) -> dict[str, Any]:
    return {
        "joules": energy.joules,
        "joules_interval": [energy.low, energy.high],
        "joules_per_output_token_interval": [energy.joules_per_output_token * each for each in energy.interval],
        "idle_watts_per_gpu": energy.idle_watts,
        "limit_watts_per_gpu": energy.limit_watts,
        "source": energy.source,
        "parts": [
            {"part": name, "joules": value, "share": value / energy.joules} for name, value in energy.by_part.items()
        ],
        "pools": [
            {"gpus": pool.gpus, "watts_per_gpu": pool.mean_watts, "peak_watts_per_gpu": pool.peak_watts}
            for pool in energy.pools
        ],
        "phases": [
            {
                "phase": phase.name,
                "joules": phase.joules,
                "watts_per_gpu": phase.watts,
                "burst_watts_per_gpu": phase.burst_watts,
                "joules_per_token": phase.joules_per_token,
            }
            for phase in energy.phases
        ],
    }


def wall_dict(wall: FacilityEnergy) -> dict[str, Any]:
    return {
        "gpu_watts": wall.gpu_watts,
        "server_watts": wall.server_watts,
        "watts": wall.watts,
        "peak_watts": wall.peak_watts,
        "joules": wall.joules,
        "joules_interval": [wall.low, wall.high],
        "kwh_per_day": wall.kilowatt_hours_per_day,
        "grams_co2_per_hour": wall.grams_co2_per_hour,
        "pue": wall.pue,
        "servers": [
            {
                "kind": server.kind,
                "gpus": server.gpus,
                "base_watts": server.base_watts,
                "factor": server.factor,
                "fitted": server.fitted,
            }
            for server in wall.servers
        ],
    }
