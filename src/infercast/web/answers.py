"""Answers of page and HTTP API as plain data, in a server or a browser, and the API as OpenAPI document and page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from html import escape
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast import __version__
from infercast.bundled import DATA, read_data
from infercast.engines.base import Engine, engines
from infercast.errors import InputError, UnknownNameError, need
from infercast.forecast.autoscaling import Goal
from infercast.forecast.cost import bundled_lists, price_of
from infercast.forecast.day import capacity, day_within
from infercast.forecast.deploy import taken_by
from infercast.forecast.estimate import kernel_basis
from infercast.forecast.explain.overview import StepRoofline, load_curves, look_over, step_rooflines
from infercast.forecast.explain.step_log import Watched, watch_run
from infercast.forecast.intervals import jumps_over
from infercast.forecast.memory import fit_memory
from infercast.forecast.option_table import OPTIONS, PAGE_GROUPS
from infercast.forecast.plan.question import OBJECTIVES
from infercast.forecast.plan.request import question_of, same_named
from infercast.forecast.plan.search import plan
from infercast.forecast.progress import share_of_time, time_budget, usual_limit
from infercast.forecast.result import Forecast
from infercast.forecast.slo import Slo
from infercast.forecast.steady import LATE
from infercast.forecast.sweep import MOST_VALUES, parse_numbers, save_energy, sweep_rates
from infercast.glossary import glossary
from infercast.hardware import Gpu, gpu_names, load_gpu
from infercast.hardware.gpu import TOPOLOGIES
from infercast.hardware.host import host_cpus
from infercast.hardware.load import networks, servers
from infercast.models.library import configs
from infercast.models.quantization import schemes
from infercast.report.deployment import fit_dict
from infercast.report.forecast import forecast_dict, request_rows
from infercast.report.plan import plan_dict
from infercast.report.saved_runs import runs_of
from infercast.report.sweep import day_dict, savings_dict, sweep_dict
from infercast.report.terminal import pick
from infercast.serve.fleet.router import POLICIES
from infercast.serve.workload.distributions import ARRIVAL_KINDS
from infercast.units import MILLI, json_text
from infercast.web import state as page
from infercast.web.state import FIELDS, NAMES, NUMBER, SWITCH, WHOLE, Field

TYPES = {WHOLE: "integer", NUMBER: "number", SWITCH: "boolean", NAMES: "array"}
WORDS, HEAD = "web/api.toml", DATA / "web/api_head.html"
COPIED = ("summary", "description", "operationId", "parameters")
QUESTION, ERROR = ({"$ref": f"#/components/schemas/{name}"} for name in ("Question", "Error"))
Tell = Callable[[str], None]
KINDS = ("html", "csv", "json")
QUANTILES = np.linspace(0.0, 1.0, 201)
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1)  # Of the saturating rate, where none are given
Answer = dict[str, Any]
Handler = Callable[[Mapping[str, Any], Tell], Answer]
QUICK_REQUESTS = 150  # of an answer that must come soon, where a simulation goes step by step
MOST_COMPARED = 4
_runs: dict[str | None, Watched] = {}


def openapi_document() -> dict[str, Any]:
    words = read_data(WORDS)
    fields = {field.name: _property(field) for field in FIELDS}
    state = {"type": "object", "additionalProperties": False, "properties": fields}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "infercast", "version": __version__, "description": words["description"],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": {
            path: {
                name: list(each) if name == "parameters" else _operation(each, words["errors"])
                for name, each in operations.items()
            }
            for path, operations in {**words["before"], **_questions(words), **words["after"]}.items()
        },
        "components": {"schemas": {"State": state, **words["schemas"]}},
    }  # fmt: skip


def _questions(words: dict[str, Any]) -> dict[str, Any]:
    """Each question twice: its state in the URL, or in the body."""
    found = {}
    for name, each in words["questions"].items():
        keys = {key: {"type": kind} for key, kind in {**words["about"], **each["answer"]}.items()}
        common = {**each, "schema": {"type": "object", "properties": keys}}
        in_url = [
            {"name": field.name, "in": "query", "schema": _property(field), "style": "form", "explode": False}
            for field in FIELDS
            if name in field.questions
        ]
        found[f"/{name}"] = {
            "get": {**common, "operationId": f"{name}_by_url", "parameters": in_url},
            "post": {**common, "operationId": name, "body": QUESTION},
        }
    return found


def _operation(words: dict[str, Any], errors: dict[str, str]) -> dict[str, Any]:
    found = {name: words[name] for name in COPIED if name in words}
    if "body" in words:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": words["body"]}}}
    replies = {words.get("status", "200"): (words.get("reply", words["summary"]), words["schema"])}
    if "operationId" in words:
        replies |= {code: (text, ERROR) for code, text in errors.items()}
    found["responses"] = {
        code: {"description": text, "content": {"application/json": {"schema": schema}}}
        for code, (text, schema) in replies.items()
    }
    return found


def _property(field: Field) -> dict[str, Any]:
    kind = TYPES.get(field.kind, "string")
    found: dict[str, Any] = {"type": kind if field.default is not None else [kind, "null"]}
    if field.kind == NAMES:
        found["items"] = {"type": "string"}
    found["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    if field.low is not None:
        found |= {"minimum": field.low, "maximum": field.high}
    notes = [field.help]
    if field.unit:
        notes.append(f"In {field.unit}.")
    if field.option:
        notes.append(f"On the command line: {field.option}.")
    if field.catalogue:
        notes.append(f"Values: `{field.catalogue}` of the catalogue.")
    return {**found, "title": field.label, "description": " ".join(notes)}


def api_page(document: dict[str, Any]) -> str:
    info, schemas = document["info"], document["components"]["schemas"]
    base = document["servers"][0]["url"]
    words = {"base": base, "version": escape(info["version"]), "description": _prose(info["description"])}
    parts = [
        HEAD.read_text(encoding="utf-8").format(**words),
        *(_path(base, path, told) for path, told in document["paths"].items()),
        '<section id="state"><h2>Fields of a state</h2>',
        _table(schemas["State"]["properties"]),
        "</section></main></body></html>\n",
    ]
    return "\n".join(parts)


def _path(base: str, path: str, told: dict[str, Any]) -> str:
    by_summary: dict[str, list[str]] = {}
    for method in ("get", "post", "delete"):
        if method in told:
            by_summary.setdefault(told[method]["summary"], []).append(method)
    rows = []
    for summary, methods in by_summary.items():
        each = told[methods[-1]]
        names = " ".join(f'<span class="method">{method.upper()}</span>' for method in methods)
        rows.append(
            f"<section><h2>{names} <code>{escape(base + path)}</code></h2><p><strong>{escape(summary)}.</strong> "
            f"{_prose(each.get('description', ''))}</p>{_keys(each)}{_codes(each)}</section>"
        )
    return "\n".join(rows)


def _keys(told: dict[str, Any]) -> str:
    reply = next(iter(told["responses"].values()))
    schema = next(iter(reply["content"].values()))["schema"]
    names = list(schema.get("properties", {}))
    return f"<p>Answer: {', '.join(f'<code>{escape(name)}</code>' for name in names)}.</p>" if names else ""


def _codes(told: dict[str, Any]) -> str:
    replies = told["responses"]
    if len(replies) == 1:
        return ""
    rows = "".join(f"<dt>{code}</dt><dd>{_prose(each['description'])}</dd>" for code, each in replies.items())
    return f"<details><summary>Status codes</summary><dl>{rows}</dl></details>"


def _table(properties: dict[str, Any]) -> str:
    rows = []
    for name, each in properties.items():
        kind = each["type"] if isinstance(each["type"], str) else each["type"][0]
        limits = f", {each['minimum']:g} to {each['maximum']:g}" if "minimum" in each else ""
        rows.append(
            f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{kind}{limits}</td>'
            f"<td><code>{escape(json.dumps(each['default']))}</code></td><td>{_prose(each['description'])}</td></tr>"
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("field", "type", "default", "what it says"))
    return (
        '<div class="wide" role="region" aria-label="Fields" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _prose(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))


def memory_of(asked: page.Asked) -> dict[str, Any]:
    """How the memory of one GPU is divided, also where the answer is that the model does not fit."""
    state = asked.state
    fit = fit_memory(asked.model, page.known_gpu(state["gpu"]), page.settings_of(asked), **taken_by(fit_memory, state))
    found = fit_dict(fit)
    parts = [{"key": name, "title": name.replace("_", " "), "bytes": size} for name, size in found["bytes"].items()]
    return {
        **found, "parts": parts,
        "needed_bytes": sum(part["bytes"] for part in parts if part["key"] not in ("KV_cache", "left_free")),
        "usable_bytes": found["total_bytes"] * getattr(fit.settings, "gpu_memory_utilization", 1.0),
        "kv_tokens": found["num_gpu_blocks"] * found["block_size"], "gpus": fit.layout.gpus,
    }  # fmt: skip


def plan_of(asked: page.Asked, tell: Tell) -> dict[str, Any]:
    """The deployment that keeps the SLO at the least cost, as ``infercast plan --json`` prints it."""
    state, slo = asked.state, _needed(asked)
    if asked.config is not None:
        raise InputError("a plan needs a bundled model by name; `infercast plan` on a terminal takes a config.json")
    model, gpus = str(asked.model), tuple(page.known_gpu(name) for name in state["gpus"])
    if not gpus:
        raise InputError("gpus is empty; a plan needs at least one kind of GPU to choose from")
    drafts = {name: state[name] for name in ("acceptance", "speculative_config")}
    if drafts["speculative_config"] is not None:
        page.check_draft(drafts["speculative_config"])
    question = question_of(
        model, partial(page.workload_of, asked), slo, gpus=gpus, engines=(asked.engine.name,), tariff=asked.tariff,
        facility=asked.facility, quantizations=state["quantizations"], drafts=drafts,
        power_budget=None if state["power_budget"] is None else 1000.0 * state["power_budget"],
        least_odds=state["odds"], **same_named(state),
    )  # fmt: skip
    return plan_dict(plan(question, tell=tell, time_limit=limit_of(asked)))


def capacity_of(asked: page.Asked, tell: Tell) -> dict[str, Any]:
    """Replicas over a day by three policies, as ``infercast capacity --json`` prints it."""
    state, slo, longest = asked.state, _needed(asked), page.longest_of(asked)
    if state["rate"] is None:
        raise InputError("capacity needs the mean rate of the day; give rate, and leave out concurrency and sessions")
    traffic = day_within(state, longest)
    goal = Goal() if state["goal_minutes"] is None else Goal(state["goal_minutes"])
    deployment = page.deployment_of(asked)()
    found = capacity(deployment, traffic, slo, goal=goal, price=asked.tariff, facility=asked.facility, tell=tell)
    return day_dict(found)


def energy_of(asked: page.Asked, tell: Tell) -> dict[str, Any]:
    """Joules and latencies by power limits, and the best of them, as ``infercast energy --json`` prints it."""
    state, wanted = asked.state, page.deployment_of(asked)
    model, gpu, settings = wanted.args
    found = save_energy(
        model, gpu, page.workload_of(asked),
        power_limits=None if state["power_limits"] is None else parse_numbers(state["power_limits"], "power_limits"),
        slo=asked.slo, price=asked.tariff, facility=asked.facility, settings=settings,
        router=state["router"] if state["data_parallel_size"] > 1 else None, tell=tell,
        **{**wanted.keywords, "power_limit_w": None},
    )  # fmt: skip
    return savings_dict(found)


def _needed(asked: page.Asked) -> Slo:
    if asked.slo is None:
        raise InputError("slo is empty, and this question needs one, such as ttft_p99<1s,tpot_p95<40ms")
    return asked.slo


def comparison_of(kind: str, documents: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> dict[str, Any]:
    """The same of several runs side by side; the first is the one that others are compared with."""
    if kind == "csv":
        raise InputError("a table of requests is of one run; ask for html or json of several")
    runs = runs_of(documents, titles)
    if kind == "json":
        text = _json({run.name: document for run, document in zip(runs, documents, strict=True)})
    else:
        from infercast.report.page.html import several_page  # noqa: PLC0415 - it loads matplotlib

        text = several_page(runs)
    return {"name": f"comparison.{kind}", "text": text}


def title_of(forecast: Forecast) -> str:
    deployment = forecast.pools[0].deployment
    return f"{deployment.model.name} {deployment.gpu.name}"


def _json(document: Mapping[str, Any]) -> str:
    return json_text(document, indent=2) + "\n"


def charts_of(run: Watched) -> dict[str, Any]:
    forecast = run.forecast
    served = forecast.clients
    names = {"seconds": "times", "output_tokens_per_s": "output_tokens"}
    most_points = 120
    curves = pick(load_curves(run, most_points), "running waiting kv_usage", **names)
    return {
        "distributions": {
            "ttft_ms": _distribution(served.ttft),
            "tpot_ms": _distribution(served.tpot),
            "end_to_end_ms": _distribution(served.last_token - served.sent_at),
        },
        "timeline": {key: _short(values) for key, values in curves.items()},
        "rooflines": [
            {"pool": pool.role, "phases": [_phase(each) for each in step_rooflines(pool)]} for pool in forecast.pools
        ],
    }


def _distribution(seconds: npt.NDArray[Any]) -> list[float] | None:
    """Milliseconds at 0, 0.5, ... 100 % of all requests; None where no request has such a latency."""
    known = seconds[np.isfinite(seconds)]
    return _short(np.quantile(known, QUANTILES) / MILLI) if known.size else None


def _phase(step: StepRoofline) -> dict[str, Any]:
    """A step of average size; ``share`` is that of its kernels in the time of all such steps."""
    kernel = {"flops_per_byte": "intensity", "flops_per_s": "flops_per_second", "limit_flops_per_s": "limit"}
    return {
        **pick(step, "phase prompt_tokens context share", prompts="num_prompts", decodes="num_decodes"),
        **pick(step, dram_bytes_per_s="bandwidth", peaks_flops_per_s="peaks"),
        "kernels": [pick(point, "name family dtype share", **kernel) for point in step.points],
    }


def _short(values: Any) -> list[float]:
    """Numbers with few digits: they are drawn, and travel."""
    digits = 5
    return [float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]


def curve_of(asked: page.Asked, tell: Callable[[str], None]) -> tuple[page.Asked, dict[str, Any]]:
    state = asked.state
    if state["turns"] is not None:
        raise InputError("a load curve is along request rates; leave out turns")
    if state["arrival"] == "burst":
        raise InputError("a load curve is along request rates; arrival burst has none")
    fixed = {"concurrency": None, "session_rate": None, "num_requests": state["curve_requests"]}
    system, workload = page.system_asked(asked), page.workload_of(asked, **fixed, rate=state["rate"] or 1.0)
    if state["rates"] is None:
        most = page.capacity_known(asked, system, workload)()
        rates = tuple(dict.fromkeys(float(f"{share * most:.3g}") for share in SHARES))
        asked = asked._replace(state={**state, "rates": ",".join(f"{rate:g}" for rate in rates)})
    else:
        rates = tuple(dict.fromkeys(parse_numbers(state["rates"], "rates")))
    if len(rates) > MOST_VALUES:
        raise InputError(f"rates may be {MOST_VALUES} at most, not {len(rates)}")
    found = sweep_rates(system, workload, rates, slo=asked.slo, price=asked.tariff, facility=asked.facility, tell=tell)
    return asked, sweep_dict(found)


@cache
def catalogue() -> dict[str, Any]:
    return {
        "version": __version__, "groups": list(PAGE_GROUPS), "fields": [_field(each) for each in page.FIELDS],
        "models": [_model(name, config) for name, config in configs().items()],
        "gpus": [_gpu(load_gpu(name)) for name in gpu_names()],
        "engines": [_engine(each) for each in engines().values()], "quantizations": ["none", *schemes("overrides")],
        "hosts": [{"name": each.name, "title": each.title} for each in host_cpus().values()],
        "networks": [{"name": name, "bytes_per_s": each.bandwidth} for name, each in networks().items()],
        "pcie_topologies": list(TOPOLOGIES), "servers": list(servers()), "routers": list(POLICIES),
        "arrivals": list(ARRIVAL_KINDS), "objectives": list(OBJECTIVES), "providers": list(bundled_lists()),
        "glossary": [term._asdict() for term in glossary()],
        "presets": [_preset(key, dict(values)) for key, values in read_data("web/presets.toml").items()],
    }  # fmt: skip


def _field(field: page.Field) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in field._asdict().items()}


def _model(name: str, config: dict[str, Any]) -> dict[str, Any]:
    told = config["infercast"]
    text = config.get("text_config", config)
    return {
        "name": name, "hugging_face": list(told["aliases"]), "parameters": told["parameters"],
        "architecture": (config.get("architectures") or [config.get("model_type", "")])[0],
        "layers": text.get("num_hidden_layers"), "max_positions": text.get("max_position_embeddings"),
    }  # fmt: skip


def _gpu(gpu: Gpu) -> dict[str, Any]:
    price = price_of(gpu.name)
    sizes = {"memory_bytes": "driver_bytes", "dram_bytes_per_s": "dram_bandwidth", "tdp_w": "tdp"}
    return {
        **pick(gpu, "name title architecture gpus_per_node", **sizes, nvlink_bytes_per_s="nvlink_bandwidth"),
        "flops_per_s": dict(gpu.tensor_flops),
        "usd_per_gpu_hour": None if price is None else price.per_hour,
        "known_by": sorted({each.words for each in kernel_basis(gpu)}),
    }


def _engine(engine: Engine) -> dict[str, Any]:
    return {
        **pick(engine, "name title note is_measured load_balancer"),
        "kv_cache_dtypes": list(engine.names.kv_cache_dtypes),
        "fields": [
            each.name for each in page.FIELDS if each.setting and page.own_name_of(each.name, engine) is not None
        ],
        "settings": {name: kind.__name__ for name, kind in engine.setting_types.items() if name != "engine"},
    }


def _preset(key: str, values: dict[str, Any]) -> dict[str, Any]:
    title, says = values.pop("title"), values.pop("says")
    return {"key": key, "title": title, "says": says, "state": values, "query": page.to_query(page.read_state(values))}


def simulate(document: Mapping[str, Any], _: Tell) -> Answer:
    """The forecast as ``infercast simulate --json`` has it, and charts; without intervals it is quicker and shorter."""
    asked = page.read_asked(document)
    final = document.get("intervals", True)
    if not isinstance(final, bool):
        raise InputError(f"intervals must be true or false, not {final!r}")
    with time_budget(limit_of(asked)):
        run = run_of(asked) if final else quick_run(asked)
        run = decided(asked, run, final=final)
        return {
            **about(asked, page.SIMULATE), "command": command_of(asked, run), "final": final,
            "requests": len(run.forecast.workload.requests),
            "forecast": forecast_dict(run.forecast, run.forecast.intervals if final else None),
            "memory": memory_of(asked), **charts_of(run),
        }  # fmt: skip


def curve(document: Mapping[str, Any], tell: Tell) -> Answer:
    """Latencies and throughput along request rates, the knee, and up to where the SLO holds."""
    asked = page.read_asked(document)
    with time_budget(limit_of(asked)):
        asked, found = curve_of(asked, tell)
    return {**about(asked, page.CURVE), "curve": found}


def export(document: Mapping[str, Any], _: Tell) -> Answer:
    """A run as a file of a ``kind``, or several ``states`` side by side: its name and what it holds."""
    kind, several = document.get("kind"), document.get("states")
    if kind not in KINDS:
        raise UnknownNameError("kind of export", str(kind)[:40], KINDS)
    if kind == "html":
        need("a report", "report")
    if several is not None:
        if not isinstance(several, list) or not 2 <= len(several) <= MOST_COMPARED:
            raise InputError(f"states must be a list of 2 to {MOST_COMPARED} states")
        runs = [_whole(page.read_asked({"state": each})) for each in several]
        return comparison_of(kind, [run.forecast.to_dict() for run in runs], [title_of(run.forecast) for run in runs])
    asked = page.read_asked(document)
    run = _whole(asked)
    forecast = run.forecast
    if kind == "csv":
        text = "".join(request_rows(forecast))
    elif kind == "json":
        text = _json(forecast.to_dict())
    else:
        from infercast.report.page.html import report_page  # noqa: PLC0415 - it loads matplotlib

        text = report_page(look_over(run), command_of(asked, run))
    name = re.sub(r"[^\w.-]+", "-", title_of(forecast))
    return {"name": f"{name}.{kind}", "text": text}


def _whole(asked: page.Asked) -> Watched:
    with time_budget(limit_of(asked)):
        run = run_of(asked)
        _ = run.forecast.intervals  # within the time; what follows asks for them again
        return decided(asked, run)


def _alone(question: str, work: Callable[[page.Asked, Tell], dict[str, Any]]) -> Handler:

    def answered(document: Mapping[str, Any], tell: Tell) -> Answer:
        asked = page.read_asked(document)
        with time_budget(None if question == page.PLAN else limit_of(asked)):  # a plan has its own
            return {**about(asked, question), question: work(asked, tell)}

    return answered


QUESTIONS: dict[str, Handler] = {
    "catalog": lambda *_: catalogue(), page.SIMULATE: simulate,
    page.MEMORY: _alone(page.MEMORY, lambda asked, _: memory_of(asked)), page.CURVE: curve,
    page.PLAN: _alone(page.PLAN, plan_of), page.CAPACITY: _alone(page.CAPACITY, capacity_of),
    page.ENERGY: _alone(page.ENERGY, energy_of), "export": export, "openapi": lambda *_: openapi_document(),
    "api_page": lambda *_: {"html": api_page(openapi_document())},
}  # fmt: skip


def answer(name: str, document: Mapping[str, Any], tell: Tell | None = None) -> Answer:
    if name not in QUESTIONS:
        raise UnknownNameError("question", name, QUESTIONS)
    return QUESTIONS[name](document, tell or (lambda _: None))


def about(asked: page.Asked, question: str) -> Answer:
    """What every answer says of its question: the whole state, its URL and its command line."""
    return {
        "question": question, "version": __version__, "state": asked.state, "query": page.to_query(asked.state),
        "command": page.to_command(asked.state, question, config=asked.config is not None),
    }  # fmt: skip


def command_of(asked: page.Asked, run: Watched) -> str:
    """The command line of a run, which says so where the run is overloaded: it is refused otherwise."""
    command = page.to_command(asked.state, page.SIMULATE, config=asked.config is not None)
    return command if run.forecast.saturation is None else f"{command} --allow-overload"


def limit_of(asked: page.Asked) -> float | None:
    """Seconds that an answer may take."""
    given: float | None = asked.state["time_limit"]
    return given if given is None or given != OPTIONS["time_limit"].default else usual_limit(given)


def quick_run(asked: page.Asked) -> Watched:
    """A run for an answer that must come soon: of few requests where a simulation goes step by step."""
    if run_key(asked) in _runs or jumps_over(page.system_asked(asked)):
        soon = 1.0  # Seconds of a run that is shown until the whole one is there
        with time_budget(soon):
            return run_of(asked)
    number = min(asked.state["num_requests"] or QUICK_REQUESTS, QUICK_REQUESTS)
    few = asked._replace(state={**asked.state, "num_requests": number})
    return watch_run(page.system_asked(few), page.workload_of(few), steady=few.state["steady"], capacity=lambda: inf)


def run_of(asked: page.Asked) -> Watched:
    """The simulated run; the last few are kept, but for those of a dropped config."""
    key = run_key(asked)
    if key in _runs:
        return _runs[key]
    system, workload = page.system_asked(asked), page.workload_of(asked)
    capacity = page.capacity_known(asked, system, workload)
    with share_of_time(0.5):  # intervals and changes take the rest
        run = watch_run(system, workload, steady=asked.state["steady"], capacity=capacity, slo=asked.slo)
    if key is not None and run.forecast.steady.stopped != LATE:
        _runs[key] = run
        kept_runs = 4  # runs that are kept, since their intervals, files or details may be asked for next
        while len(_runs) > kept_runs:
            _runs.pop(next(iter(_runs)))
    return run


def run_key(asked: page.Asked) -> str | None:
    """What a run depends on: everything but prices; None for a dropped config, of which nothing is kept."""
    if asked.config is not None:
        return None
    groups = (*page.OF_SYSTEMS, "traffic", "sessions", "promise")
    return json.dumps({field.name: asked.state[field.name] for field in page.FIELDS if field.group in groups})


def decided(asked: page.Asked, run: Watched, *, final: bool = True) -> Watched:
    """The run with prices, held against what is promised; a verdict needs intervals, which only a final answer has."""
    forecast = replace(run.forecast, tariff=asked.tariff, facility=asked.facility)
    if asked.slo is not None and final:
        forecast = forecast.promised(asked.slo)
    return replace(run, forecast=forecast)
