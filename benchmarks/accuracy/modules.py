"""Forecasts of whole PyTorch modules against their measured milliseconds, eager and as CUDA graphs.

    python benchmarks/accuracy/modules.py [--captures FOLDER] [--rows] [--only NAME,NAME] [--more]

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks" / "measure")]

from infercast.torch_modules.calls import Capture, capture_from_json  # noqa: E402
from infercast.torch_modules.forecast import forecast_capture  # noqa: E402

TORCH = ROOT / "measurements" / "h200-sxm" / "torch"


def captured(folder: Path, name: str, kind: str, batch: int, *, graph: bool) -> Capture | None:
    """From the folder, or else by running the module's code."""
    path = folder / f"{name}-{'bf16' if kind == 'bf16' else 'fp32'}-{batch}-{'graph' if graph else 'eager'}.json.gz"
    if not path.exists():
        made = make_capture(name, kind, batch, graph=graph)
        path.write_bytes(gzip.compress(made.to_json().encode() if made is not None else b""))
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


def cases(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from json.load(file)["cases"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=Path, default=Path("/tmp/infercast-captures"))
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--more", action="store_true", help="the modules that nothing was chosen by")
    options = parser.parse_args()
    options.captures.mkdir(parents=True, exist_ok=True)
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases(TORCH / ("more_modules.json.gz" if options.more else "modules.json.gz")):
        name, kind, batch = case["module"], case["format"], case["batch"]
        if options.only and name not in options.only.split(","):
            continue
        row = f"{name} {kind} {batch}"
        for execution in ("eager", "graph", "compiled"):
            measured = case.get(f"{execution}_ms")
            found = measured and captured(options.captures, name, kind, batch, graph=execution == "graph")
            if not found:
                continue
            made = forecast_capture(found, gpu="h200-sxm", execution=execution, dtype=kind)
            error = 1e3 * made.seconds / measured - 1.0
            errors[execution][name].append(error)
            row += f" | {execution} {measured:.3f} {error:+.0%} ({made.bound}, unknown {made.unknown_share:.1%})"
        if options.rows:
            print(row, flush=True)
    for execution, by_module in errors.items():
        every = [abs(error) for several in by_module.values() for error in several]
        far = sum(error > 0.25 for error in every)
        print(f"{execution}: median {statistics.median(every):.1%}, beyond 25 %: {far} of {len(every)}")
        for name, several in by_module.items():
            worst = max(several, key=abs)
            print(f"  {name}: median {statistics.median(map(abs, several)):.1%}, worst {worst:+.0%}")


if __name__ == "__main__":
    main()
