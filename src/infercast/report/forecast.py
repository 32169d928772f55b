"""A forecast as tables, plain data and CSV: latencies, SLO, cost, energy, load, tiers, sessions and classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from infercast import units
from infercast.engines.base import package_of
from infercast.forecast import run
from infercast.forecast.diagnosis.diagnose import BOUNDS, RunDiagnosis
from infercast.forecast.energy import Energy, FacilityEnergy
from infercast.forecast.intervals import Intervals
from infercast.forecast.kernels import Phase
from infercast.forecast.result import Forecast, JudgedLimit, Verdict, prices_of
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.slo import NAMES, Percentiles
from infercast.forecast.steady import CUT, LATE
from infercast.forecast.system import BOTH, DECODE
from infercast.hardware.load import Server
from infercast.report import deployment as deployments
from infercast.report import diagnosis as findings
from infercast.report import quantities
from infercast.report.caveats import (
    SENTENCES,
    TAKING_IN,
    TITLES,
    brief_doubts,
    caveat_section,
    caveats,
    host_fields,
    host_rows,
    state_fields,
)
from infercast.report.files import csv_lines
from infercast.report.terminal import (
    SCREEN,
    Facts,
    Field,
    Grid,
    Group,
    Paragraph,
    Printable,
    Renderers,
    Section,
    at,
    cells,
    in_ms,
    named_first,
    pick,
    record,
    styled,
)

LIMIT_FIELDS: tuple[Field[JudgedLimit], ...] = (
    Field("", lambda each: each.limit, "limit"), Field("quantity", lambda each: each.limit.quantity),
    Field("percentile", lambda each: each.limit.percentile), Field("limit_ms", lambda each: in_ms(each.limit.seconds)),
    Field("forecast_ms", lambda each: each.value, "forecast", units.format_seconds, data=in_ms),
    Field("interval_ms", lambda each: each.interval, "80 % interval", quantities.format_ends, data=quantities.ends_ms),
    Field("headroom", lambda each: each.headroom, "headroom", "{:.2f} x".format),
    Field("odds", lambda each: each.odds, "odds", units.format_odds),
)  # fmt: skip
SHOWN_ENGINES = 16
PHASE_COLUMNS = ("family", "share", "per step", "bound by", "source", "largest kernels")
IN_BRIEF = ("p50", "p95", "p99")
MORE = "--full (all tables), --breakdown (where time goes), --report run.html, --json"


def render_decision(forecast: Forecast) -> list[Printable]:
    parts = []
    if forecast.verdict is not None:
        promises = Group(limit_table(forecast.verdict), Facts(promise_rows(forecast)))
        parts.append(Section(slo_title(forecast.verdict), promises))
    return [*parts, Section("Cost", Facts(cost_rows(forecast)))]


def slo_title(verdict: Verdict) -> str:
    # Without a value, so many clients left that the limit is missed.
    room = [
        (each.limit, each.headroom if each.value is not None or each.odds else each.odds) for each in verdict.limits
    ]
    failing = [str(limit) for limit, headroom in room if headroom is not None and headroom <= 1.0]
    if verdict.holds:
        return "SLO: holds"
    return f"SLO: fails on {', '.join(failing)}" if failing else "SLO: fails, because more arrives than can be served"


def limit_table(verdict: Verdict) -> Grid:
    return Grid(*cells(LIMIT_FIELDS, verdict.limits))


def promise_rows(forecast: Forecast) -> list[tuple[str, str]]:
    return [row for each in quantities.PROMISES for row in each.facts(forecast)]


def cost_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """Costs and the source of prices, or how to give one."""
    rows = [row for each in quantities.COSTS for row in each.facts(forecast)]
    prices = [
        forecast.tariff.unknown(gpu) if price is None else price.description for _, gpu, price in prices_of(forecast)
    ]
    return [*rows, *api_rows(forecast), *named_first("price", dict.fromkeys(prices))]


def api_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """Whether an API is cheaper."""
    if (found := forecast.against_api) is None or forecast.cost is None:
        return []
    saved = 1.0 - forecast.cost.per_hour / found.usd_per_hour if found.usd_per_hour else -1.0
    verdict = f"serving them here saves {units.format_percent(saved)}" if saved > 0 else "the API is cheaper"
    most = most_requests_per_second(forecast.system, forecast.workload)
    pays, serves = (units.format_figure(each) for each in (found.break_even, most))
    words = (
        f"{units.format_dollars(found.usd_per_hour)} per hour at ${forecast.tariff.api} per million tokens: {verdict}"
    )
    return [("an API", f"{words}; here pays from {pays} requests/s, and {serves} can be served")]


def price_words(forecast: Forecast) -> str:
    prices = [price for _, _, price in prices_of(forecast)]
    return "; ".join(dict.fromkeys("unknown" if each is None else each.whose for each in prices))


def decision_fields(forecast: Forecast) -> dict[str, Any]:
    facts = "usd_per_gpu_hour=per_hour provider kind date source"
    prices = [
        {"gpu": gpu, "gpus": count, **{key: value or None for key, value in pick(price, facts).items()}}
        for count, gpu, price in prices_of(forecast)
    ]
    return {
        "slo": None if forecast.verdict is None else slo_dict(forecast.verdict),
        **{each.key: each.data(forecast) for each in (*quantities.PROMISES, *quantities.COSTS)},
        "prices": prices,
        "api": None
        if (api := forecast.against_api) is None
        else {"usd_per_hour": api.usd_per_hour, "break_even_requests_per_s": api.break_even},
    }


def slo_dict(verdict: Verdict) -> dict[str, Any]:
    limits = [record(LIMIT_FIELDS, each) for each in verdict.limits]
    return {"text": str(verdict.slo), "holds": verdict.holds, "limits": limits}


def energy_rows(forecast: Forecast) -> list[tuple[str, str]]:
    energy, wall = forecast.energy, forecast.wall
    if energy is None or wall is None:
        return []
    rows = [row for each in quantities.ENERGIES for row in each.facts(forecast)]
    for pool, drawn in zip(forecast.pools, energy.pools, strict=True) if len(energy.pools) > 1 else ():
        mean, peak = units.format_watts(drawn.mean_watts), units.format_watts(drawn.peak_watts)
        rows.append((f"{pool.role} pool", f"{mean} per GPU on average, {peak} at most"))
    return [
        *rows,
        ("80 % interval", f"{energy_interval(energy)} per output token of GPU energy"),
        ("goes into", part_words(energy)),
        *named_first("server", (_server_words(server, wall.pue) for server in dict.fromkeys(wall.servers))),
        ("rests on", SENTENCES["power"].get(energy.source, energy.source)),
    ]


def energy_interval(energy: Energy) -> str:
    """The ends of the joules of an output token, with one unit if they share it."""
    low, high = (units.format_joules(energy.joules_per_output_token * factor) for factor in energy.interval)
    return f"{low.removesuffix(f' {high.split()[-1]}')} to {high}"


def part_words(energy: Energy) -> str:
    shares = {name: value / energy.joules for name, value in energy.by_part.items()}
    least_part = 0.01  # parts of the energy below this share are summed as `other`
    told = {name: share for name, share in shares.items() if share >= least_part}
    rest = sum(shares.values()) - sum(told.values())
    if rest >= 0.0005:
        told["other"] = rest
    return ", ".join(f"{name} {units.format_percent(share)}" for name, share in told.items())


def _server_words(server: Server, pue: float) -> str:
    known = "fitted on servers at the wall" if server.fitted else "stated, not measured"
    share = f"of {server.gpus} GPUs" if server.gpus > 1 else "of one GPU"
    return f"{server.base_watts:g} W {share} and {server.factor:g} x their boards ({server.kind}, {known}); PUE {pue:g}"


def _energy_dict(energy: Energy) -> dict[str, Any]:
    return {
        "joules": energy.joules,
        "joules_interval": [energy.low, energy.high],
        "joules_per_output_token_interval": [energy.joules_per_output_token * each for each in energy.interval],
        **pick(energy, "idle_watts_per_gpu=idle_watts limit_watts_per_gpu=limit_watts source"),
        "parts": [
            {"part": name, "joules": joules, "share": joules / energy.joules} for name, joules in energy.by_part.items()
        ],
        "pools": [pick(each, "gpus watts_per_gpu=mean_watts peak_watts_per_gpu=peak_watts") for each in energy.pools],
        "phases": [
            pick(each, "phase=name joules watts_per_gpu=watts burst_watts_per_gpu=burst_watts joules_per_token")
            for each in energy.phases
        ],
    }


def _wall_dict(wall: FacilityEnergy) -> dict[str, Any]:
    return {
        **pick(wall, "gpu_watts server_watts watts peak_watts joules"),
        "joules_interval": [wall.low, wall.high],
        **pick(wall, "grams_co2_per_hour pue kwh_per_day=kilowatt_hours_per_day"),
        "servers": [pick(each, "kind gpus base_watts factor fitted") for each in wall.servers],
    }


TURN_FIELDS: tuple[Field[run.TurnRun], ...] = (
    Field("", lambda each: each.name, "turn"),
    Field("turn", lambda each: each.first),
    Field("and_later", lambda each: each.last is None),
    Field("requests", lambda each: each.requests, "requests", "{:,}".format),
    Field("input_tokens", lambda each: each.input_tokens, "prompt tokens", "{:,.0f}".format),
    Field("prefix_hit_rate", lambda each: each.hit_share, "found in cache", units.format_percent),
    Field("ttft_ms", lambda each: each.ttft, data=quantities.milliseconds),
    Field("end_to_end_ms", lambda each: each.end_to_end, data=quantities.milliseconds),
    Field("", lambda each: each.ttft.p50, "TTFT p50", units.format_seconds),
    Field("", lambda each: each.ttft.p95, "TTFT p95", units.format_seconds),
    Field("", lambda each: each.end_to_end.p50, "end to end p50", units.format_seconds),
)
CLASS_FIELDS: tuple[Field[run.ClassRun], ...] = (
    Field("class", lambda each: each.name, "class"), Field("priority", lambda each: each.priority, "priority"),
    Field("requests", lambda each: each.requests, "requests", "{:,}".format),
    Field("limits_s", lambda each: dict(each.limits)), Field("slo_attainment", lambda each: each.attainment),
    Field("ttft_ms", lambda each: each.ttft, data=quantities.milliseconds),
    Field("tpot_ms", lambda each: each.tpot, data=quantities.milliseconds),
    Field("end_to_end_ms", lambda each: each.end_to_end, data=quantities.milliseconds),
    Field("", lambda each: each.ttft.p50, "TTFT p50", units.format_seconds),
    Field("", lambda each: each.ttft.p95, "TTFT p95", units.format_seconds),
    Field("", lambda each: each.tpot.p50 if each.tpot else None, "TPOT p50", units.format_seconds),
    Field("", lambda each: each.end_to_end.p95, "end to end p95", units.format_seconds),
    Field("", lambda each: ", ".join(f"{name} < {units.format_seconds(at)}" for name, at in each.limits) or "-", "SLO"),
    Field("", lambda each: each.attainment, "attained", units.format_percent),
)  # fmt: skip


GROUP_FIELDS: tuple[Field[run.GroupRun], ...] = (
    Field("group", lambda each: each.name, "group"), Field("replicas", lambda each: each.replicas),
    Field("gpus", lambda each: each.gpus, "GPUs"), Field("weight", lambda each: each.weight, "weight", "{:.2f}".format),
    Field("share", lambda each: each.share, "of requests", units.format_percent),
    Field("ttft_ms", lambda each: each.ttft, data=quantities.milliseconds),
    Field("tpot_ms", lambda each: each.tpot, data=quantities.milliseconds),
    Field("", lambda each: each.ttft.p50 if each.ttft else None, "TTFT p50", units.format_seconds),
    Field("", lambda each: each.ttft.p99 if each.ttft else None, "p99", units.format_seconds),
    Field("", lambda each: each.tpot.p50 if each.tpot else None, "TPOT p50", units.format_seconds),
    Field("busy", lambda each: each.busy, "busy", units.format_percent),
    Field("kv_usage", lambda each: each.kv_usage, "KV cache", units.format_percent),
    Field("usd_per_hour", lambda each: each.usd_per_hour, "$/h", units.format_dollars),
)  # fmt: skip


def session_rows(sessions: run.SessionsRun) -> list[tuple[str, str]]:
    time = sessions.time
    return [
        ("sessions", f"{sessions.count:,}, {sessions.turns_each:.1f} turns each on average"),
        (
            "session time",
            f"p50 {units.format_seconds(time.p50)}, p95 {units.format_seconds(time.p95)}; "
            f"{units.format_percent(sessions.waiting_share)} of it waiting for answers",
        ),
        ("prefix cache", f"{units.format_percent(sessions.hit_share)} of the sessions' prompt tokens found"),
    ]


def part_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data; keys are there only where a workload has such parts."""
    fields: dict[str, Any] = {}
    if (sessions := forecast.sessions) is not None:
        fields["sessions"] = {
            **pick(sessions, "count turns_each waiting_share", prefix_hit_rate="hit_share"),
            "time_ms": quantities.milliseconds(sessions.time),
            "turns": [record(TURN_FIELDS, each) for each in sessions.turns],
        }
    if classes := forecast.classes:
        fields["classes"] = [record(CLASS_FIELDS, each) for each in classes]
    if (given_up := forecast.given_up) is not None:
        fields["given_up"] = given_up._asdict()
    if groups := forecast.groups:
        fields["groups"] = [record(GROUP_FIELDS, each) for each in groups]
    if (outages := forecast.outages) is not None:
        fields["outages"] = outages._asdict()
    return fields


