"""What a run draws, for people and for programs: GPU boards, servers at the wall, electricity and carbon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.forecast.energy import Energy
from infercast.forecast.result import Forecast
from infercast.forecast.wall import Wall
from infercast.hardware.servers import Server
from infercast.report.layout import facts, section
from infercast.report.quantities import ENERGIES
from infercast.units import format_joules, format_percent, format_watts

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    """A section for a terminal; none where the power of a GPU is not known."""
    rows = energy_rows(forecast)
    return [section("Energy", facts(rows))] if rows else []


def energy_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """Watts, joules, what they went into, and what stands around the GPUs."""
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
    """Power of each of two pools."""
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
    """The parts of the energy with their shares, the largest first."""
    shares = {name: value / energy.joules for name, value in energy.by_part.items()}
    told = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    rest = sum(shares.values()) - sum(told.values())
    if rest >= 0.0005:
        told["other"] = rest
    return ", ".join(f"{name} {format_percent(share)}" for name, share in told.items())


def server_words(wall: Wall) -> list[str]:
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


def wall_dict(wall: Wall) -> dict[str, Any]:
    """What is drawn at the wall, and by which factors."""
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
