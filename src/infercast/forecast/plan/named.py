"""A plan from Python, asked for by names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

from infercast.engines.registry import DEFAULT_ENGINE
from infercast.forecast.asking import Load, Servable, asked_workload
from infercast.forecast.money import Tariff
from infercast.forecast.plan.asked import USUAL_GPUS, question_of
from infercast.forecast.plan.result import Plan
from infercast.forecast.plan.search import plan as search
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.telling import told_stages
from infercast.forecast.wall import Facility


def plan(
    model: str,
    workload: Servable = None,
    *,
    slo: Slo | str,
    gpus: Sequence[str] = USUAL_GPUS,
    max_gpus: int = 8,
    budget: float | None = None,
    objective: str = "cost",
    odds: float = 0.0,
    quantizations: Sequence[str] = ("none",),
    engines: Sequence[str] = (DEFAULT_ENGINE,),
    max_model_len: int | None = None,
    disaggregate: bool = False,
    price: Tariff | float | None = None,
    facility: Facility | None = None,
    tell: Callable[[str], None] | bool | None = None,
    **load: Unpack[Load],
) -> Plan:
    """The deployment that keeps an SLO at the least cost, as ``infercast plan`` finds it.

    ``plan("llama-3.1-8b", rate=20, slo="ttft_p99<1s,tpot_p95<40ms")`` chooses from the usual GPUs; ``max_gpus`` is how
    many there are in all, ``budget`` the most dollars per hour. ``odds`` is how sure the SLO must be to hold, from 0
    (by the forecast's own numbers) to below 1. ``quantizations`` are formats of weights to try, ``none`` being the
    checkpoint's own, or ``any``. ``price`` is in dollars per GPU and hour, or says whose prices to take; ``facility``
    is what stands around the GPUs. ``tell`` is told of each part of the work as it begins; True shows it.
    """
    promised = parse_slo(slo) if isinstance(slo, str) else slo
    question = question_of(
        model,
        partial(asked_workload, workload, load),
        promised,
        gpus=gpus,
        engines=engines,
        tariff=price if isinstance(price, Tariff) else Tariff(per_gpu_hour=price),
        facility=facility,
        quantizations=quantizations,
        max_gpus=max_gpus,
        budget=budget,
        max_model_len=max_model_len,
        disaggregate=disaggregate,
        objective=objective,
        least_odds=odds,
    )
    with told_stages(tell) as say:
        return search(question, tell=say)
