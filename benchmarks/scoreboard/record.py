"""Results that are kept with the code: forecasts and errors of every run, without the table they were held against."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groups import QUANTITIES, family_of, layout_of, load_of, precision_of

DIGITS = 4


def record_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The record of a board's lines: same lines, same record."""
    runs: dict[str, Any] = {}
    reasons: dict[str, Counter[str]] = {}
    texts: dict[str, int] = {}
    for line in lines:
        if "reason" in line:
            reasons.setdefault(line["grade"] or "none", Counter())[line["reason"]] += 1
            continue
        runs[_key(line, runs)] = {
            "source": short_source(line["source"]), "gpu": line["gpu"], "engine": line["engine"],
            "version": line["version"], "model": line["model"], "family": family_of(line["model"]),
            "precision": precision_of(line["precision"]), "layout": layout_of(line["layout"]),
            "load": load_of(line["load"], line["about_load"]), "grade": line["grade"],
            **{name: _rounded(line[name]) for name in QUANTITIES if name in line},
            "assumed": [texts.setdefault(text, len(texts)) for text in line["assumptions"]],
        }  # fmt: skip
    counts = {grade: dict(sorted(counts.items())) for grade, counts in sorted(reasons.items())}
    return {"not_simulated": counts, "assumptions": list(texts), "runs": runs}


def short_source(source: str) -> str:
    """``SemiAnalysisAI/InferenceX (CSV export in ...)`` as ``InferenceX (CSV export)``."""
    plain = source.replace("SemiAnalysisAI/", "")
    name, opened, rest = plain.partition(" (")
    return f"{name} ({' '.join(rest.split()[:2])})" if opened else name


def _key(line: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    """A name that stays when rows are added to the table: where the run was published."""
    base = f"{line['source'].partition(' ')[0]}: {line['path'].partition(' https')[0]}"
    number, key = 1, base
    while key in taken:
        number += 1
        key = f"{base} ({number})"
    return key


def _rounded(pair: Mapping[str, float]) -> dict[str, Any]:
    return {
        "predicted": float(f"{pair['predicted']:.{DIGITS}g}"),
        "error": round(pair["error"], DIGITS),
        "inside": bool(pair["low"] <= pair["measured"] <= pair["high"]),
        "width": round((pair["high"] - pair["low"]) / 2 / pair["predicted"], DIGITS),
    }


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """One run a line, so that two revisions can be read side by side."""
    parts = [f"{json.dumps(name)}: {json.dumps(record[name], ensure_ascii=False)}" for name in ("not_simulated",)]
    texts = ",\n".join(json.dumps(text, ensure_ascii=False) for text in record["assumptions"])
    runs = ",\n".join(
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(_packed(run), ensure_ascii=False, separators=(',', ':'))}"
        for key, run in record["runs"].items()
    )
    parts += [f'"assumptions": [\n{texts}\n]', f'"runs": {{\n{runs}\n}}']
    whole = "{\n" + ",\n".join(parts) + "\n}\n"
    beside = path.with_suffix(".new")
    beside.write_text(whole, encoding="utf-8")
    beside.replace(path)


def read_record(path: Path) -> dict[str, Any]:
    """A record that was written before."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for run in found["runs"].values():
        for name in QUANTITIES:
            if name in run:
                predicted, error, inside, *width = run[name]  # older records have none
                run[name] = {"predicted": predicted, "error": error, "inside": bool(inside), "width": sum(width)}
    return found


def _packed(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run with forecast, error, whether it is inside and half the width in a list."""
    return {
        name: [value["predicted"], value["error"], int(value["inside"]), value["width"]]
        if name in QUANTITIES
        else value
        for name, value in run.items()
    }
