"""Layouts side by side, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from infercast.forecast.intervals import LEVEL
from infercast.forecast.layouts import LayoutCost, Load, comparison_notes, ranked
from infercast.report.intervals import format_interval, format_rates
from infercast.report.layout import grid, section, styled
from infercast.units import MILLI, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = (
    "layout", "GPUs", "weights a GPU", "KV tokens", "batch",
    "TTFT alone", "80 %", "TPOT", "80 %", "tokens/s", "80 %", "tokens/s a GPU", "basis",
)  # fmt: skip

BASIS = {
    "measured": "measured", "few-shot": "few points", "sibling": "sibling", "unseen": "other GPUs",
    "physics": "physics", "typical": "rough", "roofline": "bound",
}  # fmt: skip
"""What the weakest price of a row rests on, in a word or two."""
ROUGH = {
    "typical": "rough: no kernel of this vendor was measured; prices are the roofline at typical efficiencies",
    "roofline": "bound: the least that the hardware allows; engines take longer, so do not rank it beside estimates",
}


def render_layouts(model: str, load: Load, costs: Sequence[LayoutCost]) -> list[RenderableType]:
    """A table for each kind of GPU, best layouts first, and what does not fit in one line each."""
    parts: list[RenderableType] = [
        styled(
            f"{model}: {load.concurrency:,} sequences at once of {load.num_input:,} + {load.num_output:,} tokens; "
            "priced by one step with a prompt and one of decoding, not simulated"
        )
    ]
    for name in dict.fromkeys(cost.gpu.name for cost in estimates_first(costs)):
        own = ranked(cost for cost in costs if cost.gpu.name == name)
        fitting = [cost for cost in own if not cost.problem]
        title = own[0].gpu.title + (" (lower bounds: the best case)" if _are_bounds(fitting) else "")
        parts.append(section(title, grid(COLUMNS, map(_row, fitting)) if fitting else styled("nothing fits")))
        refused = [f"{cost.layout} ({cost.layout.gpus})" for cost in own if cost.problem]
        if refused:
            parts.append(styled(f"  does not fit: {', '.join(refused)}", style="dim"))
    parts += [styled(note, style="dim") for note in notes(costs)]
    return parts


def estimates_first(costs: Iterable[LayoutCost]) -> list[LayoutCost]:
    """In the order of the question, but GPUs of which only bounds are known come last."""
    return sorted(costs, key=lambda cost: cost.kind == "bound")


def notes(costs: Sequence[LayoutCost]) -> list[str]:
    """What to know before comparing these rows."""
    sources = {cost.source for cost in costs if not cost.problem}
    return [*(text for source, text in ROUGH.items() if source in sources), *comparison_notes(costs)]


def _are_bounds(costs: Sequence[LayoutCost]) -> bool:
    return any(cost.kind == "bound" for cost in costs)


def _row(cost: LayoutCost) -> tuple[str, ...]:
    return (
        str(cost.layout),
        f"{cost.layout.gpus}",
        format_bytes(cost.weights),
        f"{cost.kv_tokens:,}",
        f"{cost.batch:,}",
        format_seconds(cost.ttft),
        format_interval(*cost.ttft_interval),
        format_seconds(cost.tpot),
        format_interval(*cost.tpot_interval),
        f"{cost.output_tokens_per_second:,.0f}",
        format_rates(cost.output_tokens_per_second_interval),
        f"{cost.output_tokens_per_second_a_gpu:,.0f}",
        BASIS[cost.source],
    )


def layouts_list(costs: Iterable[LayoutCost]) -> list[dict[str, Any]]:
    """The same as plain data, in the order of the question."""
    return [
        {
            "gpu": cost.gpu.name,
            "gpus": cost.layout.gpus,
            "tensor_parallel_size": cost.layout.tensor,
            "pipeline_parallel_size": cost.layout.pipeline,
            "data_parallel_size": cost.layout.data,
            "enable_expert_parallel": cost.layout.experts,
            "fits": not cost.problem,
            "problem": cost.problem or None,
            "kind": None if cost.problem else cost.kind,
            "source": cost.source or None,
            "weight_bytes": cost.weights or None,
            "kv_tokens": cost.kv_tokens or None,
            "batch": cost.batch or None,
            "interval_level": LEVEL,
            "ttft_alone_ms": cost.ttft / MILLI or None,
            "ttft_alone_ms_interval": _ends(cost, cost.ttft_interval, MILLI),
            "tpot_ms": cost.tpot / MILLI or None,
            "tpot_ms_interval": _ends(cost, cost.tpot_interval, MILLI),
            "output_tokens_per_s": cost.output_tokens_per_second or None,
            "output_tokens_per_s_interval": _ends(cost, cost.output_tokens_per_second_interval, 1.0),
            "output_tokens_per_s_a_gpu": cost.output_tokens_per_second_a_gpu or None,
        }
        for cost in costs
    ]


def _ends(cost: LayoutCost, interval: tuple[float, float], scale: float) -> list[float] | None:
    """[low, high], or nothing where nothing fits."""
    return None if cost.problem else [end / scale for end in interval]
