"""Questions that take long: the cheapest deployment that keeps an SLO, replicas over a day, and power limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from infercast.errors import InputError
from infercast.forecast.day.day import plan_day
from infercast.forecast.day.outcome import Goal
from infercast.forecast.day.traffic import made_up_day
from infercast.forecast.plan.asked import question_of
from infercast.forecast.plan.search import plan
from infercast.forecast.slo import Slo
from infercast.forecast.sweep.axis import parse_numbers
from infercast.forecast.sweep.savings import save_energy
from infercast.report.day_data import day_dict
from infercast.report.plan import plan_dict
from infercast.report.savings import savings_dict
from infercast.serve.workload.asked import lengths_within
from infercast.web.arguments import Asked, check_draft, deployment_of, known_gpu, longest_of, workload_of

Tell = Callable[[str], None]


def plan_of(asked: Asked, tell: Tell) -> dict[str, Any]:
    """The deployment that keeps the SLO at the least cost, as ``infercast plan --json`` prints it."""
    state, slo = asked.state, _needed(asked)
    if asked.config is not None:
        raise InputError("a plan needs a bundled model by name; `infercast plan` on a terminal takes a config.json")
    model, gpus = str(asked.model), tuple(known_gpu(name) for name in state["gpus"])
    if not gpus:
        raise InputError("gpus is empty; a plan needs at least one kind of GPU to choose from")
    drafts = {name: state[name] for name in ("acceptance", "speculative_config")}
    if drafts["speculative_config"] is not None:
        check_draft(drafts["speculative_config"])
    question = question_of(
        model,
        partial(workload_of, asked),
        slo,
        gpus=gpus,
        engines=(asked.engine.name,),
        tariff=asked.tariff,
        facility=asked.facility,
        quantizations=state["quantizations"],
        drafts=drafts,
        max_gpus=state["max_gpus"],
        budget=state["budget"],
        power_budget=None if state["power_budget"] is None else 1000.0 * state["power_budget"],
        max_model_len=state["max_model_len"],
        disaggregate=state["disaggregate"],
        objective=state["objective"],
        least_odds=state["odds"],
        pcie_topology=state["pcie_topology"],
        api_server=state["api_server"],
    )
    return plan_dict(plan(question, tell=tell))


def capacity_of(asked: Asked, tell: Tell) -> dict[str, Any]:
    """Replicas over a day by three policies, as ``infercast capacity --json`` prints it."""
    state, slo, longest = asked.state, _needed(asked), longest_of(asked)
    if state["rate"] is None:
        raise InputError("capacity needs the mean rate of the day; give rate, and leave out concurrency and sessions")
    inputs, outputs, _ = lengths_within(state["input_len"], state["output_len"], longest)
    if inputs.maximum + outputs.maximum > longest:
        raise InputError(
            f"input_len and output_len give up to {inputs.maximum + outputs.maximum:,} tokens, above the longest "
            f"sequence of {longest:,}; shorten them or raise max_model_len"
        )
    traffic = made_up_day(state["rate"], state["day_profile"], inputs, outputs, seed=state["seed"])
    goal = Goal() if state["goal_minutes"] is None else Goal(state["goal_minutes"])
    deployment = deployment_of(asked)()
    return day_dict(
        plan_day(deployment, traffic, slo, goal=goal, price=asked.tariff, facility=asked.facility, tell=tell)
    )


def energy_of(asked: Asked, tell: Tell) -> dict[str, Any]:
    """Joules and latencies by power limits, and the best of them, as ``infercast energy --json`` prints it."""
    state, wanted = asked.state, deployment_of(asked)
    model, gpu, settings = wanted.args
    found = save_energy(
        model,
        gpu,
        workload_of(asked),
        power_limits=None if state["power_limits"] is None else parse_numbers(state["power_limits"], "power_limits"),
        slo=asked.slo,
        price=asked.tariff,
        facility=asked.facility,
        settings=settings,
        router=state["router"] if state["data_parallel_size"] > 1 else None,
        tell=tell,
        **{**wanted.keywords, "power_limit_w": None},
    )
    return savings_dict(found)


def _needed(asked: Asked) -> Slo:
    if asked.slo is None:
        raise InputError("slo is empty, and this question needs a promise to keep, such as ttft_p99<1s,tpot_p95<40ms")
    return asked.slo
