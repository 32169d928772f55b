"""Fit what PyTorch costs the host to eager calls of whole modules, and say how far off it is on modules left out.

    python benchmarks/accuracy/fit_torch_host.py [--captures FOLDER]

Captures are those of benchmarks/accuracy/modules.py. Probes of the machines of measurements/ show launches in one of
two states, which last from seconds to hours, and no probe was taken beside these calls. So the fit is a mixture: each
call took the seconds of a state, or `SLOWER` times as many. Errors of modules left out are said three times: by the
constants of torch_host.toml, by those of the other modules on a host that nobody probed, and by these with the state
known that fits better. Nothing beats the last without a probe beside each call.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from infercast.hardware import load_gpu
from infercast.torch_modules import forecast
from infercast.torch_modules.lower import Rules
from modules import FILES, TORCH, captured

GPU = "h200-sxm"
SDPA = "aten.scaled_dot_product_attention"
NAMES = ("operator", "view", "kernel", "module", SDPA)
SLOWER, WIDTH, SHARE, OUTLIER = 1.44, 0.09, 0.3, 0.012
"""Of the slower state: how many times as long, how far calls of a state scatter, and shares of it and of neither."""
WAITING = 1.25  # A call waits for the host if it takes so many times as long as its kernels


class Case(NamedTuple):
    name: str
    kind: str
    seconds: float
    is_waiting: bool
    counts: Any  # Of what costs the host, by call
    launches: list[forecast.Launch]
    spread: tuple[float, float]  # Of the seconds on the GPU

    def forecast(self, costs: Any) -> float:
        host = self.counts @ costs
        told = [each._replace(host=float(own)) for each, own in zip(self.launches, host, strict=True)]
        return forecast.queued(told)[1]


def cases(folder: Path) -> list[Case]:
    chip, found = load_gpu(GPU), []
    for file in list(FILES.values())[:2]:
        for row in json.loads(gzip.decompress((TORCH / file).read_bytes()))["cases"]:
            capture = captured(folder, row["module"], row["format"], row["batch"], graph=False)
            if capture is None:
                continue
            launches = [*forecast.launches_of(capture.calls, chip, Rules(tf32=row["format"] == "tf32"), "eager")]
            counts, running = np.zeros((len(launches), len(NAMES))), ""
            for at, (call, kernels, *_) in enumerate(launches):
                launched = sum(kernel.launches for kernel in kernels)
                counts[at] = bool(kernels), not kernels, launched, call.module != running, call.name == SDPA
                running = call.module
            whole = forecast.total((each.gpu, 1) for each in launches)
            ends = float(whole.low) / float(whole.seconds), float(whole.high) / float(whole.seconds)
            busy = min(row.get("graph_ms") or np.inf, 1e-3 * sum(kernel[2] for kernel in row["kernels"]))
            is_waiting = row["eager_ms"] > WAITING * busy
            found.append(Case(row["module"], row["format"], 1e-3 * row["eager_ms"], is_waiting, counts, launches, ends))
    return found


def states(missed: Any) -> tuple[Any, Any]:
    """How likely each call is one of the usual state, and of the slower one."""
    usual = (1 - SHARE) * np.exp(-0.5 * (missed / WIDTH) ** 2)
    slower = SHARE * np.exp(-0.5 * ((missed - np.log(SLOWER)) / WIDTH) ** 2)
    whole = usual + slower + OUTLIER
    return usual / whole, slower / whole


def fit(used: list[Case]) -> Any:
    """Seconds in the usual state; a module's calls together count as the root of their number."""
    waiting = [case for case in used if case.is_waiting]
    counts = np.array([case.counts.sum(axis=0) for case in waiting])
    seconds = np.array([case.seconds for case in waiting])
    often = Counter(case.name for case in waiting)
    trust = np.array([often[case.name] ** -0.5 for case in waiting])
    costs = np.full(len(NAMES), 1e-5)  # From less, it ends where most calls are slow ones, which is less likely
    for _ in range(60):
        parts = states(np.log(seconds / (counts @ costs)))
        weights = [np.sqrt(part + 1e-6) * trust for part in parts]
        scaled = [weight * factor / seconds for weight, factor in zip(weights, (1.0, SLOWER), strict=True)]
        rows = np.vstack([counts * each[:, None] for each in scaled])
        costs = nnls(rows, np.concatenate(weights))[0]
    return costs


def line(name: str, several: list[Any]) -> str:
    errors = 100 * np.abs(np.array(several))
    ends = zip(errors.mean(axis=0), np.median(errors, axis=0), np.quantile(errors, 0.9, axis=0), strict=True)
    return f"| {name} | {len(errors)} | " + " | ".join(f"{a:.1f} / {b:.1f} / {c:.0f}" for a, b, c in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=Path, default=Path("/tmp/infercast-captures"))
    found, told = cases(parser.parse_args().captures), forecast.constants()
    print({name: f"{1e6 * cost:.1f} us" for name, cost in zip(NAMES, fit(found), strict=True)})
    bundled = np.array([told["eager"].get(name, 0.0) for name in NAMES])
    usual = forecast.host_of(None, load_gpu(GPU)).factor
    errors: dict[str, list[Any]] = {}
    inside: dict[str, list[bool]] = {}
    for name in dict.fromkeys(case.name for case in found):
        costs = fit([case for case in found if case.name != name])
        for case in (case for case in found if case.name == name):
            ratios = [
                case.forecast(each) / case.seconds for each in (usual * bundled, usual * costs, costs, SLOWER * costs)
            ]
            row = [ratios[0] - 1, ratios[1] - 1, min(ratios[2] - 1, ratios[3] - 1, key=abs)]
            host, gpu = (
                float((case.counts @ costs).sum()) * usual,
                sum(float(each.gpu.seconds) for each in case.launches),
            )
            low, high = (max(host * ours, gpu * end) for ours, end in zip(told["spread"], case.spread, strict=True))
            for group in (case.kind, "wait for the host" if case.is_waiting else "do not", "all"):
                errors.setdefault(group, []).append(row)
                inside.setdefault(group, []).append(low <= case.seconds <= high)
    print(
        "| calls | number | bundled: mean / median / p90, % | left out, no probe | left out, state known | inside, % |"
    )
    print("| --- | --: | --: | --: | --: | --: |")
    for group in ("fp32", "tf32", "bf16", "wait for the host", "do not", "all"):
        print(line(group, errors[group]), f"| {100 * np.mean(inside[group]):.0f} |")


if __name__ == "__main__":
    main()
