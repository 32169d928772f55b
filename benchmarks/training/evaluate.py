"""How wrong an artefact is on measured rows that it was not fitted on.

python benchmarks/training/evaluate.py DATA [--artifact kernels.npz] [--gpus a,b] [--families gemm,moe]
    [--tier unseen|sibling|few-shot|measured] [--anchors 32] [--in-sample] [--json]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.cli.options import known_names
from infercast.cli.outputs import print_json
from infercast.errors import InfercastError, InputError, UnknownNameError, require
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import Key, Sample, group_hashes, is_left_out, key_of, sample_of
from infercast.lab.fit.tables import Array, Rows
from infercast.lab.fit.train import HELD_OUT_SHARE, fit_measured
from infercast.predict.fitted import Artifact, load_artifact
from infercast.predict.identity import KernelProfile, kernel_profile
from infercast.predict.kernels import learn
from infercast.predict.learned import Learned, default_artifact
from infercast.report.terminal import Grid, Printable, Section, show
from infercast.units import format_percent
from measure.choose_anchors import choose
from training.tables import FAMILIES, FILES, read_table

FEW_ROWS = 1000  # A fifth of fewer rows is too few to judge: every fifth is hidden in turn
FEW_GROUPS = {"sparse_attention": 200}  # The same of groups, in families with few layouts
TIERS = ("measured", "few-shot", "sibling", "unseen")
SERVED = 512  # GEMM rows with n and k of at least this are those of models, which are also reported apart


@dataclass(frozen=True, slots=True)
class Scored:
    family: str
    gpu: str
    dtype: str
    measured: Array
    predicted: Array
    low: Array
    high: Array


def score(
    folder: Path,
    artifact: Artifact | None,
    profile: KernelProfile,
    *,
    families: Sequence[str],
    gpus: Sequence[str] | None,
    tier: str | None,
    in_sample: bool,
    anchors: int = 32,
) -> dict[str, Any]:
    rows = list(_chosen_rows(folder, families, gpus))
    if not rows:
        raise InputError(f"{folder} has no rows of the chosen GPUs and families")
    if tier == "measured":
        scored = list(_score_measured(rows))
    else:
        assert artifact is not None
        if not in_sample:
            fitted = artifact.fitted_groups
            seen = {part.gpu for part in rows if np.isin(np.unique(group_hashes(part)), fitted).any()}
            if seen:
                raise InputError(
                    f"{artifact.path.name} was fitted on rows of {', '.join(sorted(seen))}; score other --gpus, fit an "
                    "artefact without them, use --tier measured, or pass --in-sample to see errors that say little"
                )
        if tier == "few-shot":
            scored = list(_score_few_shot(rows, artifact, profile, anchors))
        else:
            scored = list(_score_artifact(rows, artifact, profile, tier))
    return summarise(scored)


def summarise(scored: Sequence[Scored]) -> dict[str, Any]:
    families: dict[str, Any] = {}
    by_family: dict[str, dict[str, list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for part in scored:
        by_family[part.family][part.gpu].append(part)
    for family, of_gpu in by_family.items():
        gpus = {}
        for gpu, parts in of_gpu.items():
            dtypes = sorted({part.dtype for part in parts})
            by_dtype = {dtype: _statistics([part for part in parts if part.dtype == dtype]) for dtype in dtypes}
            plain = [part for part in parts if not part.dtype.endswith(" served")]
            gpus[gpu] = {**_statistics(plain), "by_dtype": by_dtype}
        families[family] = {"gpus": gpus}
    plain = [part for part in scored if not part.dtype.endswith(" served")]
    means = [of_gpu["mape"] for family in families.values() for of_gpu in family["gpus"].values()]
    return {"families": families, "overall": {**_statistics(plain), "mape_mean_of_families": float(np.mean(means))}}


def _statistics(parts: Sequence[Scored]) -> dict[str, Any]:
    measured, predicted, low, high = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("measured", "predicted", "low", "high")
    )
    error = np.abs(predicted / measured - 1.0)
    return {
        "rows": int(error.size),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.quantile(error, 0.9)),
        "coverage80": float(np.mean((measured >= low) & (measured <= high))),
    }


def _chosen_rows(folder: Path, families: Sequence[str], gpus: Sequence[str] | None) -> Iterator[Rows]:
    for family in families:
        path = folder / FILES[family]
        if path.exists():
            chosen = (rows for rows in read_table(path, family) if not is_left_out(rows))
            yield from (rows for rows in chosen if gpus is None or rows.gpu in gpus)


def _score_artifact(
    rows: Sequence[Rows], artifact: Artifact, profile: KernelProfile, tier: str | None
) -> Iterator[Scored]:
    """Every row by the artefact, preferring models of the row's own engine."""
    engines = {part.engine for part in rows}
    predictors = {
        engine: Learned(artifact, profile.preferring(engine), tier=tier, as_tabled=True) for engine in engines
    }
    for part in rows:
        yield from _scored(part, *_estimated(predictors[part.engine], part, key_of(part)[3]))


def _scored(part: Rows, seconds: Array, low: Array, high: Array, chosen: Array | None = None) -> Iterator[Scored]:
    """Rows with their predictions, and those that models are made of once more."""
    keep = np.ones(part.seconds.size, dtype=bool) if chosen is None else chosen
    dtype = part.dtype.split("/")[0]
    choices = [(dtype, keep)]
    if part.family == "gemm":
        choices.append((f"{dtype} served", keep & (part.op.n >= SERVED) & (part.op.k >= SERVED)))  # type: ignore[attr-defined]
    for name, mask in choices:
        if mask.any():
            yield Scored(part.family, part.gpu, name, part.seconds[mask], seconds[mask], low[mask], high[mask])


