"""From results to a calibration: what they tell, and how well it holds on what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.calibrate.readers.detect import read_results
from infercast.calibrate.readers.load import Asked
from infercast.calibrate.replay import Point, Replay
from infercast.calibrate.result import Result
from infercast.calibrate.solve import Solution, path_spread, prior_of, solve
from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.calibration.drafts import with_acceptance
from infercast.forecast.calibration.record import Calibration, Fingerprint, Learned, Pair, Source
from infercast.forecast.system import system_of

Tell = Callable[[str], None]
Array = npt.NDArray[Any]

MOST_LEFT_OUT = 6
"""Results that are left out in turn, each of which takes as long as all of them."""


def calibrate(
    deployment: Deployment,
    results: Sequence[Path | str | Result],
    *,
    asked: Asked | None = None,
    version: str = "",
    tell: Tell = lambda _: None,
) -> Calibration:
    """What measured results say of the deployment that they were measured on.

    ``results`` are files of load generators, folders of them, or each a `Result`; ``asked`` says what files do not.
    """
    if deployment.corrections is not None:
        raise InputError("the deployment is calibrated already; calibrate one without")
    found: list[Result] = []
    for each in results:
        found += [each] if isinstance(each, Result) else read_results([Path(each)], asked)
    if not found:
        raise InputError("there is no result to learn from; give at least one file")
    accepted = _mean([each.acceptance_length for each in found])
    if accepted is not None:
        deployment = _accepting(deployment, accepted)
    system = system_of(deployment)
    replays = []
    for result in found:
        tell(result.file)
        replays.append(Replay(system, result))
    prior = prior_of(replays, over_http=deployment.over_http)
    tell("all results")
    solution = solve(replays, prior)
    both = zip(replays, _left_out(replays, prior, tell), strict=True)
    sources = tuple(
        _source(replay, _pairs(replay, solution.point), pairs, deployment.model.name) for replay, pairs in both
    )
    return Calibration(
        Fingerprint.of(deployment),
        **learned_of(solution),
        results=sources,
        prefix_hit_rate=_mean([each.prefix_hit_rate for each in found]),
        acceptance_length=accepted,
        version=version,
        title="these results",
    )


def _left_out(replays: Sequence[Replay], prior: Array, tell: Tell) -> list[tuple[Pair, ...]]:
    """Results forecast by the others; of many some are left out, evenly chosen."""
    found: list[tuple[Pair, ...]] = [()] * len(replays)
    if len(replays) > 1:
        chosen = np.unique(np.linspace(0, len(replays) - 1, min(len(replays), MOST_LEFT_OUT)).round().astype(int))
        for place in chosen.tolist():
            tell(f"without {replays[place].result.file}")
            others = [*replays[:place], *replays[place + 1 :]]
            found[place] = _pairs(replays[place], solve(others, prior).point)
    return found


def _accepting(deployment: Deployment, length: float) -> Deployment:
    """The deployment whose drafts are accepted as the results say, unless somebody said how often they are."""
    if deployment.drafting is None:
        raise InputError(
            f"the results had {length:.2f} tokens a step by speculative decoding; say how with --speculative-config, "
            "or give results without"
        )
    return with_acceptance(deployment, length)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def learned_of(solution: Solution) -> dict[str, Learned]:
    """Factors with their uncertainty; the path in seconds."""
    point, spreads = solution.point, solution.spreads
    before = np.sqrt(np.diag(solution.before))
    found = {
        name: Learned(exp(getattr(point, name)), float(spreads[place]), float(before[place]))
        for place, name in enumerate(("host", "prefill", "decode"))
    }
    found["path"] = Learned(
        point.path_seconds, min(float(spreads[3]) * point.seconds_a_unit, 10.0), path_spread(float(before[3]))
    )
    return found


def _pairs(replay: Replay, point: Point) -> tuple[Pair, ...]:
    values = np.exp([replay.measured, replay.estimated, replay.at(point)]).T.tolist()
    return tuple(Pair(name, *row) for name, row in zip(replay.names, values, strict=True))


def _source(replay: Replay, pairs: tuple[Pair, ...], left_out: tuple[Pair, ...], model: str) -> Source:
    result = replay.result
    named = (result.model or model).rsplit("/", 1)[-1]
    other = () if named.lower().startswith(model.lower()) else (f"{named}, which it names, is taken to be {model}",)
    return Source(
        file=result.file,
        sha256=result.sha256,
        kind=result.kind,
        load=result.workload.description,
        requests=len(result.workload.requests),
        pairs=pairs,
        left_out=left_out,
        assumptions=(*result.assumptions, *other),
    )
