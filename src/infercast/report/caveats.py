"""The state of a deployment under its load, and the caveats of a forecast: how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infercast.bundled import read_data
from infercast.engines.base import Deployment
from infercast.engines.speculation import Drafting
from infercast.forecast.deploy import estimate_notes
from infercast.forecast.intervals import Intervals
from infercast.forecast.kernels import Phase, host_bound_share
from infercast.forecast.result import Forecast
from infercast.forecast.steady import BACKLOGGED, OVERLOADED, State, SteadyState
from infercast.forecast.uncertainty import borrowed_share, is_older
from infercast.report.quantities import LEAST, around
from infercast.report.terminal import Printable, Section, pick, styled
from infercast.units import format_percent

TITLES = {"prefill": "steps with prompt tokens", "decode": "steps of decoding only"}
TAKING_IN = "steps that take in prompts"  # what the first of these are on a decode pool
SENTENCES = read_data("sentences.toml")
WEAK: dict[str, str] = SENTENCES["weak"]
FORECASTS: str = SENTENCES["forecasts"]


def state_fields(state: State, steady: SteadyState, steady_only: bool) -> dict[str, Any]:
    return {
        "state": state.word, "capacity_requests_per_s": state.capacity,
        "saturated": state.word in (BACKLOGGED, OVERLOADED),
        "saturation_requests_per_s": state.capacity if state.saturation else None,
        "steady_state": {
            **pick(steady, "reached", requests_needed="num_needed"),
            **pick(steady if steady.reached else None, from_s="begin", to_s="end"),
            "requests": steady.num_requests if steady.reached else 0,
        },
        "stopped": steady.stopped, "steady_only": steady_only,
    }  # fmt: skip


def host_rows(deployment: Deployment, phases: Sequence[Phase]) -> list[tuple[str, str]]:
    """A warning where the GPU waits for its host much of the time; stages of a pipeline wait for each other, too."""
    much = [] if deployment.layout.pipeline > 1 else _bound_by_host(phases)
    if not much:
        return []
    steps = " and ".join(
        f"{format_percent(host_bound_share([phase]))} of the time of {TITLES[phase.name]}" for phase in much
    )
    words = f"the GPU waits for its CPU in {steps}; a faster CPU would help (--host NAME, see `infercast hosts`)"
    rows = [("host", f"bound by the host: {words}")]
    if borrowed_share(deployment) > 0.1:
        rows.append(("", SENTENCES["borrowed_times"]))
    return rows


def _bound_by_host(phases: Sequence[Phase]) -> list[Phase]:
    """Kinds of steps with a relevant share of the run in which the GPU waits for its host."""
    whole = sum(phase.seconds for phase in phases)
    host_bound = 0.3  # a GPU that waits for its host for more of its step time than this is bound by it
    matters = 0.05  # steps of one kind that take less of all step time than this are not worth a word
    return [phase for phase in phases if phase.seconds > matters * whole and host_bound_share([phase]) > host_bound]


def host_fields(forecast: Forecast) -> dict[str, Any]:
    pools = (pool for pool in forecast.pools if pool.deployment.layout.pipeline == 1)
    return {
        "host_bound_share": host_bound_share(forecast.phases),
        "host_bound": any(_bound_by_host(pool.phases) for pool in pools),
    }


def caveats(forecast: Forecast) -> list[str]:
    """Sentences, the weightiest first."""
    sentences = [
        f"This is a forecast: a simulation of {forecast.deployment.engine.title}'s scheduler with estimated kernel "
        "latencies, not measured ones."
    ]
    pools = {pool.role: _of_deployment(pool.deployment, pool.phases) for pool in forecast.pools}
    for role, said in pools.items():
        # What is not true of both of two pools says of which one it is.
        sentences += [
            each
            if all(each in other for other in pools.values())
            else f"{role.capitalize()} pool: {each[:1].lower()}{each[1:]}"
            for each in said
        ]
    sentences.append(SENTENCES["held"])
    if forecast.link is not None:
        sentences.append("No transfer between two pools was measured: the link is taken from its data sheet.")
    if forecast.workload.images:
        sentences.append(
            "Images were not measured: their encoder's time follows from its shapes, and 30 ns for each pixel before "
            "the engine are assumed."
        )
    sentences.append(
        "Every request produces as many tokens as the workload says; stop strings and failed requests are not modelled."
    )
    if forecast.state.word == OVERLOADED:
        sentences.append("The deployment is overloaded: latencies only reflect how long the run was.")
    return list(dict.fromkeys(sentences))


def caveats_of(forecasts: Iterable[Forecast]) -> list[str]:
    """Caveats that hold for any of several forecasts."""
    return list(dict.fromkeys(each for forecast in forecasts for each in caveats(forecast)))


def shared_first(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Caveats of several runs by their names: what is true of all, then what is true of some, with their names."""
    sentences = list(dict.fromkeys(each for of_run in said.values() for each in of_run))
    holders = {each: [name for name, of_run in said.items() if each in of_run] for each in sentences}
    shared = [each for each in sentences if len(holders[each]) == len(said)]
    return [*shared, *(f"{', '.join(holders[each])}: {each}" for each in sentences if each not in shared)]