def given_up_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What clients left, and what it cost."""
    found = forecast.given_up
    if found is None:
        return []
    share, retries = units.format_percent(found.share), f"{found.retries:,} sent again"
    left = f"{units.format_many(found.requests, 'request')} ({share}), {retries}"
    wasted = f"{found.tokens:,} tokens computed in vain ({units.format_percent(found.tokens_share)})"
    return [("given up", f"{left}; {wasted}; latencies are of the others")]


def outage_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What failed, what that cost, and whether one more replica would help."""
    found = forecast.outages
    if found is None:
        return []
    if not found.outages:
        return [("outages", f"none in {units.format_seconds(forecast.duration)}; say when, such as --fail 0@60s")]
    each = ", ".join("replica {replica} at {begin_s:,.0f} to {end_s:,.0f} s".format(**one) for one in found.outages[:3])
    each += f" and {len(found.outages) - 3:,} more" if len(found.outages) > 3 else ""
    lost = f"{found.tokens:,} tokens computed in vain ({units.format_percent(found.tokens_share)})"
    rows = [("outages", f"{each}; {units.format_many(found.retried, 'request')} sent again, {lost}")]
    names = {"while one is down": found.meanwhile, "otherwise": found.otherwise, "in all": found.overall}
    shares = [f"{units.format_percent(share)} {name}" for name, share in names.items() if share is not None]
    if shares and forecast.verdict is not None:
        spare = "" if found.with_spare is None else f", with one more replica {units.format_percent(found.with_spare)}"
        spare += f" and the SLO {'holds' if found.spare_holds else 'fails'}" if spare else ""
        rows.append(("within SLO", ", ".join(shares) + spare))
    return rows