def _score_measured(rows: Sequence[Rows]) -> Iterator[Scored]:
    """Fit each GPU's own model on four groups in five and score it on the fifth; where rows are few, on each fifth."""
    by_key: dict[Key, list[tuple[Rows, Sample]]] = defaultdict(list)
    for part in rows:
        by_key[key_of(part)].append((part, sample_of(part)))
    for key, parts in by_key.items():
        whole = Sample.joined([sample for _, sample in parts])
        is_few = whole.residual.size < FEW_ROWS or np.unique(whole.group).size < FEW_GROUPS.get(key[0], 0)
        for fold in range(HELD_OUT_SHARE if is_few else 1):
            hidden = whole.group % HELD_OUT_SHARE == fold
            if hidden.all() or not hidden.any():
                continue
            entry, forest = fit_measured(key, whole.part(~hidden))
            for part, sample in parts:
                chosen = sample.group % HELD_OUT_SHARE == fold
                if chosen.any():
                    own = part.own * np.exp(forest.predict(sample.features) - sample.residual)
                    low, high = own * np.exp(entry.low), own * np.exp(entry.high)
                    yield from _scored(part, part.whole(own), part.whole(low), part.whole(high), chosen)


def _score_few_shot(rows: Sequence[Rows], artifact: Artifact, profile: KernelProfile, count: int) -> Iterator[Scored]:
    """Let ``count`` rows of each kind correct the unseen tier, and score it on all others."""
    by_key: dict[Key, list[Rows]] = defaultdict(list)
    for part in rows:
        by_key[key_of(part)].append(part)
    for key, parts in by_key.items():
        predictor = Learned(artifact, profile.preferring(key[2]), tier="unseen", as_tabled=True)
        samples = [sample_of(part) for part in parts]
        features = np.concatenate([sample.features for sample in samples])
        predicted = [_estimated(predictor, part, key[3])[0] for part in parts]
        misses = np.log(np.concatenate([part.seconds for part in parts]) / np.concatenate(predicted))
        asked = (parts[0].op, load_gpu(key[1]), (key[3],))
        learner, choice = predictor.learner(*asked), predictor.choose(*asked)
        near = choice is not None and choice.is_near(asked[1])
        chosen = choose(key[0], features, count, learner)
        correction = learn(key[0], features[chosen], misses[chosen], features, learner, near=near)
        anchor = np.isin(np.arange(misses.size), chosen)
        start = 0
        for part, sample, before in zip(parts, samples, predicted, strict=True):
            stop = start + part.seconds.size
            seconds = before * np.exp(correction(sample.features))
            half = correction.spread(sample.features)
            yield from _scored(part, seconds, seconds * np.exp(-half), seconds * np.exp(half), ~anchor[start:stop])
            start = stop


def _estimated(predictor: Learned, part: Rows, variant: str) -> list[Array]:
    found = predictor.estimate(part.op, load_gpu(part.gpu), (variant,))
    own = (np.broadcast_to(each, part.seconds.shape) for each in (found.seconds, found.low, found.high))
    return [part.whole(each) for each in own]


def render_evaluation(result: dict[str, Any]) -> list[Printable]:
    """One table a family: every GPU, then its dtypes."""
    parts: list[Printable] = []
    for family, scores in result["families"].items():
        rows = []
        for gpu, statistics in scores["gpus"].items():
            rows.append((gpu, *_cells(statistics)))
            rows += [(f"  {dtype}", *_cells(inner)) for dtype, inner in statistics["by_dtype"].items()]
        parts.append(Section(family, Grid(("GPU", "rows", "mean", "median", "p90", "in interval"), rows)))
    return [
        *parts,
        Section("All", Grid(("", "rows", "mean", "median", "p90", "in interval"), [("", *_cells(result["overall"]))])),
    ]


def _cells(statistics: dict[str, Any]) -> tuple[str, ...]:
    errors = (format_percent(statistics[name]) for name in ("mape", "median_ape", "p90_ape", "coverage80"))
    return (f"{statistics['rows']:,}", *errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--artifact", type=Path)
    for name in ("--gpus", "--families", "--tier"):
        parser.add_argument(name)
    parser.add_argument("--anchors", type=int, default=32)
    for name in ("--in-sample", "--json"):
        parser.add_argument(name, action="store_true")
    given = parser.parse_args()
    try:
        result = _asked(given)
    except InfercastError as error:
        parser.exit(2, f"{error}\n")
    if given.json:
        print_json(result)
    else:
        show(*render_evaluation(result))


def _asked(given: argparse.Namespace) -> dict[str, Any]:
    if not given.data.is_dir():
        raise InputError(f"DATA: {given.data} is not a folder")
    if given.tier not in (None, *TIERS):
        raise UnknownNameError("tier", given.tier, TIERS)
    require(given.anchors >= 1, "--anchors", "be at least 1", given.anchors)
    return score(
        given.data,
        default_artifact() if given.artifact is None else load_artifact(given.artifact),
        kernel_profile(),
        families=known_names("family", given.families or "", FAMILIES) or FAMILIES,
        gpus=None if given.gpus is None else [load_gpu(name).name for name in known_names("GPU", given.gpus)],
        tier=given.tier,
        in_sample=given.in_sample,
        anchors=given.anchors,
    )


if __name__ == "__main__":
    main()
