"""Forecasts of whole PyTorch modules against their measured milliseconds, eager and as CUDA graphs.

    python benchmarks/accuracy/modules.py [--captures FOLDER] [--rows] [--only NAME,NAME] [--write]

Modules are made as by benchmarks/measure/torch_modules.py, on the meta device, and captured; captures are kept in the
folder, since they do not depend on forecasts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks" / "measure")]

from captures import capture_from_json, capture_to_json  # noqa: E402

from infercast.torch_modules.forecast import forecast_capture  # noqa: E402
from infercast.torch_modules.lower import Capture  # noqa: E402

TORCH = ROOT / "measurements" / "h200-sxm" / "torch"


def captured(folder: Path, name: str, kind: str, batch: int, *, graph: bool) -> Capture | None:
    """From the folder, or else by running the module's code."""
    path = folder / f"{name}-{'bf16' if kind == 'bf16' else 'fp32'}-{batch}-{'graph' if graph else 'eager'}.json.gz"
    if not path.exists():
        made = make_capture(name, kind, batch, graph=graph)
        path.write_bytes(gzip.compress(capture_to_json(made).encode() if made is not None else b""))
    text = gzip.decompress(path.read_bytes()).decode()
    return capture_from_json(text) if text else None


MADE: dict[str, Any] = {}


def make_capture(name: str, kind: str, batch: int, *, graph: bool) -> Capture | None:
    import torch  # noqa: PLC0415
    import torch_modules  # noqa: PLC0415

    from infercast.torch_modules.capture import capture  # noqa: PLC0415

    if name not in MADE:
        make = (torch_modules.MODULES | torch_modules.MORE)[name][0]
        MADE.clear()
        try:
            with torch.device("meta"):
                MADE[name] = make()
        except NotImplementedError:
            MADE[name] = make()
    module, inputs = MADE[name]
    made_on = {each: getattr(torch, each) for each in ("randn", "randint")}
    elsewhere = {"randn": "meta", "randint": "cpu"}

    def moved(each: str) -> Any:
        return lambda *args, **kwargs: made_on[each](*args, **kwargs | {"device": elsewhere[each]})

    with patch.object(torch, "randn", moved("randn")), patch.object(torch, "randint", moved("randint")):
        given = inputs(batch, torch.float32)
    try:
        return capture(module, given, dtype="bfloat16" if kind == "bf16" else "float32", graph=graph)
    except Exception as problem:
        print(name, kind, batch, repr(problem)[:200], file=sys.stderr)
        return None


FILES = {
    "Modules that rules and constants were chosen by": "modules.json.gz",
    "Modules that were measured afterwards": "more_modules.json.gz",
    "Compiled": "compiled_modules.json.gz",
}
EXECUTIONS = ("eager", "graph", "compiled")
Errors = dict[str, dict[str, list[float]]]


def errors_of(file: str, options: argparse.Namespace) -> Errors:
    """Errors by module and execution; those of host-bound calls by ``host``, too."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    for case in json.loads(gzip.decompress((TORCH / file).read_bytes()))["cases"]:
        name, kind, batch = case["module"], case["format"], case["batch"]
        row = f"{name} {kind} {batch}"
        for execution in EXECUTIONS if file.startswith("compiled") else EXECUTIONS[:2]:
            measured = case.get(f"{execution}_ms")
            if not measured or (options.only and name not in options.only.split(",")):
                continue
            found = captured(options.captures, name, kind, batch, graph=execution != "eager")
            if found is None:
                continue
            made = forecast_capture(found, gpu="h200-sxm", execution=execution, dtype=kind)
            error = 1e3 * made.seconds / measured - 1.0
            errors[name][execution].append(error)
            if execution == "eager":
                errors[name]["host" if measured > 1.5 * case.get("graph_ms", measured) else "gpu"].append(error)
            row += f" | {execution} {measured:.3f} {error:+.0%} ({made.bound}, unknown {made.unknown_share:.1%})"
        if options.rows and "|" in row:
            print(row, flush=True)
    return errors


def said(several: list[float]) -> str:
    if not several:
        return " | "
    return f"{100 * statistics.median(map(abs, several)):.1f} | {100 * max(several, key=abs):+.0f}"


def table(title: str, errors: Errors) -> str:
    kinds = [kind for kind in EXECUTIONS if any(by_kind[kind] for by_kind in errors.values())]
    every = {kind: [e for by_kind in errors.values() for e in by_kind[kind]] for kind in (*kinds, "host", "gpu")}
    sums = [
        f"{kind}: median {100 * statistics.median(map(abs, several)):.1f} %, beyond 25 %: "
        f"{sum(abs(error) > 0.25 for error in several)} of {len(several)}"
        for kind, several in every.items()
        if several
    ]
    heads = [f"{kind}: median, % | worst, %" for kind in kinds]
    lines = [f"## {title}", "", f"{'; '.join(sums)}. `host`: eager calls that took more than 1.5 graphs.", ""]
    lines += [f"| module | {' | '.join(heads)} |", "| --- |" + " --: | --: |" * len(kinds)]
    lines += [f"| {name} | {' | '.join(said(by_kind[kind]) for kind in kinds)} |" for name, by_kind in errors.items()]
    return "\n".join([*lines, ""])


INTRODUCTION = """# PyTorch modules: forecast and measured

The record behind [any PyTorch module](../../docs/modules.md), by `benchmarks/accuracy/modules.py`. One H200,
PyTorch 2.11, random weights; a case is a module in fp32, tf32 or bf16 at one batch. Modules were captured without a
GPU. Kernels are learned from single operators, not from these modules; constants of the host are fitted to eager calls
of both lists that wait for it.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=Path, default=Path("/tmp/infercast-captures"))
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true", help="benchmarks/results/modules.md up to its notes")
    options = parser.parse_args()
    options.captures.mkdir(parents=True, exist_ok=True)
    tables = [table(title, errors) for title, file in FILES.items() if (errors := errors_of(file, options))]
    print("\n".join(tables))
    if options.write:
        path = ROOT / "benchmarks" / "results" / "modules.md"
        _, mark, notes = path.read_text().partition("## Notes") if path.exists() else ("", "", "")
        path.write_text("\n".join([INTRODUCTION, *tables]) + (f"\n{mark}{notes}" if mark else ""))


if __name__ == "__main__":
    main()