def tier_rows(pool: run.PoolRun) -> list[tuple[str, str]]:
    """Hits by tier and the time of copies; empty without a tier."""
    tier = pool.tier
    if tier is None:
        return []
    shares = (pool.prefix_hit_rate - tier.hit_rate, tier.hit_rate, tier.peak_use)
    found = "{} of prompt tokens found on the GPU, {} in host memory, which was filled to {}"
    rows = [
        ("KV cache tiers", found.format(*map(units.format_percent, shares))),
        ("KV copies", f"{_words(tier.load, 'loaded')}; {_words(tier.store, 'stored')}"),
    ]
    if tier.num_loaded:
        wait = units.format_seconds(tier.mean_wait)
        loaded = units.format_many(tier.num_loaded, "request")
        rows.append(("KV loads", f"{loaded} waited {wait} each, from the lookup to their first step"))
    if tier.num_refused:
        rows.append(
            ("KV stores", f"{tier.num_refused:,} times there was no room: the tier is too small for its copies")
        )
    return rows


def _words(way: run.TierTransfer, done: str) -> str:
    return f"{way.num_bytes / units.GIGA:,.1f} GB {done}, the link in use {units.format_percent(way.use)} of the run"


def request_rows(forecast: Forecast) -> Iterator[str]:
    columns = forecast.per_request()
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    yield from csv_lines(columns, ([None if cell != cell else cell for cell in row] for row in rows))  # noqa: PLR0124


