"""A forecast as tables, plain data and per-request CSV, with KV-cache tiers, sessions and classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from infercast.forecast.intervals import Intervals
from infercast.forecast.kernels import Phase
from infercast.forecast.result import Forecast
from infercast.forecast.run import EngineLoad, LinkRun, PoolRun, SessionsRun, TierRun, TierTransfer, drafts_of
from infercast.forecast.slo import NAMES, Percentiles
from infercast.forecast.system import BOTH, DECODE
from infercast.report.caveats import (
    TAKING_IN,
    TITLES,
    caveat_section,
    caveats,
    host_fields,
    host_rows,
    state_fields,
    state_rows,
)
from infercast.report.cost import decision_fields, energy_fields, render_decision, render_energy
from infercast.report.deployment import deployment_dict, deployment_facts, draft_rows, draft_run_dict, workload_dict
from infercast.report.fields import Field, at, cells, record
from infercast.report.quantities import (
    LATENCIES,
    LINK_PARTS,
    LOADS,
    OF_ENGINES,
    RESULTS,
    interval_fields,
    latencies_of,
    milliseconds,
    render_intervals,
)
from infercast.report.terminal import facts, grid, section, styled
from infercast.units import GIGA, MILLI, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def _limit_words(limits: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} < {format_seconds(seconds)}" for name, seconds in limits) or "-"


TURN_FIELDS = (
    Field("", at("name"), "turn"),
    Field("turn", at("first")),
    Field("and_later", lambda turn: turn.last is None),
    Field("requests", at("requests"), "requests", "{:,}".format),
    Field("input_tokens", at("input_tokens"), "prompt tokens", "{:,.0f}".format),
    Field("prefix_hit_rate", at("hit_share"), "found in cache", format_percent),
    Field("ttft_ms", at("ttft"), data=milliseconds),
    Field("end_to_end_ms", at("end_to_end"), data=milliseconds),
    Field("", at("ttft.p50"), "TTFT p50", format_seconds),
    Field("", at("ttft.p95"), "TTFT p95", format_seconds),
    Field("", at("end_to_end.p50"), "end to end p50", format_seconds),
)
CLASS_FIELDS = (
    Field("class", at("name"), "class"),
    Field("priority", at("priority"), "priority"),
    Field("requests", at("requests"), "requests", "{:,}".format),
    Field("limits_s", at("limits"), data=dict),
    Field("slo_attainment", at("attainment")),
    Field("ttft_ms", at("ttft"), data=milliseconds),
    Field("tpot_ms", at("tpot"), data=milliseconds),
    Field("end_to_end_ms", at("end_to_end"), data=milliseconds),
    Field("", at("ttft.p50"), "TTFT p50", format_seconds),
    Field("", at("ttft.p95"), "TTFT p95", format_seconds),
    Field("", at("tpot.p50"), "TPOT p50", format_seconds),
    Field("", at("end_to_end.p95"), "end to end p95", format_seconds),
    Field("", at("limits"), "SLO", _limit_words),
    Field("", at("attainment"), "attained", format_percent),
)


def session_rows(sessions: SessionsRun) -> list[tuple[str, str]]:
    time = sessions.time
    return [
        ("sessions", f"{sessions.count:,}, {sessions.turns_each:.1f} turns each on average"),
        (
            "session time",
            f"p50 {format_seconds(time.p50)}, p95 {format_seconds(time.p95)}; "
            f"{format_percent(sessions.waiting_share)} of it waiting for answers",
        ),
        ("prefix cache", f"{format_percent(sessions.hit_share)} of the sessions' prompt tokens found"),
    ]


def part_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data; keys are there only where a workload has such parts."""
    fields: dict[str, Any] = {}
    if (sessions := forecast.sessions) is not None:
        fields["sessions"] = {
            "count": sessions.count,
            "turns_each": sessions.turns_each,
            "time_ms": milliseconds(sessions.time),
            "waiting_share": sessions.waiting_share,
            "prefix_hit_rate": sessions.hit_share,
            "turns": [record(TURN_FIELDS, each) for each in sessions.turns],
        }
    if classes := forecast.classes:
        fields["classes"] = [record(CLASS_FIELDS, each) for each in classes]
    return fields


def tier_rows(pool: PoolRun) -> list[tuple[str, str]]:
    """What came from where, and what the copies took; nothing without a tier."""
    tier = pool.tier
    if tier is None:
        return []
    on_gpu = pool.prefix_hit_rate - tier.hit_rate
    rows = [
        (
            "KV cache tiers",
            f"{format_percent(on_gpu)} of prompt tokens found on the GPU, {format_percent(tier.hit_rate)} in host "
            f"memory, which was filled to {format_percent(tier.peak_use)}",
        ),
        ("KV copies", f"{_words(tier.load, 'loaded')}; {_words(tier.store, 'stored')}"),
    ]
    if tier.num_loaded:
        wait = format_seconds(tier.mean_wait)
        rows.append(
            ("KV loads", f"{tier.num_loaded:,} requests waited {wait} each, from the lookup to their first step")
        )
    if tier.num_refused:
        rows.append(
            ("KV stores", f"{tier.num_refused:,} times there was no room: the tier is too small for its copies")
        )
    return rows


