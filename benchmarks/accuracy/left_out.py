"""Kernels of a GPU that was left out of the fit, each in turn: error by family, without rows of it and with a few.

    python benchmarks/accuracy/left_out.py TABLES [--gpus b200-sxm] [--sources a100-sxm,l40s] [--anchors 32,128]

TABLES: a folder of published kernel tables. Of each GPU and engine at most ``--rows`` rows of a family are taken, the
same ones every time. Sources are all other GPUs unless they are named. The two Hoppers are one die, and each is told
once more with the other left out beside it. Prints a Markdown table: mean / median / 90th percentile of the error of
latency and the share inside the 80 % interval, in per cent. Constants of physics saw all of these GPUs.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas

from infercast.lab.fit.evaluate import _chosen_rows, _score_artifact, _score_few_shot, summarise
from infercast.lab.fit.rows import LEFT_OUT
from infercast.lab.fit.samples import Key, Sample, read_samples
from infercast.lab.fit.tables import FILES
from infercast.lab.fit.train import fit_pooled, pools_of
from infercast.predict.fitted import POOLED, Artifact
from infercast.predict.identity import kernel_profile

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "moe")
DIES = {"h100-sxm": "h200-sxm", "h200-sxm": "h100-sxm"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--gpus", help="to leave out, with commas between them; all that the tables have by default")
    parser.add_argument("--sources", help="to learn from, with commas between them; all others by default")
    parser.add_argument(
        "--anchors", default="32,128", help="rows of each kind that are known, with commas between them"
    )
    parser.add_argument("--rows", type=int, default=6000, help="at most, of a family, GPU and engine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        thin(asked.tables, Path(folder), asked.rows)
        samples = read_samples(Path(folder), FAMILIES)
        gpus = sorted({key[1] for key in samples}) if asked.gpus is None else asked.gpus.split(",")
        anchors = [int(count) for count in asked.anchors.split(",") if count]
        print(f"| left out | learned from | known rows | {' | '.join(FAMILIES)} | mean |")
        print(f"| --- | --- | --: |{' --: |' * (len(FAMILIES) + 1)}")
        for gpu in gpus:
            for sources in sources_of(gpu, asked.sources, samples):
                artifact = without({key: sample for key, sample in samples.items() if key[1] in sources})
                for count in (0, *anchors):
                    print(row(Path(folder), artifact, gpu, sources, count), flush=True)


def thin(tables: Path, into: Path, most: int) -> None:
    for family in FAMILIES:
        table = pandas.read_parquet(tables / FILES[family])
        table = table[~table.engine.isin(LEFT_OUT)]
        parts = [part.sample(min(len(part), most), random_state=0) for _, part in table.groupby(["gpu", "engine"])]
        pandas.concat(parts, ignore_index=True).to_parquet(into / FILES[family])


def sources_of(gpu: str, named: str | None, samples: dict[Key, Sample]) -> list[tuple[str, ...]]:
    if named is not None:
        return [tuple(named.split(","))]
    others = tuple(sorted({key[1] for key in samples} - {gpu}))
    twin = DIES.get(gpu)
    return [others, tuple(each for each in others if each != twin)] if twin in others else [others]


def without(samples: dict[Key, Sample]) -> Artifact:
    """Models of several GPUs alone: nothing else stands for one that is left out."""
    pools = pools_of(samples).items()
    models = [fit_pooled((family, POOLED, engine, variant), found) for (family, engine, variant), found in pools]
    return Artifact(Path("left out"), {}, {}, {}).with_models(models)


def row(folder: Path, artifact: Artifact, gpu: str, sources: tuple[str, ...], count: int) -> str:
    rows, profile = list(_chosen_rows(folder, FAMILIES, [gpu])), kernel_profile()
    scored = (
        _score_few_shot(rows, artifact, profile, count) if count else _score_artifact(rows, artifact, profile, "unseen")
    )
    found = summarise(list(scored))["families"]
    cells, means = [], []
    for family in FAMILIES:
        figures = found[family]["gpus"][gpu]
        means.append(figures["mape"])
        shown = " / ".join(f"{100 * figures[name]:.1f}" for name in ("mape", "median_ape", "p90_ape"))
        cells.append(f"{shown} ({100 * figures['coverage80']:.0f})")
    return f"| {gpu} | {', '.join(sources)} | {count} | {' | '.join(cells)} | {100 * np.mean(means):.1f} |"


if __name__ == "__main__":
    main()