def render_forecast(forecast: Forecast, intervals: Intervals | None = None) -> list[Printable]:
    style = "bold" if forecast.state.is_steady else "bold red"
    about: list[Printable] = [styled(forecast.headline, style=style)]
    about += [Section(title, Facts(rows)) for title, rows in system_facts(forecast)]
    latencies = [(each.title, *latency_cells(values)) for each, values, _ in quantities.latencies_of(forecast)]
    title = "Latency, without ramp-up and drain" if forecast.steady_only else "Latency"
    parts = [
        *about, Section(title, Grid(("", *NAMES), latencies)),
        *([] if intervals is None else [quantities.render_intervals(intervals)]), *render_decision(forecast),
        *([Section("Energy", Facts(rows))] if (rows := energy_rows(forecast)) else []),
        *(
            []
            if intervals is None
            else [Section("Diagnosis", *findings.render_diagnosis(findings.diagnosis_of(forecast, intervals)))]
        ),
        *([Section("Groups", Grid(*cells(GROUP_FIELDS, groups)))] if (groups := forecast.groups) else []),
        *([Section("Sessions", Facts(session_rows(sessions)))] if (sessions := forecast.sessions) else []),
        *([Section("Turns", Grid(*cells(TURN_FIELDS, sessions.turns)))] if sessions else []),
        *([Section("Classes", Grid(*cells(CLASS_FIELDS, classes)))] if (classes := forecast.classes) else []),
        Section("Load", Facts(load_rows(forecast))),
    ]  # fmt: skip
    if len(forecast.engines) > 1:
        parts += [Section(pool_title(each, "Engines"), Grid(*engine_cells(each.engines))) for each in forecast.pools]
    for pool in forecast.pools:
        for phase in pool.phases:
            title = pool_title(pool, f"Where time goes in {phase_title(pool, phase)}")
            parts.append(Section(title, Grid(PHASE_COLUMNS, phase_cells(phase), notes_at=(3, 4, 5))))
    said = tuple(text for _, text in load_rows(forecast))  # what the load section says already is left out
    return [*parts, caveat_section(each for each in caveats(forecast) if not each.endswith(said))]


