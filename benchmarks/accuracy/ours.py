"""Our own errors on the same splits, by the functions behind `infercast fit` and `benchmarks/training/evaluate.py`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.lab.fit.train import fit_artifact
from infercast.predict.fitted import Artifact, load_artifact
from infercast.predict.identity import kernel_profile
from splits import COLUMNS, FAMILIES, GPUS, UNSEEN
from training.evaluate import score
from training.tables import FILES, read_samples

Statistics = dict[str, dict[str, float]]
"""For each column of the table: rows, mean, median and 90th percentile of the error."""


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


def on_hidden_gpus(folders: Path, tell: Callable[[str], None]) -> Iterator[tuple[str, Statistics]]:
    """The unseen tier on the splits that the baselines have too: models of several GPUs alone."""
    # In the order of the whole tables, which is by name: the order of the rows changes the last digit of a forest.
    parts = [read_samples(folders / gpu, FAMILIES) for gpu in sorted(GPUS)]
    for split in UNSEEN:
        tell(f"ours: {split.name}")
        path = folders / f"without-{split.target}.npz"
        known = {key: sample for part in parts for key, sample in part.items() if key[1] in split.sources}
        fit_artifact(known, path, {"gpus": sorted(split.sources)}, of_gpus=())
        yield split.name, _scored(folders, split.target, load_artifact(path), "unseen")


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