def caveat_section(sentences: Iterable[str]) -> Printable:
    return Section("Caveats", styled("\n".join(sentences)))


def _of_drafts(deployment: Deployment) -> list[str]:
    """Caveats of speculative decoding, or a hint that the model has heads for it."""
    drafting, model = deployment.drafting, deployment.model
    if drafting is not None:
        text = f"The acceptance of drafts is {drafting.acceptance.source}; it decides the result."
        return [f"{text} It is assumed; give --acceptance." if drafting.acceptance.is_assumed else text]
    if model.prediction is None or not deployment.engine.own_drafts:
        return []
    return [
        f"{model.name} has heads that predict further tokens (MTP), which this forecast does not use: engines decode "
        f"faster with them. Ask for them with {deployment.engine.own_drafts}."
    ]


def brief_doubts(source: str, engine: str, intervals: Intervals | None, drafting: Drafting | None = None) -> list[str]:
    """The two caveats that matter: what no interval covers, and the largest parts of the medians' intervals."""
    rough = ("published", "typical", "roofline")  # sources that no kernel of the GPU was measured for
    found = [f"kernels: {WEAK[source]}"] if source in rough else []
    if drafting is not None and drafting.acceptance.is_assumed:
        found.append("how many drafts are accepted is assumed, and decides the result: give --acceptance")
    rests = {} if intervals is None else intervals.rests
    is_probed = all(each.probed >= each.whole for each in rests.values())
    why = {
        "host": f"your host: {{}}; `infercast {'calibrate' if is_probed else 'measure --host'}` narrows it",
        "release": f"the release: {{}}; kernels of {engine} were not measured, those of another release were",
        "kernels": f"kernels: {{}}; {WEAK.get(source, 'learned from measured kernels of this GPU')}",
        "luck": "luck: {}; a longer run (--num-requests) narrows it",
    }
    parts = {name: {of.upper(): getattr(each, name) for of, each in rests.items()} for name in why}
    most = {name: max(each.values(), default=0.0) for name, each in parts.items()}
    for name in sorted(why, key=lambda name: -most[name]):
        said = ", ".join(f"{title} {around(part)}" for title, part in parts[name].items() if part >= LEAST)
        found += [why[name].format(said)] if said else []
    return found[:2]


def _of_deployment(deployment: Deployment, phases: Sequence[Phase]) -> list[str]:
    sentences = [f"Kernel latencies: {deployment.predictor.describe(deployment.gpu)}."]
    families: dict[str, list[str]] = {family.source: [] for phase in phases for family in phase.families}
    for phase in phases:
        for family in phase.families:
            if family.share >= 0.01 and family.family not in families[family.source]:
                families[family.source].append(family.family)
    sentences += [
        f"Latencies of {', '.join(families[source])} are {words}."
        for source, words in WEAK.items()
        if families.get(source)
    ]
    engine = deployment.engine
    if not engine.is_measured:
        published = f"published runs of {'releases long before' if is_older(engine) else 'close releases'}"
        runner = " It runs this model with other code on the host." if engine.has_new_runner(deployment.model) else ""
        known = f"{engine.name} was not measured in full ({engine.note})"
        sentences.append(f"{known}: intervals are wider by how far forecasts of {published} are off.{runner}")
    sentences += [*estimate_notes(deployment), *_of_drafts(deployment)]
    if deployment.corrections is not None:
        sentences += [*deployment.corrections.notes, SENTENCES["calibrated"].format(deployment.corrections.title)]
    if deployment.has_default_host:
        sentences.append(
            f"Host times are those of another machine ({deployment.host.title}); `infercast measure --host`, or "
            "`infercast calibrate` with a benchmark, fits them to yours."
        )
    sentences += deployment.host_model.rests_on()
    return sentences + [text for _, text in host_rows(deployment, phases)]