def brief_forecast(forecast: Forecast, intervals: Intervals) -> list[Printable]:
    """One screen, in the order in which people ask: does it hold, how fast, how sure, how much, what to change."""
    state, pools = forecast.state, forecast.deployment.model.pools
    is_plain = state.is_steady and not (forecast.steady.stopped in (CUT, LATE) or forecast.is_short)
    told = state.sentence if is_plain else forecast.headline
    brief = ("ttft", "tpot", "end_to_end")
    rows = [(each.short, values, getattr(intervals, each.name)) for each, values, _ in quantities.latencies_of(forecast)
            if each.name in brief and values is not None and not (pools and each.name == "ttft")]  # fmt: skip
    table = Grid(
        ("", *IN_BRIEF, "80 % interval of p50", "of p99"),
        [(name, *(units.format_seconds(getattr(values, each)) for each in IN_BRIEF),
          *(quantities.format_band(band, each) for each in ("p50", "p99")))
         for name, values, band in rows],
    )  # fmt: skip
    return [
        Paragraph(
            "\n".join([*map(_deployed, forecast.pools), quantities.LENGTHS.sub("", forecast.workload.description)]),
            SCREEN,
        ),
        Paragraph(told, SCREEN, style="bold" if state.is_steady else "bold red"),
        table,
        Facts(brief_rows(forecast, intervals)),
    ]


def _deployed(pool: run.PoolRun) -> str:
    deployment, layout = pool.deployment, pool.deployment.layout
    split = "" if layout.gpus == 1 else f" ({layout})"
    role = "" if pool.role == BOTH else f"{pool.role}: "
    name = f"{deployment.model.name} ({deployment.model.weights.name})"
    return f"{role}{name} on {pool.pool.gpus} x {deployment.gpu.title}{split}, {deployment.engine.name}"


def brief_rows(forecast: Forecast, intervals: Intervals, found: RunDiagnosis | None = None) -> list[tuple[str, str]]:
    """What a newcomer asks after the latencies, a line each."""
    running, waiting = forecast.running, forecast.waiting
    tokens = f"{units.format_figure(forecast.output_tokens_per_second)} {_result(forecast)}s/s"
    queue = f", {units.format_figure(waiting.mean)} waiting" if waiting.mean >= 0.05 else ""
    low, high = map(units.format_figure, intervals.output_tokens_per_second)
    tokens += f" ({low} to {high})" if low != high else ", as many as come"
    deployment, found = forecast.deployment, found or findings.diagnosis_of(forecast, intervals)
    served = tokens if deployment.model.pools else f"{tokens}, {forecast.requests_per_second:,.3g} requests/s"
    doubts = brief_doubts(forecast.source, deployment.engine.name, intervals, deployment.drafting)
    fleet, deployed = forecast.groups, [pool.deployment for pool in forecast.pools]
    assumed = dict.fromkeys(each.model.assumed for each in deployed)
    return [
        *deployments.release_rows(deployment.engine), *named_first("model", filter(None, assumed)),
        *named_first("memory", [] if fleet else dict.fromkeys(map(deployments.memory_words, deployed))),
        *([] if forecast.link is None else [("TTFT", _ttft_words(forecast.link))]),
        ("load", f"{served}; {units.format_figure(running.mean)} running{queue}"),
        *named_first("group", map(_group_words, fleet)), *given_up_rows(forecast), *outage_rows(forecast),
        ("SLO", _promise_words(forecast.verdict, findings.POOLED if deployment.model.pools else findings.EXAMPLE)),
        ("cost", _cost_words(forecast)), *api_rows(forecast), *([] if fleet else findings.diagnosis_rows(found)),
        *named_first("doubt", doubts), *named_first("run it", _started(forecast)), ("next", findings.next_words(found)),
        ("more", MORE),
    ]  # fmt: skip


