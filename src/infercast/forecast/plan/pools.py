"""Prefill pools with decode pools: which of each, how many of each, and of which GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from infercast.engines.registry import engine_named
from infercast.errors import InfercastError
from infercast.forecast.plan.bounds import lengths_of
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import deployed, own_timer
from infercast.forecast.plan.guess import Engine, Guess, Mix, Steps, guess, mix_of
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.space import Option
from infercast.forecast.system import link_between
from infercast.serve.fleet.two_pools import Link

BEST = 4
"""Kinds of replicas of each GPU and format that are tried for each pool."""
ROOM = (0.8, 1.0, 1.3)
"""Headrooms by the quick estimate that the numbers of replicas are chosen for."""


class Half(NamedTuple):
    """A kind of replica in one of the pools."""

    unit: Candidate
    engine: Engine
    most: int
    """Replicas that can be simulated together: copies that share experts are one."""


def pool_options(question: Question, single: Sequence[Option]) -> list[Option]:
    """Pairs of pools whose ratio follows from what each kind of replica can take."""
    lengths = lengths_of(question)
    mix = mix_of(lengths, 0.0)
    options: dict[Candidate, Option] = {}
    for units in _kinds(single).values():
        prefills = [half for unit in units if (half := _half(question, unit, mix, "prefill")) is not None]
        decodes = [half for unit in units if (half := _half(question, unit, mix, "decode")) is not None]
        for first, second in product(_cheapest(question, prefills, mix), _cheapest(question, decodes, mix)):
            for option in _pairs(question, first, second, mix):
                options.setdefault(option.candidate, option)
    return list(options.values())


def _kinds(single: Sequence[Option]) -> dict[tuple[object, ...], list[Candidate]]:
    """Units with the engine's own settings by formats, which both pools must have in common."""
    found: dict[tuple[object, ...], list[Candidate]] = {}
    for option in single:
        unit = option.candidate.unit
        if set(dict(unit.settings)) == {engine_named(unit.engine).bounds[2]} and unit.layout.pipeline == 1:
            units = found.setdefault((unit.engine, unit.quantization, unit.kv_cache_dtype), [])
            if unit not in units:
                units.append(unit)
    return found


def _half(question: Question, unit: Candidate, mix: Mix, role: str) -> Half | None:
    try:
        deployment = deployed(question.site, unit)
    except InfercastError:
        return None
    engine = Engine(deployment, Steps(own_timer(question.site, unit), mix), role)
    return Half(unit, engine, 1 if deployment.shares_experts else question.max_gpus // unit.layout.gpus)


def _cheapest(question: Question, halves: Sequence[Half], mix: Mix) -> list[Half]:
    """Of each GPU the kinds that need least for the rate by themselves."""

    def needed(half: Half) -> float:
        for count in range(1, half.most + 1):
            if half.engine.load(question.rate / count) is not None:
                cost = question.cost(half.unit.times(count))
                return float(half.unit.times(count).gpus) if cost is None else cost
        return float("inf")

    values = {half.unit: needed(half) for half in halves}
    kept: list[Half] = []
    for gpu in dict.fromkeys(half.unit.gpu for half in halves):
        own = [half for half in halves if half.unit.gpu == gpu and values[half.unit] < float("inf")]
        kept += sorted(own, key=lambda half: (values[half.unit], str(half.unit)))[:BEST]
    return kept


def _pairs(question: Question, first: Half, second: Half, mix: Mix) -> list[Option]:
    """The smallest pools that keep the SLO with some room, by the quick estimate."""
    try:
        wire = link_between(deployed(question.site, first.unit), deployed(question.site, second.unit), question.link)
    except InfercastError:
        return []
    config = deployed(question.site, second.unit).model
    moved = _seconds(wire, config.sequence_bytes(round(mix.inputs)))
    made: dict[tuple[int, int], Guess] = {}

    def ask(prefills: int, decodes: int) -> Guess:
        key = prefills, decodes
        if key not in made:
            rates = question.rate / prefills, question.rate / decodes
            made[key] = guess(question.slo, mix, first.engine, second.engine, rates, moved)
        return made[key]

    options = []
    for room in ROOM:
        for prefills in range(1, first.most + 1):
            enough = next((count for count in range(1, second.most + 1) if ask(prefills, count).headroom >= room), None)
            if enough is None:
                continue
            pair = replace(second.unit.times(enough), prefill=first.unit.times(prefills))
            if question.allows(pair):
                options.append(Option(pair, question.cost(pair), ask(prefills, enough)))
    return options


def _seconds(wire: Link, size: float) -> float:
    return wire.latency + size / wire.sending