def tier_dict(tier: TierRun | None) -> dict[str, Any] | None:
    """The same as plain data, by the names of vLLM's counters where it has them."""
    if tier is None:
        return None
    return {
        "cpu_hit_rate": tier.hit_rate,
        "cpu_cache_peak": tier.peak_use,
        "external_prefix_cache_queries": tier.queries,
        "external_prefix_cache_hits": tier.hits,
        **_fields("load", tier.load),
        **_fields("store", tier.store),
        "stores_refused": tier.num_refused,
        "held_up_s": tier.held_up,
        "loaded_requests": tier.num_loaded,
        "load_wait_ms": tier.mean_wait / MILLI,
    }


def _fields(name: str, way: TierTransfer) -> dict[str, Any]:
    return {
        f"kv_offload_{name}_copies": way.copies,
        f"kv_offload_{name}_bytes": way.num_bytes,
        f"kv_offload_{name}_time": way.seconds,
        f"{name}_link_use": way.use,
    }


def _words(way: TierTransfer, done: str) -> str:
    return f"{way.num_bytes / GIGA:,.1f} GB {done}, the link in use {format_percent(way.use)} of the run"


def request_rows(forecast: Forecast) -> Iterator[str]:
    columns = forecast.per_request()
    yield ",".join(columns) + "\n"
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield ",".join("" if isnan(cell) else repr(cell) for cell in row) + "\n"


SHOWN_ENGINES = 16
LEAST_SHARE = 0.0005
"""Kernel families below this share of a step are left out of tables."""
PHASE_COLUMNS = ("family", "share", "per step", "bound by", "source", "largest kernels")
PHASE_FIELDS = ("steps", "tokens", "seconds", "gpu_seconds", "host_bound_seconds")
FAMILY_FIELDS = ("family", "seconds", "share", "bound", "source")
"""What JSON says of phases and families."""


def render_forecast(forecast: Forecast, intervals: Intervals | None = None) -> list[RenderableType]:
    style = "bold" if forecast.state.is_steady else "bold red"
    about: list[RenderableType] = [styled(forecast.headline, style=style)]
    about += [section(title, facts(rows)) for title, rows in system_facts(forecast)]
    latencies = [(each.title, *latency_cells(values)) for each, values, _ in latencies_of(forecast)]
    title = "Latency, without ramp-up and drain" if forecast.steady_only else "Latency"
    parts = [
        *about,
        section(title, grid(("", *NAMES), latencies)),
        *([] if intervals is None else [render_intervals(intervals)]),
        *render_decision(forecast),
        *render_energy(forecast),
        *_render_parts(forecast),
        section("Load", facts(load_rows(forecast))),
    ]
    if len(forecast.engines) > 1:
        parts += [section(pool_title(each, "Engines"), grid(*engine_cells(each.engines))) for each in forecast.pools]
    for pool in forecast.pools:
        for phase in pool.phases:
            title = pool_title(pool, f"Where time goes in {phase_title(pool, phase)}")
            parts.append(section(title, grid(PHASE_COLUMNS, phase_cells(phase), notes_at=(3, 4, 5))))
    said = tuple(text for _, text in load_rows(forecast))  # what is said beside the load already is left out
    return [
        *parts,
        caveat_section(each for each in caveats(forecast) if not each.endswith(said)),
    ]


def _render_parts(forecast: Forecast) -> list[RenderableType]:
    parts = []
    if (sessions := forecast.sessions) is not None:
        parts.append(section("Sessions", facts(session_rows(sessions))))
        parts.append(section("Turns", grid(*cells(TURN_FIELDS, sessions.turns))))
    if classes := forecast.classes:
        parts.append(section("Classes", grid(*cells(CLASS_FIELDS, classes))))
    return parts


