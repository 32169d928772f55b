"""What candidates of a plan draw: before anything is timed, and as a simulation has it.

A power budget is held against what the servers draw at the wall while every GPU is in its step that draws most: what a
circuit must carry. Cooling (PUE) is not in it, as budgets of racks and rooms are given for servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infercast.forecast.plan.axes import device_of
from infercast.forecast.wall import server_around, wall_watts
from infercast.hardware.servers import Server
from infercast.predict.energy.model import board_power
from infercast.units import format_watts

if TYPE_CHECKING:
    from infercast.forecast.plan.candidate import Candidate
    from infercast.forecast.plan.question import Question
    from infercast.forecast.result import Forecast

BUSY = 0.6
"""Share of its limit that a board draws on average while it serves, roughly: for an order before anything is timed."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What all GPUs of a candidate draw."""

    gpu_watts: float
    """Of the boards, on average."""
    wall_watts: float
    """With servers and building, on average."""
    peak_watts: float
    """Of the servers at the wall, without the building, while every GPU is in its step that draws most."""
    joules_per_output_token: float
    """Of the boards ..."""
    wall_joules_per_output_token: float
    """... and with servers and building."""
    usd_per_hour: float | None
    """Of electricity; None without a price."""
    grams_co2_per_million_output_tokens: float | None
    """None without a factor of the grid."""
    low: float
    """The ends of the 80 % interval of the boards' joules, as factors."""
    high: float
    source: str
    """What the power of the GPUs is known from."""


def drawn_of(forecast: Forecast, times: int = 1) -> Drawn | None:
    """What a forecast draws, of which there are so many side by side; None where the power of a GPU is not known."""
    energy, wall = forecast.energy, forecast.wall
    if energy is None or wall is None:
        return None
    return Drawn(
        gpu_watts=times * wall.gpu_watts,
        wall_watts=times * wall.watts,
        peak_watts=times * wall.peak_watts / wall.pue,
        joules_per_output_token=energy.joules_per_output_token,
        wall_joules_per_output_token=wall.joules_per_output_token,
        usd_per_hour=None if wall.usd_per_hour is None else times * wall.usd_per_hour,
        grams_co2_per_million_output_tokens=wall.grams_co2_per_million_output_tokens,
        low=energy.low / energy.joules,
        high=energy.high / energy.joules,
        source=energy.source,
    )


def least_watts(question: Question, candidate: Candidate) -> float:
    """What its servers draw at the wall at least, before anything is timed: GPUs that idle."""
    return wall_watts([(*_placed(question, pool), _idle(question, pool)) for pool in candidate.pools], 1.0)


def rough_joules(question: Question, candidate: Candidate) -> float:
    """Joules at the wall of an output token, roughly: GPUs that draw a usual share of their limit."""
    boards = [(*_placed(question, pool), BUSY * _limit(question, pool)) for pool in candidate.pools]
    return wall_watts(boards, question.facility.pue or 1.0) / question.output_tokens_per_second


def beyond_budget(question: Question, cost: float | None, drawn: Drawn | None) -> str:
    """Which budget a simulated candidate breaks, in words; empty if none."""
    power, money = question.power_budget, question.budget
    if money is not None and cost is not None and cost > money:
        return f"costs ${cost:,.2f} per hour with electricity, above the budget of ${money:,.2f}"
    if power is not None and drawn is not None and drawn.peak_watts > power:
        return f"draws {format_watts(drawn.peak_watts)} at most, above the power budget of {format_watts(power)}"
    return ""


def _placed(question: Question, pool: Candidate) -> tuple[int, Server]:
    server = server_around(device_of(pool.gpu, question.network), question.facility)
    return pool.replicas * pool.layout.gpus, server


def _idle(question: Question, pool: Candidate) -> float:
    return board_power(device_of(pool.gpu, question.network)).idle_watts


def _limit(question: Question, pool: Candidate) -> float:
    return pool.power_limit or device_of(pool.gpu, question.network).tdp
