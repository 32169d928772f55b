"""A plan by names: options of a command, a page or a program, made into a `Question`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from infercast.engines.base import DEFAULT_ENGINE, engine_named
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.cost import Tariff, around
from infercast.forecast.deploy import LoadOptions, Servable, deploy_options, load_model, load_options, resolve_workload
from infercast.forecast.energy import Facility
from infercast.forecast.plan.candidate import Settings
from infercast.forecast.plan.question import USUAL_ODDS, Plan, Question, length_for
from infercast.forecast.plan.search import plan as search
from infercast.forecast.progress import stage_progress
from infercast.forecast.slo import Slo, parse_slo
from infercast.serve import Workload
from infercast.units import AUTO

USUAL_GPUS = ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm")
ANY = "any"
WEIGHTS = (None, "fp8", "int4")  # What any format of weights means: the checkpoint's, 8 bits, 4 bits


def same_named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a command or a page those that a question has by the same name."""
    names = "max_gpus budget max_model_len disaggregate objective least_odds link pcie_topology api_server predictor"
    return {name: given[name] for name in names.split() if name in given}


def question_of(
    model: str, draw: Callable[[int], Workload], slo: Slo, *, gpus: Sequence[str], engines: Sequence[str],
    tariff: Tariff, facility: Facility | None = None, quantizations: Sequence[str] = ("none",),
    drafts: Mapping[str, Any] | None = None, varies: bool = False, max_model_len: int | None = None, **others: Any,
) -> Question:  # fmt: skip
    """The question of a command, a page or a program; ``others`` are fields of `Question`. ``draw`` makes the requests,
    given their most tokens: every candidate has the same longest sequence, and requests are drawn within it, as
    `simulate` would.
    """
    given, chosen = facility or Facility(), tuple(engine_named(name).name for name in engines)
    priced, unpriced = {name: tariff.price(name, given) for name in gpus}, list[str]()
    if others.get("objective", "cost") == "cost" or others.get("budget") is not None:
        unpriced = [name for name, price in priced.items() if price is None]
        if unpriced and len(unpriced) == len(priced):
            raise InputError(tariff.unknown(unpriced[0]))
        gpus = [name for name in priced if name not in unpriced]
    prices = [priced[name] for name in gpus]
    max_model_len = None if max_model_len == AUTO else max_model_len
    workload = draw(max_model_len or load_model(model).max_positions)
    if max_model_len is None:
        max_model_len = length_for(model, workload)
        workload = draw(max_model_len)
    return Question(
        model=model, workload=workload, slo=slo, gpus=tuple(gpus),
        left_out=tuple(f"{name} is left out: {tariff.unknown(name)}" for name in unpriced), engines=chosen,
        prices=tuple(None if price is None else price.per_hour for price in prices),
        metered=tuple(name for name, price in zip(gpus, prices, strict=True) if price is not None and price.metered),
        facility=around(prices, given), quantizations=formats_of(model, quantizations),
        settings=drafts_tried(chosen, drafts or {}, varies=varies), max_model_len=max_model_len, **others,
    )  # fmt: skip


def formats_of(model: str, given: Sequence[str]) -> tuple[str | None, ...]:
    """Formats of weights by name; ``none`` is the checkpoint's own."""
    if list(given) == [ANY]:
        return WEIGHTS
    names = tuple(None if name == "none" else name for name in given)
    for name in names:
        load_model(model, quantization=name)  # a format that was asked for by name is refused here, not left out
    return names


def drafts_tried(
    engines: Sequence[str], given: Mapping[str, Any], *, varies: bool = False
) -> tuple[Settings, ...] | None:
    """Drafts to try, with the ``given`` settings in all; None: each engine's own. ``varies``: other settings vary."""
    fixed = [(name, value) for name, value in given.items() if value is not None]
    if not fixed:
        return None if not varies else ((),)
    for each in map(engine_named, engines):
        if not {*given} <= each.flags.options:
            raise InputError(
                f"--{fixed[-1][0].replace('_', '-')} is no option of {each.title}; plan without that engine"
            )
    settings = ((),) if varies else engine_named(engines[0]).commands.tried
    return tuple(tuple(sorted([*tried, *fixed])) for tried in settings)


def plan(
    model: str, workload: Servable = None, *, slo: Slo | str, gpus: Sequence[str] = USUAL_GPUS, max_gpus: int = 8,
    budget: float | None = None, objective: str = "cost", odds: float = USUAL_ODDS,
    quantizations: Sequence[str] = ("none",), engines: Sequence[str] = (DEFAULT_ENGINE,),
    max_model_len: int | None = None, disaggregate: bool = False, price: Tariff | float | None = None,
    facility: Facility | None = None, tell: Callable[[str], None] | bool | None = None, time_limit: float | None = None,
    **load: Unpack[LoadOptions],
) -> Plan:  # fmt: skip
    """The deployment that keeps an SLO at the least cost, as ``infercast plan`` finds it.

    ``plan("llama-3.1-8b", rate=20, slo="ttft_p99<1s,tpot_p95<40ms")`` chooses from the usual GPUs; ``max_gpus`` limits
    their number, ``budget`` the dollars per hour. ``odds`` is the required probability that the SLO holds, from 0 (by
    the forecast's own numbers) to below 1. ``quantizations`` are formats of weights to try, ``none`` being the
    checkpoint's own, or ``any``. ``price`` is in dollars per GPU and hour, or a `Tariff`; ``facility`` describes
    servers and building. ``tell`` is called with each part of the work as it begins; True shows it.
    After ``time_limit`` seconds, the answer is the best so far, and `Plan.cut` says what was not looked at.
    """
    if strange := deploy_options(load):
        raise UnknownNameError("option", next(iter(strange)), LoadOptions.__annotations__)
    question = question_of(
        model, partial(resolve_workload, workload, load_options(load), model=load_model(model)),
        parse_slo(slo) if isinstance(slo, str) else slo,
        gpus=gpus, engines=engines, tariff=Tariff.of(price), facility=facility, quantizations=quantizations,
        max_gpus=max_gpus, budget=budget, max_model_len=max_model_len, disaggregate=disaggregate, objective=objective,
        least_odds=odds,
    )  # fmt: skip
    with stage_progress(tell) as say:
        return search(question, tell=say, time_limit=time_limit)
