"""The reference of the HTTP API of ``infercast web``, made from its OpenAPI document."""

from __future__ import annotations

from typing import Any

from infercast.web.answers import openapi_document

INTRODUCTION = """# Reference: HTTP API

Every path of the API that `infercast web` serves under `/api/v1`, and every field of a state. This page is generated
from the OpenAPI document, which the server gives as `/api/v1/openapi.json`. [The page and the HTTP API](web.md) says
how they work together.

```
infercast web
curl -s http://127.0.0.1:8000/api/v1/simulate -H 'Content-Type: application/json' \\
    -d '{"state": {"model": "qwen3-8b", "gpu": "l40s", "rate": 4}}'
```
"""


def page() -> str:
    """Paths, then the fields of a state, then errors."""
    whole = openapi_document()
    parts = [INTRODUCTION, "## Paths\n", "| path | what it does |", "| --- | --- |"]
    errors: dict[str, str] = {}
    for path, methods in whole["paths"].items():
        for method, about in methods.items():
            if method == "parameters":
                continue
            sentences = ". ".join(filter(None, (about.get("summary"), about.get("description"))))
            parts.append(f"| `{method.upper()} /api/v1{path}` | {cell(sentences)} |")
            errors |= {
                code: reply["description"] for code, reply in about["responses"].items() if code.startswith(("4", "5"))
            }
    parts += ["", "## Fields of a state\n", "| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    parts += [row(name, about) for name, about in whole["components"]["schemas"]["State"]["properties"].items()]
    parts += ["", "## Errors\n", "An error is a JSON document with `error.type` and `error.message`.\n"]
    parts += ["| status | meaning |", "| --- | --- |"]
    parts += [f"| {code} | {cell(words)} |" for code, words in sorted(errors.items())]
    return "\n".join(parts) + "\n"


def row(name: str, about: dict[str, Any]) -> str:
    """One field of a state."""
    kind = about.get("type", "")
    kinds = ", ".join(each for each in ([kind] if isinstance(kind, str) else kind) if each)
    if "enum" in about:
        kinds += ": " + ", ".join(f"`{each}`" for each in about["enum"] if each is not None)
    default = about.get("default")
    shown = "" if default is None or default == [] else f"`{default}`"
    return f"| `{name}` | {cell(kinds)} | {shown} | {cell(about.get('description', ''))} |"


def cell(words: str) -> str:
    """Text that stays in its cell."""
    return " ".join(words.split()).replace("|", "\\|")
