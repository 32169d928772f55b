"""The API for people: a page made from the OpenAPI document, without scripts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

EXAMPLE = """curl -s localhost:8000/api/v1/simulate -H 'content-type: application/json' \\
  -d '{"state": {"model": "llama-3.1-8b", "gpu": "h200-sxm", "rate": 12}}'

curl -s 'localhost:8000/api/v1/memory?model=llama-3.3-70b&amp;gpu=h100-sxm&amp;tensor_parallel_size=4'

curl -s localhost:8000/api/v1/jobs -H 'content-type: application/json' \\
  -d '{"question": "plan", "state": {"rate": 20, "slo": "ttft_p99&lt;1s,tpot_p95&lt;40ms"}}'"""


def api_page(document: dict[str, Any]) -> str:
    """The whole page."""
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
    """What an answer holds."""
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
