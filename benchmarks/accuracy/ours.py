"""Our own errors on the same splits, by the functions behind `infercast fit` and `infercast evaluate`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pandas

from infercast.lab.fit import train
from infercast.lab.fit.evaluate import score
from infercast.lab.fit.samples import Key, Sample, read_samples
from infercast.lab.fit.tables import FILES
from infercast.predict.fitted import Artifact, Entry, Forest, load_artifact
from infercast.predict.identity import kernel_profile
from splits import COLUMNS, FAMILIES, GPUS, UNSEEN, Split

Statistics = dict[str, dict[str, float]]
"""For each column of the table: rows, mean, median and 90th percentile of the error."""
Fit = Callable[[Split], Artifact]
"""Fits an artefact on the sources of a split."""

SIBLINGS = {"h100-sxm": "h200-sxm", "h200-sxm": "h100-sxm"}


def tables_by_gpu(folder: Path, out: Path) -> None:
    """A folder of tables for each GPU, so that nobody reads the others' rows again and again."""
    for family in FAMILIES:
        table = pandas.read_parquet(folder / FILES[family])
        for gpu in GPUS:
            (out / gpu).mkdir(exist_ok=True)
            table[table.gpu == gpu].to_parquet(out / gpu / FILES[family])


def on_hidden_shapes(folders: Path, gpu: str) -> Statistics:
    """The measured tier."""
    return _scored(folders, gpu, None, "measured")


def on_hidden_gpus(folders: Path, fit: Fit) -> Iterator[tuple[str, Statistics]]:
    """The unseen tier on the splits that the baselines have too."""
    for split in UNSEEN:
        yield split.name, _scored(folders, split.target, fit(split), "unseen")


def leaving_one_out(folders: Path, fit: Fit) -> Iterator[tuple[str, Statistics]]:
    """Every GPU by all others: as an unseen one, and by its sibling where it has one."""
    for gpu in GPUS:
        artifact = fit(Split(tuple(each for each in GPUS if each != gpu), gpu))
        yield f"unseen {gpu}", _scored(folders, gpu, artifact, "unseen")
        if gpu in SIBLINGS:
            yield f"sibling {SIBLINGS[gpu]} -> {gpu}", _scored(folders, gpu, artifact, "sibling")


@contextmanager
def fitter(folders: Path, tell: Callable[[str], None]) -> Iterator[Fit]:
    """Fits artefacts as `infercast fit` does. A GPU's own model is the same in all of them: it is fitted once."""
    # In the order of the whole tables, which is by name: the order of the rows changes the last digit of a forest.
    parts = [read_samples(folders / gpu, FAMILIES) for gpu in sorted(GPUS)]
    samples = {key: sample for part in parts for key, sample in part.items()}
    fit_measured, known = train.fit_measured, {}

    def fit_once(key: Key, sample: Sample) -> tuple[Entry, Forest]:
        if key not in known:
            known[key] = fit_measured(key, sample)
        return known[key]

    def fit(split: Split) -> Artifact:
        tell(f"ours: {split.name}")
        path = folders / f"without-{split.target}-of-{len(split.sources) + 1}.npz"
        chosen = {key: sample for key, sample in samples.items() if key[1] in split.sources}
        train.fit_artifact(chosen, path, {"gpus": sorted(split.sources)})
        return load_artifact(path)

    with mock.patch.object(train, "fit_measured", fit_once):
        yield fit


def _scored(folders: Path, gpu: str, artifact: Artifact | None, tier: str) -> Statistics:
    result = score(folders / gpu, artifact, kernel_profile(), families=FAMILIES, gpus=[gpu], tier=tier, in_sample=False)
    return dict(_columns(result["families"], gpu))


def _columns(families: dict[str, Any], gpu: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The statistics of `evaluate` under the names of the table's columns."""
    by_dtype = families["gemm"]["gpus"][gpu]["by_dtype"]
    found = {f"GEMM {dtype}": by_dtype.get(f"{dtype} served") for dtype in ("bf16", "fp8")}
    for family, column in zip(FAMILIES[1:], COLUMNS[2:], strict=True):
        found[column] = families[family]["gpus"].get(gpu) if family in families else None
    for column, values in found.items():
        if values is not None:
            names = {"rows": "rows", "mean": "mape", "median": "median_ape", "p90": "p90_ape"}
            yield column, {name: values[theirs] for name, theirs in names.items()}
