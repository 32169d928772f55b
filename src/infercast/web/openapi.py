"""The HTTP API as an OpenAPI document, made from the table of fields, and as a page."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from infercast import __version__
from infercast.bundled import DATA, read_data
from infercast.web.state import FIELDS, NAMES, NUMBER, SWITCH, WHOLE, Field

KINDS = {WHOLE: "integer", NUMBER: "number", SWITCH: "boolean", NAMES: "array"}
WORDS, HEAD = "web/api.toml", DATA / "web/api_head.html"
COPIED = ("summary", "description", "operationId", "parameters")
QUESTION, ERROR = ({"$ref": f"#/components/schemas/{name}"} for name in ("Question", "Error"))


def document() -> dict[str, Any]:
    words = read_data(WORDS)
    fields = {field.name: _property(field) for field in FIELDS}
    state = {"type": "object", "additionalProperties": False, "properties": fields}
    paths = {**words["before"], **_questions(words), **words["after"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "infercast",
            "version": __version__,
            "description": words["description"],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": {
            path: {
                name: list(each) if name == "parameters" else _operation(each, words["errors"])
                for name, each in operations.items()
            }
            for path, operations in paths.items()
        },
        "components": {"schemas": {"State": state, **words["schemas"]}},
    }


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
