"""Choose the anchors that `infercast measure --anchors` runs, and write data/lab/anchors.toml.

    PYTHONPATH=src python benchmarks/measure/choose_anchors.py

From the shapes of the whole sweep, for each kernel in turn: the next anchor is the one that takes away most of what is
unknown of all others, with features of three chips side by side (A100, L40S, H200), so that no chip's tiles decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas

from infercast.hardware import load_gpu
from infercast.lab.fit.tables import _READERS
from infercast.lab.measure.rows import Case, sweep_cases
from infercast.predict.array_api import Array
from infercast.predict.families import FAMILIES
from infercast.predict.fitted import Forest
from infercast.predict.kernels import Space

GPUS = ("a100-sxm", "l40s", "h200-sxm")
EACH = 64
CANDIDATES = 600
LONGEST_FLOPS = 2e12
"""About two milliseconds of a large chip: anchors are to take less than a minute."""
Keep = Callable[[dict[str, object]], bool]
KERNELS: dict[str, tuple[str, Keep]] = {
    "gemm_bf16": ("gemm", lambda shape: shape["dtype"] == "bf16"),
    "gemm_fp8": ("gemm", lambda shape: shape["dtype"] == "fp8"),
    "prefill_bf16": ("attention_prefill", lambda shape: _is_plain(shape) and shape["kv_dtype"] == "bf16"),
    "prefill_fp8": ("attention_prefill", lambda shape: _is_plain(shape) and shape["kv_dtype"] == "fp8"),
    "decode_bf16": ("attention_decode", lambda shape: _is_plain(shape) and shape["kv_dtype"] == "bf16"),
    "decode_fp8": ("attention_decode", lambda shape: _is_plain(shape) and shape["kv_dtype"] == "fp8"),
    "experts_bf16": ("moe", lambda shape: shape["dtype"] == "bf16"),
    "experts_fp8": ("moe", lambda shape: shape["dtype"] == "fp8"),
}
OUT = Path(__file__).resolve().parents[2] / "src" / "infercast" / "data" / "lab" / "anchors.toml"


def _is_plain(shape: dict[str, object]) -> bool:
    """What PyTorch alone can run too."""
    even = shape.get("sigma", 0.0) == 0.0
    return even and not shape["latent"] and not shape["window"] and shape["head_dim"] == shape["value_dim"]


def choose(family: str, features: Array, count: int, learner: Forest | None = None) -> Array:
    """Numbers of ``count`` rows to measure: each next one takes away most of the variance of all kernels."""
    generator = np.random.default_rng(0)
    # Rows that anchors are chosen from, and rows that they are chosen for
    candidates, judges = (generator.permutation(len(features))[:most] for most in (800, 1200))
    space = Space.of(family, features, learner)
    points, others = space.place(features[candidates]), space.place(features[judges])
    left, shared = space.covariance(points, points), space.covariance(others, points)
    chosen: list[int] = []
    for _ in range(min(count, len(candidates))):
        gain = np.square(shared).sum(axis=0) / (np.diag(left) + space.varies["noise"])
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        column, of_others = left[:, best].copy(), shared[:, best].copy()
        total = left[best, best] + space.varies["noise"]
        left -= np.outer(column, column) / total
        shared -= np.outer(of_others, column) / total
    return np.asarray(candidates[chosen])


def chosen(family: str, cases: Sequence[Case]) -> list[Case]:
    """In the order of their use."""
    by_gpu = [_features(family, cases, gpu) for gpu in GPUS]
    picked = choose(family, np.concatenate(by_gpu), 3 * EACH)
    order = dict.fromkeys(int(number) % len(cases) for number in picked)
    return [cases[number] for number in list(order)[:EACH]]


def _features(family: str, cases: Sequence[Case], gpu: str) -> np.ndarray:
    """One row a case, in the order of the cases."""
    table = pandas.DataFrame([case.shape | {"gpu": gpu, "latency_us": 1.0, "burst_us": 1.0} for case in cases])
    rows = list(_READERS[family](table))
    order = np.argsort(np.concatenate([part.index for part in rows]))
    core, chip = FAMILIES[family], load_gpu(gpu)
    return np.concatenate([core.physics(part.op, chip, engine=True).features for part in rows])[order]


def main() -> None:
    """Write all lists."""
    lines = [
        "# Anchors: the shapes that `infercast measure --anchors` times, best first, a list for each kernel. Chosen by",
        "# benchmarks/measure/choose_anchors.py from the shapes of the whole sweep.",
    ]
    for name, (family, keep) in KERNELS.items():
        cases = [case for case in sweep_cases([family]) if keep(case.shape) and case.flops <= LONGEST_FLOPS]
        best = chosen(family, cases[:CANDIDATES])
        columns = list(best[0].shape)
        lines += ["", f"[{name}]", f'family = "{family}"', f"columns = {str(columns).replace(chr(39), chr(34))}"]
        lines.append("shapes = [")
        for case in best:
            lines.append(f"    [{', '.join(_text(case.shape[column]) for column in columns)}],")
        lines.append("]")
        print(name, len(cases), len(best))
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _text(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


if __name__ == "__main__":
    main()