def _group_words(group: run.GroupRun) -> str:
    times = "".join(f", {name} p50 {units.format_seconds(each.p50)}, p99 {units.format_seconds(each.p99)}"
                    for name, each in (("TTFT", group.ttft), ("TPOT", group.tpot)) if each is not None)  # fmt: skip
    cost = "" if group.usd_per_hour is None else f", {units.format_dollars(group.usd_per_hour)} per hour"
    return f"{group.name}: {units.format_percent(group.share)} of requests{times}{cost}"


def _installed_and_run(pool: run.PoolRun) -> str:
    package = package_of(pool.deployment.engine)
    return f"pip install {package} && {deployments.serve_command(pool.deployment, pool.role)}"


def _started(forecast: Forecast) -> list[str]:
    """Commands of all engines; two pools have a proxy before them."""
    if forecast.link is None:
        return [*map(_installed_and_run, forecast.pools)]
    lines = [f"{pool.role}, {pool.pool.instances} x: {_installed_and_run(pool)}" for pool in forecast.pools]
    return [*lines, "and a proxy that sends each prompt to the first pool, then to the second"]


def _ttft_words(link: run.LinkRun) -> str:
    means = link.prompt.mean, link.wait.mean + link.transfer.mean, link.first_step.mean
    prompt, moving, first = map(units.format_seconds, means)
    parts = f"{prompt} in the prefill pool, then {moving} on the link, then {first} in the decode pool"
    return f"{parts} on average; {link.name} is in use {units.format_percent(link.use)} of the run"


def _promise_words(verdict: Verdict | None, example: str) -> str:
    if verdict is None:
        return f'none given; --slo "{example}" says whether it is kept, and the odds'
    limits = (f"{each.limit.name} {units.format_seconds(each.value)} of {units.format_seconds(each.limit.seconds)}"
              for each in verdict.limits if each.value is not None)  # fmt: skip
    odds = "" if verdict.odds is None else f", odds {units.format_odds(verdict.odds)}"
    return f"{slo_title(verdict).removeprefix('SLO: ')}{odds}; {', '.join(limits)}"


def _cost_words(forecast: Forecast) -> str:
    gpus, cost, energy = units.format_gpus(forecast.gpus), forecast.cost, forecast.energy
    if cost is None:
        return "; ".join(dict.fromkeys([gpus, *(text for _, text in cost_rows(forecast))]))
    hourly, each = (units.format_dollars(dollars) for dollars in (cost.per_hour, cost.per_million_output_tokens))
    drawn = "" if energy is None else f"; {units.format_joules(energy.joules_per_output_token)} per {_result(forecast)}"
    return f"{hourly} per hour for {gpus}, {each} per million {_result(forecast)}s{drawn}"


def _result(forecast: Forecast) -> str:
    """What is counted: pooling gives one result of each prompt."""
    return "prompt" if forecast.deployment.model.pools else "output token"


