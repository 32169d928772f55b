"""What a reader of a forecast should know about how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from infercast.engines.deployment import Deployment
from infercast.forecast.explain.phases import Phase
from infercast.forecast.intervals.uncertainty import is_older
from infercast.forecast.notes import estimate_notes
from infercast.forecast.result import Forecast
from infercast.forecast.saturation import OVERLOADED
from infercast.report.layout import section, styled
from infercast.report.state import host_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

WEAK = {
    "sibling": "borrowed from a GPU of the same generation",
    "unseen": "learned from other GPUs, because this one was not measured",
    "physics": "physics alone, because nothing like them was measured",
    "published": "the roofline at what published rows of kernels and published runs show of this architecture",
    "typical": "the roofline at what kernels of other vendors' GPUs typically reach, because none was measured here",
    "roofline": "the roofline alone: the least that the hardware allows, so times are lower bounds",
}


FORECASTS = "These are forecasts: simulations with estimated kernel latencies, not measurements."
HELD = (
    "Intervals hold what errors of kernel latencies, host times and costs of another release, and the luck of a finite "
    "run, do to results: about four in five of the values of measured and of published runs lie in theirs. They do not "
    "hold what the simulation is not told: another load, other programs on the host, a board with less power, networks."
)
CALIBRATED = (
    "Times are calibrated with {}: intervals hold what its results left open, and how far one run of a deployment is "
    "from another."
)


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
    sentences.append(HELD)
    if forecast.link is not None:
        sentences.append("No transfer between two pools was measured: the link is taken from its data sheet.")
    sentences.append(
        "Every request is taken to produce as many tokens as the workload says; stop strings and failed requests are "
        "not modelled."
    )
    if forecast.state.word == OVERLOADED:
        sentences.append("The deployment is overloaded: latencies only tell how long the run was.")
    return list(dict.fromkeys(sentences))


def caveats_of(forecasts: Iterable[Forecast]) -> list[str]:
    """What holds for any of several forecasts, such as those of a sweep."""
    return list(dict.fromkeys(each for forecast in forecasts for each in caveats(forecast)))


def caveat_section(sentences: Iterable[str]) -> RenderableType:
    """The sentences, for a terminal."""
    return section("Caveats", styled("\n".join(sentences)))


def _of_drafts(deployment: Deployment) -> list[str]:
    """What to know of speculative decoding, or that it is left out of a model that brings heads for it."""
    drafting, model = deployment.drafting, deployment.model
    if drafting is not None:
        text = f"How many drafts are accepted is {drafting.acceptance.source}, and decides the result."
        return [f"{text} It is assumed: give --acceptance." if drafting.acceptance.is_assumed else text]
    if model.prediction is None or deployment.engine.draft_passes is None:
        return []
    config = '{"method": "mtp", "num_speculative_tokens": 1}'
    return [
        f"{model.name} has heads that predict further tokens (MTP), which this forecast does without: engines decode "
        f"faster with them. Ask for it with --speculative-config '{config}'."
    ]


def _of_deployment(deployment: Deployment, phases: Sequence[Phase]) -> list[str]:
    """What the estimates of one pool rest on."""
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
        runner = " It runs this model by other code on the host." if engine.has_new_runner(deployment.model) else ""
        sentences.append(
            f"{engine.name} was not measured ({engine.note}): intervals hold how far {published} are off.{runner}"
        )
    sentences += [*estimate_notes(deployment), *_of_drafts(deployment)]
    if deployment.corrections is not None:
        sentences += [*deployment.corrections.notes, CALIBRATED.format(deployment.corrections.title)]
    if deployment.has_default_host:
        sentences.append(
            f"Host times are those of another machine ({deployment.host.title}); `infercast measure --host`, or "
            "`infercast calibrate` with a benchmark, fits them to yours."
        )
    sentences += deployment.host_model.rests_on()
    return sentences + [text for _, text in host_rows(deployment, phases)]
