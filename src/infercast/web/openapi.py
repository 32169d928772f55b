"""The HTTP API as an OpenAPI document, made from the table of fields, and as a page."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from infercast import __version__
from infercast.web.state import (
    CAPACITY,
    CURVE,
    ENERGY,
    FIELDS,
    MEMORY,
    NAMES,
    NUMBER,
    PLAN,
    SIMULATE,
    SWITCH,
    WHOLE,
    Field,
)

KINDS = {WHOLE: "integer", NUMBER: "number", SWITCH: "boolean", NAMES: "array"}
LONG = (PLAN, CAPACITY, ENERGY)
ERRORS = {
    "400": "The body is not JSON.",
    "403": "The server does not go by this name, or the request comes from a page of another site.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "422": "A field is wrong, the model is not known, or it does not fit (then with `memory`).",
    "429": "The client asks too often.",
    "503": "Too many questions wait already.",
    "504": "There is no answer in time; ask for fewer requests, or ask as a job.",
}
ABOUT = {
    "question": "string", "version": "string", "state": "object", "query": "string", "command": "string",
}  # fmt: skip
"""What every answer begins with."""
ANSWERS = {
    SIMULATE: (
        "What users would see of a deployment under load",
        "The forecast as `infercast simulate --json` prints it, and what charts are drawn from. With "
        "`intervals: false` it takes half the time and has neither 80 % intervals nor a verdict (`final` is false).",
        {"final": "boolean", "requests": "integer", "forecast": "object", "memory": "object",
         "distributions": "object", "timeline": "object", "rooflines": "array"},
    ),
    MEMORY: (
        "What fits", "How the memory of one GPU is divided, also where the model does not fit.", {"memory": "object"},
    ),
    CURVE: (
        "The load curve",
        "Latencies and throughput along request rates, the knee, and up to where the SLO holds; nine rates up to "
        "saturation where the state names none. Curves of many points are for jobs.",
        {"curve": "object"},
    ),
}  # fmt: skip


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "infercast",
            "version": __version__,
            "description": "Forecasts of LLM inference on GPUs. A state is an object of fields; what is left out has "
            "its default. The same fields are the query of the page's URL and options of the command line.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": {
            "/catalog": {"get": _plain("All that can be chosen from", "Fields, models, GPUs, engines and presets.")},
            "/openapi.json": {"get": _plain("This document", "The API as OpenAPI 3.1.")},
            **{f"/{name}": _question(name, *told) for name, told in ANSWERS.items()},
            "/export/{kind}": _export(),
            **_jobs(),
        },
        "components": {"schemas": {"State": state_schema(), "Question": _asked(), "Job": _job(), "Error": _error()}},
    }


def state_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _property(field) for field in FIELDS},
    }


def _property(field: Field) -> dict[str, Any]:
    kind = KINDS.get(field.kind, "string")
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


def _asked() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "state": {"$ref": "#/components/schemas/State"},
            "query": {"type": "string", "description": "In place of the state: the query of a URL of the page."},
            "config": {
                "type": "object",
                "description": "What a config.json holds, in place of the model; it is not kept. At most 256 KiB.",
            },
            "states": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/State"},
                "description": "Of export: 2 to 4 states to compare, in place of the state.",
            },
            "intervals": {"type": "boolean", "default": True, "description": "Of simulate: with 80 % intervals."},
        },
        "example": {"state": {"model": "llama-3.1-8b", "gpu": "h200-sxm", "rate": 12}},
    }


def _job() -> dict[str, Any]:
    names = ("queued", "running", "done", "failed", "cancelled")
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "Cannot be guessed; who knows it may look at the job and end it."},
            "kind": {"type": "string", "enum": [*LONG, CURVE, SIMULATE]},
            "state": {"type": "string", "enum": list(names)},
            "says": {"type": "string", "description": "What it is at."},
            "steps": {"type": "integer", "description": "Parts of the work that were begun."},
            "seconds": {"type": "number"},
            "result": {"type": "object", "description": "The answer, of a job that is done."},
            "error": {"type": "object", "description": "What was wrong, of one that failed."},
        },
    }


def _error() -> dict[str, Any]:
    texts = {"type": {"type": "string"}, "message": {"type": "string", "description": "One sentence."}}
    error = {"type": "object", "properties": texts}
    return {"type": "object", "properties": {"error": error, "memory": {"type": "object"}}}


def _reply(words: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _replies(words: str, schema: dict[str, Any], status: str = "200") -> dict[str, Any]:
    wrong = {"$ref": "#/components/schemas/Error"}
    return {status: _reply(words, schema), **{code: _reply(text, wrong) for code, text in ERRORS.items()}}


def _plain(title: str, words: str) -> dict[str, Any]:
    return {"summary": title, "description": words, "responses": {"200": _reply(title, {"type": "object"})}}


def _body() -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Question"}}}}


def _question(name: str, title: str, words: str, keys: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in {**ABOUT, **keys}.items()}}
    told = {"summary": title, "description": words, "responses": _replies(title, schema)}
    return {
        "get": {**told, "operationId": f"{name}_by_url", "parameters": _in_url(name)},
        "post": {**told, "operationId": name, "requestBody": _body()},
    }


def _in_url(name: str) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "in": "query", "schema": _property(field), "style": "form", "explode": False}
        for field in FIELDS
        if name in field.questions
    ]


def _export() -> dict[str, Any]:
    kinds = {"name": "kind", "in": "path", "required": True, "schema": {"enum": ["html", "csv", "json"]}}
    words = (
        "The HTML report (needs matplotlib), a row per request (CSV), or the forecast (JSON), to download. With "
        "`states`, a list of 2 to 4 states, the HTML page and the JSON compare them."
    )
    told = {"summary": "A run as a file", "description": words, "operationId": "export", "parameters": [kinds]}
    return {"post": {**told, "requestBody": _body(), "responses": _replies("A file", {"type": "string"})}}


def _jobs() -> dict[str, Any]:
    job = {"$ref": "#/components/schemas/Job"}
    name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    asked = {"allOf": [{"$ref": "#/components/schemas/Question"}, {"properties": {"question": _job_kinds()}}]}
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    start = {
        "summary": "Begin a question that takes long",
        "description": "`plan` finds the deployment that keeps the SLO at the least cost, `capacity` replicas over a "
        "day of traffic, `energy` the power limit that saves most energy. A job runs in a process of its own, for 30 "
        "minutes at most.",
        "operationId": "start_job", "requestBody": body, "responses": _replies("The job", job, "202"),
    }  # fmt: skip
    look = {"summary": "How far a job is", "operationId": "job", "responses": _replies("The job", job)}
    end = {"summary": "End a job", "operationId": "cancel_job", "responses": _replies("The job", job)}
    return {"/jobs": {"post": start}, "/jobs/{id}": {"parameters": [name], "get": look, "delete": end}}


def _job_kinds() -> dict[str, Any]:
    return {"type": "string", "enum": [*LONG, CURVE, SIMULATE]}


EXAMPLE = """curl -s localhost:8000/api/v1/simulate -H 'content-type: application/json' \\
  -d '{"state": {"model": "llama-3.1-8b", "gpu": "h200-sxm", "rate": 12}}'