def forecast_dict(forecast: Forecast, intervals: Intervals | None = None, *, trials: bool = True) -> dict[str, Any]:
    """The same as plain data, in milliseconds where a name says so; without ``trials`` no change is tried for it."""
    one, link = len(forecast.pools) == 1, forecast.link
    found = None if intervals is None else findings.diagnosis_of(forecast, intervals, trials=trials)
    parts = {f"{part.name}_ms": quantities.milliseconds(at(part.name)(link)) for part in quantities.LINK_PARTS}
    return {
        "deployment": deployments.deployment_dict(forecast.deployment) if one else None,
        "pools": [_pool_dict(pool) for pool in forecast.pools],
        "link": None if link is None else {"name": link.name, "use": link.use, **parts},
        "router": forecast.router,
        "gpus": forecast.gpus,
        "workload": deployments.workload_dict(forecast.workload),
        **{
            f"{latency.name}_ms": quantities.milliseconds(getattr(forecast, latency.name))
            for latency in quantities.LATENCIES
        },
        **{each.key: each.data(forecast) for each in quantities.RESULTS},
        "best_possible": forecast.best
        and {
            **pick(forecast.best, "share limited_by batch role requests_per_s=requests_per_second"),
            "output_tokens_per_s": forecast.best.output_tokens_per_second,
            "resources": [{"resource": name, "busy": share} for name, share in forecast.best.busy.items()],
        },
        **decision_fields(forecast),
        **{each.key: each.data(forecast) for each in quantities.ENERGIES},
        "energy": forecast.energy and _energy_dict(forecast.energy),
        "wall": forecast.wall and _wall_dict(forecast.wall),
        **part_fields(forecast),
        "duration_s": forecast.duration,
        **{each.key: each.data(forecast) for each in quantities.LOADS},
        "engines": [
            {"pool": pool.role, **{each.key: each.data(load) for each in quantities.OF_ENGINES}}
            for pool in forecast.pools
            for load in pool.engines
        ],
        "phases": [{"pool": pool.role, **_phase_dict(phase)} for pool in forecast.pools for phase in pool.phases],
        "speculation": deployments.draft_run_dict(run.drafts_of(forecast)),
        "headline": forecast.headline,
        **state_fields(forecast.state, forecast.steady, forecast.steady_only),
        **host_fields(forecast),
        "source": forecast.source,
        "kind": forecast.kind,
        "caveats": caveats(forecast),
        **quantities.interval_fields(intervals),
        **({} if found is None else {"diagnosis": findings.diagnosis_dict(found)}),
    }


def _pool_dict(pool: run.PoolRun) -> dict[str, Any]:
    return {
        "deployment": deployments.deployment_dict(pool.deployment),
        **pick(pool, "role", instances="pool.instances", gpus="pool.gpus"),
        **{each.key: each.data(pool) for each in quantities.LOADS},
        "kv_offload": pool.tier and _tier_dict(pool.tier),
    }


def _tier_dict(tier: run.TierRun) -> dict[str, Any]:
    copied = {
        f"kv_offload_{way}_{name}": value
        for way in ("load", "store")
        for name, value in pick(tier, f"copies={way}.copies bytes={way}.num_bytes time={way}.seconds").items()
    }
    return {
        **pick(tier, "cpu_hit_rate=hit_rate cpu_cache_peak=peak_use external_prefix_cache_queries=queries"),
        **pick(tier, "external_prefix_cache_hits=hits stores_refused=num_refused held_up_s=held_up"),
        "loaded_requests": tier.num_loaded, **copied, **pick(tier, "load_link_use=load.use store_link_use=store.use"),
        "load_wait_ms": in_ms(tier.mean_wait),
    }  # fmt: skip