def forecast_dict(forecast: Forecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data, in milliseconds where a name says so; the same keys for every system."""
    one = len(forecast.pools) == 1
    return {
        "deployment": deployment_dict(forecast.deployment) if one else None,
        "pools": [_pool_dict(pool) for pool in forecast.pools],
        "link": None if forecast.link is None else _link_dict(forecast.link),
        "router": forecast.router,
        "gpus": forecast.gpus,
        "workload": workload_dict(forecast.workload),
        **{f"{latency.name}_ms": milliseconds(getattr(forecast, latency.name)) for latency in LATENCIES},
        **{each.key: each.data(forecast) for each in RESULTS},
        **decision_fields(forecast),
        **energy_fields(forecast),
        **part_fields(forecast),
        "duration_s": forecast.duration,
        **{each.key: each.data(forecast) for each in LOADS},
        "engines": [
            {"pool": pool.role, **{each.key: each.data(load) for each in OF_ENGINES}}
            for pool in forecast.pools
            for load in pool.engines
        ],
        "phases": [{"pool": pool.role, **_phase_dict(phase)} for pool in forecast.pools for phase in pool.phases],
        "speculation": draft_run_dict(drafts_of(forecast)),
        "headline": forecast.headline,
        **state_fields(forecast.state, forecast.steady, forecast.steady_only),
        **host_fields(forecast),
        "source": forecast.source,
        "kind": forecast.kind,
        "caveats": caveats(forecast),
        **interval_fields(intervals),
    }


def _pool_dict(pool: PoolRun) -> dict[str, Any]:
    return {
        "role": pool.role,
        "deployment": deployment_dict(pool.deployment),
        "instances": pool.pool.instances,
        "gpus": pool.pool.gpus,
        **{each.key: each.data(pool) for each in LOADS},
        "kv_offload": tier_dict(pool.tier),
    }


def _link_dict(link: LinkRun) -> dict[str, Any]:
    parts = {f"{part.name}_ms": milliseconds(getattr(link, part.name)) for part in LINK_PARTS}
    return {"name": link.name, "use": link.use, **parts}


def system_facts(forecast: Forecast) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was simulated, by sections: one, or one for each pool and one for what they share."""
    shared = [("workload", f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated")]
    if forecast.link is not None:
        use = f"{format_percent(forecast.link.use)} of the run in use by its busiest sender"
        shared.insert(0, ("link", f"{forecast.link.name}, {use}"))
    if len(forecast.pools) == 1:
        return [("What was simulated", [*pool_facts(forecast.pools[0]), *shared])]
    return [*((f"{pool.role.capitalize()} pool", pool_facts(pool)) for pool in forecast.pools), ("Both pools", shared)]


def pool_facts(pool: PoolRun) -> list[tuple[str, str]]:
    """What was put where, how often, and what is before several replicas."""
    several = [("engines", f"{pool.pool.instances:,} of these")] if pool.pool.instances > 1 else []
    router = [("router", pool.pool.engines.router)] if len(pool.records) > 1 else []
    return [*several, *deployment_facts(pool.deployment), *router]


def load_rows(forecast: Forecast) -> list[tuple[str, str]]:
    rows = state_rows(forecast.state, forecast.steady)
    for pool in forecast.pools:
        rows += _of_pool(pool, host_rows(pool.deployment, pool.phases))
    rows += [row for each in RESULTS for row in each.facts(forecast)]
    rows += draft_rows(forecast)
    for pool in forecast.pools:
        rows += _of_pool(pool, [row for each in LOADS for row in each.facts(pool)] + tier_rows(pool))
    return rows


def _of_pool(pool: PoolRun, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same rows with the name of one of two pools before theirs."""
    return rows if pool.role == BOTH else [(f"{pool.role} {name}", text) for name, text in rows]


def pool_title(pool: PoolRun, title: str) -> str:
    """A title that says which of two pools it is about."""
    return title if pool.role == BOTH else f"{pool.role.capitalize()} pool: {title[:1].lower()}{title[1:]}"


def engine_cells(engines: Sequence[EngineLoad]) -> tuple[list[str], list[list[str]]]:
    """What each replica did, as columns and rows; of many only the first, and the range of the others."""
    shown = len(engines) if len(engines) <= SHOWN_ENGINES else SHOWN_ENGINES - 1
    rows = [[f"{number}", *_ends([each])] for number, each in enumerate(engines[:shown])]
    if others := engines[shown:]:
        rows.append([f"{len(others):,} others", *_ends(others)])
    return ["engine", *(each.label for each in OF_ENGINES)], rows


def _ends(engines: Sequence[EngineLoad]) -> list[str]:
    """One replica, or the least and the most of several."""
    cells = []
    for quantity in OF_ENGINES:
        values = [quantity.of(each) for each in engines]
        low, high = quantity.write(min(values)), quantity.write(max(values))
        cells.append(low if low == high else f"{low.removesuffix(' %')} to {high}")
    return cells


def latency_cells(values: Percentiles | None) -> list[str]:
    if values is None:
        return ["-"] * len(NAMES)
    return [format_seconds(getattr(values, name)) for name in NAMES]


def phase_title(pool: PoolRun, phase: Phase) -> str:
    words = TAKING_IN if pool.role == DECODE and phase.name == "prefill" else TITLES[phase.name]
    return f"{words}: {phase.steps:,} steps, {format_seconds(phase.seconds / phase.steps)} each"


def phase_cells(phase: Phase) -> list[list[str]]:
    """Kernel families, and the time in which the GPU waited for its host: together the whole step."""
    parts = [(each.family, each.seconds, each.bound, each.source, each.kernels) for each in phase.families]
    if phase.host_bound_seconds > 0:
        parts.append(("GPU idle", phase.host_bound_seconds, phase.waits_for, "", ()))
    return [
        [
            name,
            format_percent(seconds / phase.whole),
            format_seconds(seconds / phase.steps),
            bound,
            source,
            ", ".join(kernel for kernel, _ in kernels[:4]),
        ]
        for name, seconds, bound, source, kernels in parts
        if seconds >= LEAST_SHARE * phase.whole
    ]


def _phase_dict(phase: Phase) -> dict[str, Any]:
    families = [
        {**{name: getattr(each, name) for name in FAMILY_FIELDS}, "kernels": dict(each.kernels)}
        for each in phase.families
    ]
    return {"phase": phase.name, **{name: getattr(phase, name) for name in PHASE_FIELDS}, "families": families}