curl -s 'localhost:8000/api/v1/memory?model=llama-3.3-70b&amp;gpu=h100-sxm&amp;tensor_parallel_size=4'

curl -s localhost:8000/api/v1/jobs -H 'content-type: application/json' \\
  -d '{"question": "plan", "state": {"rate": 20, "slo": "ttft_p99&lt;1s,tpot_p95&lt;40ms"}}'"""


def api_page(document: dict[str, Any]) -> str:
    info, schemas = document["info"], document["components"]["schemas"]
    base = document["servers"][0]["url"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>HTTP API - infercast</title>",
        f'<link rel="stylesheet" href="{base}/style.css"></head><body>',
        f"<header><h1>infercast {escape(info['version'])}: HTTP API</h1>",
        f"<p>{_prose(info['description'])}</p>",
        f'<p><a href="/">The page</a>. <a href="{base}/openapi.json">OpenAPI 3.1 document</a>. '
        f'<a href="{base}/catalog">Catalogue</a>.</p>',
        f'</header><main><pre tabindex="0" aria-label="Examples"><code>{EXAMPLE}</code></pre>',
        *(_path(base, path, told) for path, told in document["paths"].items()),
        '<section id="state"><h2>Fields of a state</h2>',
        _table(schemas["State"]["properties"]),
        "</section></main></body></html>\n",
    ]
    return "\n".join(parts)


def _path(base: str, path: str, told: dict[str, Any]) -> str:
    """One section for all methods that do the same."""
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
    """Text with code between backticks."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
