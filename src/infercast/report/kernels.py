"""The kernels of one step, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.engines.deployment import Deployment
from infercast.forecast.explain.kernels import KernelCost, StepCost
from infercast.forecast.kernel_power import KernelPower
from infercast.forecast.notes import estimate_notes
from infercast.report.deployment import deployment_dict, deployment_facts
from infercast.report.layout import facts, grid, section
from infercast.units import MICRO, format_joules, format_percent, format_rate, format_seconds, format_watts

PICO = 1e-12

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_step(
    deployment: Deployment, cost: StepCost, question: str, *, explain: bool = False
) -> list[RenderableType]:
    """Tables for a terminal; with ``explain``, what each estimate is made of."""
    parts = [section("Deployment", facts(deployment_facts(deployment))), *render_cost(cost, question)]
    if notes := estimate_notes(deployment):
        parts.append(section("Notes", facts((f"{number}", note) for number, note in enumerate(notes, start=1))))
    if explain:
        parts.append(section("What one launch is made of", facts(_explained(kernel) for kernel in _ranked(cost))))
    return parts


def render_cost(cost: StepCost, question: str = "") -> list[RenderableType]:
    """A step and its kernels, whatever it ran on."""
    padded = f", padded to {cost.padded_tokens:,}" if cost.padded_tokens != cost.num_tokens else ""
    gpu = cost.gpu
    summary = [
        *([("step", question)] if question else []),
        ("tokens", f"{cost.num_tokens:,}{padded}, launched as {cost.launch}"),
        ("all kernels", f"{format_seconds(float(gpu.seconds))} (80 % interval {_interval(cost)}, {gpu.source})"),
        ("between them", f"{format_seconds(cost.gap_seconds)} in which the GPU idles"),
        ("host time", f"{format_seconds(cost.host_seconds)}, hidden where the GPU takes longer"),
        ("step time", format_seconds(cost.seconds)),
        ("step energy", f"{format_joules(cost.joules)} per GPU, {format_watts(cost.watts)} ({cost.board.source})"),
    ]
    columns = ("kernel", "family", "launches", "one", "all", "share", "bound by", "reaches", "limit", "power", "energy")
    rows = [_row(kernel, cost) for kernel in _ranked(cost)]
    return [
        section("Step", facts(summary)),
        section("Kernels", grid(columns, rows, text_columns=2, notes_at=(6,))),
    ]


def _explained(kernel: KernelCost) -> tuple[str, str]:
    """The terms of one estimate, largest first; factors last."""
    seconds = sorted(((value, name) for name, value in kernel.terms.items() if "factor" not in name), reverse=True)
    factors = [(name, value) for name, value in kernel.terms.items() if "factor" in name]
    words = [f"{name} {format_seconds(value)}" for value, name in seconds if value > 0]
    return kernel.name, ", ".join([*words, *(f"{name} {value:.2f}" for name, value in factors)])


def step_dict(deployment: Deployment, cost: StepCost) -> dict[str, Any]:
    """The same as plain data."""
    found = cost_dict(cost)
    kernels = found.pop("kernels")
    notes = estimate_notes(deployment)
    return {"deployment": deployment_dict(deployment), **found, "notes": notes, "kernels": kernels}


def cost_dict(cost: StepCost) -> dict[str, Any]:
    """A step as plain data, whatever it ran on."""
    return {
        "num_tokens": cost.num_tokens,
        "padded_tokens": cost.padded_tokens,
        "launch": cost.launch,
        "gpu_us": float(cost.gpu.seconds) / MICRO,
        "gpu_low_us": float(cost.gpu.low) / MICRO,
        "gpu_high_us": float(cost.gpu.high) / MICRO,
        "gap_us": cost.gap_seconds / MICRO,
        "host_us": cost.host_seconds / MICRO,
        "step_us": cost.seconds / MICRO,
        "joules": cost.joules,
        "watts": cost.watts,
        "power_source": cost.board.source,
        "source": cost.gpu.source,
        "kind": cost.kind,
        "kernels": [_kernel_dict(kernel, cost) for kernel in _ranked(cost)],
    }


def _ranked(cost: StepCost) -> list[KernelCost]:
    return sorted(cost.kernels, key=lambda kernel: -kernel.seconds)


def _interval(cost: StepCost) -> str:
    return f"{format_seconds(float(cost.gpu.low))} to {format_seconds(float(cost.gpu.high))}"


def _row(kernel: KernelCost, cost: StepCost) -> tuple[str, ...]:
    return (
        kernel.name,
        kernel.family,
        f"{kernel.count:,}",
        format_seconds(float(kernel.estimate.seconds)),
        format_seconds(kernel.seconds),
        format_percent(kernel.seconds / float(cost.gpu.seconds)),
        str(kernel.estimate.bound),
        format_rate(kernel.achieved, kernel.unit),
        format_rate(kernel.limit, kernel.unit),
        format_watts(kernel.watts(cost.board)),
        format_joules(kernel.joules(cost.board)),
    )


def _kernel_dict(kernel: KernelCost, cost: StepCost) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "family": kernel.family,
        "launches": kernel.count,
        "us": float(kernel.estimate.seconds) / MICRO,
        "low_us": float(kernel.estimate.low) / MICRO,
        "high_us": float(kernel.estimate.high) / MICRO,
        "total_us": kernel.seconds / MICRO,
        "source": kernel.estimate.source,
        "bound": str(kernel.estimate.bound),
        "achieved": kernel.achieved,
        "limit": kernel.limit,
        "unit": kernel.unit,
        "watts": kernel.watts(cost.board),
        "joules": kernel.joules(cost.board) / kernel.count,
        "total_joules": kernel.joules(cost.board),
        "terms": kernel.terms,
    }


def power_facts(power: KernelPower) -> list[tuple[str, str]]:
    """What a board draws while a kernel runs again and again."""
    limited = ", the board's limit: without a pause launches take longer" if power.is_limited else ""
    interval = f"80 % interval {format_watts(power.low)} to {format_watts(power.high)}, {power.source}"
    per_flop = power.joules_per_flop
    each = "" if per_flop is None else f", {per_flop / PICO:.3g} pJ per FLOP"
    found = [
        ("board power", f"{format_watts(power.watts)}{limited} ({interval})"),
        ("energy", f"{format_joules(power.joules)} per launch{each}"),
    ]
    if power.meter_watts is not None and power.meter_low is not None and power.meter_high is not None:
        read = f"80 % interval {format_watts(power.meter_low)} to {format_watts(power.meter_high)}"
        found.append(("a meter shows", f"{format_watts(power.meter_watts)} over at most 3,000 launches ({read})"))
    return found


def power_dict(power: KernelPower) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "watts": power.watts,
        "low_watts": power.low,
        "high_watts": power.high,
        "joules": power.joules,
        "joules_per_flop": power.joules_per_flop,
        "limited": power.is_limited,
        "source": power.source,
        "meter_watts": power.meter_watts,
        "meter_low_watts": power.meter_low,
        "meter_high_watts": power.meter_high,
    }