def system_facts(forecast: Forecast) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was simulated, by sections: one, or one for each pool and one for what they share."""
    shared = [("workload", f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated")]
    if forecast.link is not None:
        use = f"{units.format_percent(forecast.link.use)} of the run in use by its busiest sender"
        shared.insert(0, ("link", f"{forecast.link.name}, {use}"))
    if len(forecast.pools) == 1:
        return [("What was simulated", [*pool_facts(forecast.pools[0]), *shared])]
    return [*((f"{pool.role.capitalize()} pool", pool_facts(pool)) for pool in forecast.pools), ("Both pools", shared)]


def pool_facts(pool: run.PoolRun) -> list[tuple[str, str]]:
    several = [("engines", f"{pool.pool.instances:,} of these")] if pool.pool.instances > 1 else []
    router = [("router", pool.pool.engines.router)] if len(pool.records) > 1 else []
    return [*several, *deployments.deployment_facts(pool.deployment), *router]


def draft_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """Acceptance of drafts; empty without speculative decoding."""
    found = run.drafts_of(forecast)
    if found is None:
        return []
    counts = found.counts
    rates = ", ".join(units.format_percent(rate) for rate in counts.rates_by_position)
    words = (
        f"{counts.acceptance_length:.2f} tokens per step; {counts.num_accepted:,} of {counts.num_draft_tokens:,} drafts"
    )
    return [
        ("acceptance length", words),
        ("", f"by position {rates}"),
        ("drafts", f"{found.drafted_per_second:,.0f}/s, {found.accepted_per_second:,.0f}/s of them accepted"),
        ("decode steps", ", ".join(f"{name} {units.format_percent(share)}" for name, share in found.parts.items())),
    ]


def load_rows(forecast: Forecast) -> list[tuple[str, str]]:
    rows = [("state", forecast.state.sentence), ("steady state", forecast.steady.sentence)]
    for pool in forecast.pools:
        rows += _of_pool(pool, host_rows(pool.deployment, pool.phases))
    rows += [row for each in quantities.RESULTS for row in each.facts(forecast)]
    if (best := forecast.best) is not None:
        limit = BOUNDS.get(best.limited_by, best.limited_by) + (
            "" if best.role == BOTH else f" of the {best.role} pool"
        )
        most = f"{units.format_figure(best.output_tokens_per_second)} output tokens/s"
        words = f"{units.format_percent(best.share)} of {most}, limited by {limit} with batches of {best.batch:,}"
        rows.append(("best possible", words))
    rows += given_up_rows(forecast) + outage_rows(forecast)
    rows += draft_rows(forecast)
    for pool in forecast.pools:
        rows += _of_pool(pool, [row for each in quantities.LOADS for row in each.facts(pool)] + tier_rows(pool))
    return rows


def _of_pool(pool: run.PoolRun, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return rows if pool.role == BOTH else [(f"{pool.role} {name}", text) for name, text in rows]


def pool_title(pool: run.PoolRun, title: str) -> str:
    return title if pool.role == BOTH else f"{pool.role.capitalize()} pool: {title[:1].lower()}{title[1:]}"


def engine_cells(engines: Sequence[run.EngineLoad]) -> tuple[list[str], list[list[str]]]:
    """What each replica did, as columns and rows; of many only the first, and the range of the others."""
    shown = len(engines) if len(engines) <= SHOWN_ENGINES else SHOWN_ENGINES - 1
    rows = [[f"{number}", *_ends([each])] for number, each in enumerate(engines[:shown])]
    if others := engines[shown:]:
        rows.append([f"{len(others):,} others", *_ends(others)])
    return ["engine", *(each.label for each in quantities.OF_ENGINES)], rows


def _ends(engines: Sequence[run.EngineLoad]) -> list[str]:
    cells = []
    for quantity in quantities.OF_ENGINES:
        values = [quantity.of(each) for each in engines]
        low, high = quantity.write(min(values)), quantity.write(max(values))
        cells.append(low if low == high else f"{low.removesuffix(' %')} to {high}")
    return cells


def latency_cells(values: Percentiles | None) -> list[str]:
    if values is None:
        return ["-"] * len(NAMES)
    return [units.format_seconds(getattr(values, name)) for name in NAMES]


def phase_title(pool: run.PoolRun, phase: Phase) -> str:
    words = TAKING_IN if pool.role == DECODE and phase.name == "prefill" else TITLES[phase.name]
    return (
        f"{words}: {units.format_many(phase.steps, 'step')}, {units.format_seconds(phase.seconds / phase.steps)} each"
    )


def phase_cells(phase: Phase) -> list[list[str]]:
    """Kernel families, and the time in which the GPU waited for its host: together the whole step."""
    parts = [(each.family, each.seconds, each.bound, each.source, each.kernels) for each in phase.families]
    if phase.host_bound_seconds > 0:
        parts.append(("GPU idle", phase.host_bound_seconds, phase.waits_for, "", ()))
    least_share = 0.0005  # kernel families below this share of a step are left out of tables
    return [
        [
            name, units.format_percent(seconds / phase.whole), units.format_seconds(seconds / phase.steps), bound,
            source, ", ".join(kernel for kernel, _ in kernels[:4]),
        ]
        for name, seconds, bound, source, kernels in parts
        if seconds >= least_share * phase.whole
    ]  # fmt: skip


def _phase_dict(phase: Phase) -> dict[str, Any]:
    families = [
        {**pick(each, "family seconds share bound source"), "kernels": dict(each.kernels)} for each in phase.families
    ]
    numbers = pick(phase, "steps tokens seconds gpu_seconds host_bound_seconds")
    return {"phase": phase.name, **numbers, "families": families}


RENDERERS = {
    "Forecast": Renderers(forecast_dict, render_forecast),
    "Intervals": Renderers(quantities.interval_fields, lambda intervals: [quantities.render_intervals(intervals)]),
    "Verdict": Renderers(slo_dict, lambda verdict: [Section(slo_title(verdict), limit_table(verdict))], rows="limits"),
}
