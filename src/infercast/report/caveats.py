"""What a reader of a forecast should know about how far to trust it."""

from __future__ import annotations

from infercast.forecast.fleet import FleetForecast
from infercast.forecast.intervals.uncertainty import MEASURED, borrowed_share, spread_of
from infercast.forecast.notes import price_notes
from infercast.forecast.saturation import OVERLOADED
from infercast.forecast.serving import Forecast
from infercast.report.state import BORROWED_TIMES, host_rows

WEAK = {
    "sibling": "borrowed from a GPU of the same generation",
    "unseen": "learned from other GPUs, because this one was not measured",
    "physics": "physics alone, because nothing like them was measured",
    "typical": "the roofline at what kernels of other vendors' GPUs typically reach, because none was measured here",
    "roofline": "the roofline alone: the least that the hardware allows, so times are lower bounds",
}


NARROW = (
    "Intervals hold what errors of kernel latencies and host times, and the luck of a finite run, do to results. Of "
    "the values of 53 measured runs on an H200 about four in five lie in theirs, of published runs on other "
    "machines about half: intervals do not hold what the simulation is not told, such as another version of the "
    "engine, other programs on the host, or networks."
)
WIDE = (
    "Intervals hold what errors of kernel latencies and host times, and the luck of a finite run, do to results, and "
    "how far engines were off that others have published: about four in five of those means lie in theirs. Networks "
    "between nodes were not measured."
)


def caveats(forecast: Forecast | FleetForecast) -> list[str]:
    """Sentences, the weightiest first."""
    deployment = forecast.deployment
    sentences = [
        f"This is a forecast: a simulation of {deployment.engine.title}'s scheduler with estimated kernel latencies, "
        "not measured ones.",
        f"Kernel latencies: {deployment.predictor.describe(deployment.gpu)}.",
    ]
    families: dict[str, list[str]] = {family.source: [] for phase in forecast.phases for family in phase.families}
    for phase in forecast.phases:
        for family in phase.families:
            if family.share >= 0.01 and family.family not in families[family.source]:
                families[family.source].append(family.family)
    sentences += [
        f"Latencies of {', '.join(families[source])} are {words}."
        for source, words in WEAK.items()
        if families.get(source)
    ]
    sentences += price_notes(deployment)
    if deployment.has_default_host:
        sentences.append(
            f"Host times are those of another machine ({deployment.host.title}); `infercast measure --host` fits them "
            "to yours."
        )
    waits = [text for _, text in host_rows(deployment, forecast.phases)]
    if borrowed_share(deployment) > 0 and BORROWED_TIMES not in waits:
        waits.append(BORROWED_TIMES)
    sentences += waits
    sentences += [
        NARROW if spread_of(deployment) is MEASURED else WIDE,
        "Every request is taken to produce as many tokens as the workload says; stop strings, failed requests and "
        "speculative decoding are not modelled.",
    ]
    if forecast.state.word == OVERLOADED:
        sentences.append("The deployment is overloaded: latencies only tell how long the run was.")
    return sentences
