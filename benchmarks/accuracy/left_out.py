"""Kernels of a GPU that was left out of the fit, each in turn: error by family, by how much is known of it.

    python benchmarks/accuracy/left_out.py TABLES [--gpus b200-sxm] [--sources a100-sxm,l40s] [--anchors 32,128]
                                           [--page benchmarks/results/unseen.md] [--coverage coverage.md]

TABLES: a folder of published kernel tables. Of each GPU and engine at most ``--rows`` rows of a family are taken, the
same ones every time. Sources are all other GPUs unless they are named. The two Hoppers are one die, and each is told
once more with the other left out beside it. Constants of physics saw all of these GPUs.

Every row is told by: nothing but the datasheet, times one factor a format (`Scaled`); the nearest shapes of the nearest
GPU (`Neighbours`); ours without a row of the GPU (unseen), with a few (few-shot) and with four groups of shapes in five
as anchors, by the model of its sibling where one was measured, and by a model of its own four groups in five alone
(measured). Prints a Markdown table, or writes a page: mean / median / 90th percentile of the error of latency and the
share inside the 80 % interval, in per cent. ``--coverage`` writes that share by format as well, where a family, GPU and
format have at least 200 rows.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.hardware import load_gpu
from infercast.lab.fit.samples import FEWEST, Key, Sample, key_of, sample_of
from infercast.lab.fit.tables import LEFT_OUT, WHOLE_TOKENS, Rows, takes_whole_tokens
from infercast.lab.fit.train import HELD_OUT_SHARE, fit_measured, fit_pooled, pools_of
from infercast.predict.fitted import POOLED, Artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.kernels import learn
from infercast.predict.learned import Learned
from neighbours import Neighbours
from points import read_points
from roofline_baselines import Scaled
from training.evaluate import (
    Scored,
    _chosen_rows,
    _estimated,
    _score_artifact,
    _score_few_shot,
    _score_measured,
    _scored,
    summarise,
)
from training.tables import FILES, read_samples

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "moe")
DIES = {"h100-sxm": "h200-sxm", "h200-sxm": "h100-sxm"}
ENOUGH = 200  # Rows of a format that say how often they lie inside
FORMATS = "| --- | --- | --- | --- | --- | --: | --: | --: |"
BASELINES: dict[str, Any] = {"datasheet x a factor": Scaled, "nearest shapes": Neighbours}
PAGE = """# Kernels of a GPU nobody measured

Errors of kernel latencies with each GPU left out in turn, by what is known of it. One command writes this page:

```
{command}
```

Cells are mean / median / 90th percentile of the error in per cent, with the share of rows inside the 80 % interval in
brackets. Rows are of published tables, at most {rows:,} of a family, GPU and engine. Constants of physics saw all of
these GPUs; what is learned beside them did not see the one that is left out.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--gpus", help="to leave out, with commas between them; all that the tables have by default")
    parser.add_argument("--sources", help="to learn from, with commas between them; all others by default")
    parser.add_argument(
        "--anchors", default="32,128", help="rows of each kind that are known, with commas between them"
    )
    parser.add_argument("--rows", type=int, default=6000, help="at most, of a family, GPU and engine")
    parser.add_argument("--page", type=Path, help="a page to write, beside what is printed")
    parser.add_argument("--coverage", type=Path, help="a table by format to write")
    asked = parser.parse_args()
    lines, by_format = [], ["| GPU | learned from | known of it | family | format | rows | inside | width |", FORMATS]
    for line in table(asked, by_format):
        print(line, flush=True)
        lines.append(line)
        if asked.coverage is not None:
            asked.coverage.write_text("\n".join(by_format) + "\n", encoding="utf-8")
    if asked.page is not None:
        command = " ".join(["python", "benchmarks/accuracy/left_out.py", "TABLES", *sys.argv[2:]])
        page = PAGE.format(command=command, rows=asked.rows, table="\n".join(lines))
        asked.page.write_text(page, encoding="utf-8")


def table(asked: argparse.Namespace, by_format: list[str]) -> Iterator[str]:
    yield f"| GPU | learned from | known of it | {' | '.join(FAMILIES)} | mean |"
    yield f"| --- | --- | --- |{' --: |' * (len(FAMILIES) + 1)}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        thin(asked.tables, folder, asked.rows)
        samples = read_samples(folder, FAMILIES)
        gpus = sorted({key[1] for key in samples}) if asked.gpus is None else asked.gpus.split(",")
        anchors = [int(count) for count in asked.anchors.split(",") if count]
        for gpu in gpus:
            for sources in sources_of(gpu, asked.sources, samples):
                for known, scored in ways(folder, samples, gpu, sources, anchors):
                    by_format += coverage(gpu, ", ".join(sources), known, scored)
                    yield row(gpu, ", ".join(sources), known, scored)
            rows = list(_chosen_rows(folder, FAMILIES, [gpu]))
            scored = list(_score_measured(rows))
            by_format += coverage(gpu, "itself", "four rows in five", scored)
            yield row(gpu, "itself", "four rows in five", scored)


def thin(tables: Path, into: Path, most: int) -> None:
    for family in FAMILIES:
        whole = pandas.read_parquet(tables / FILES[family])
        whole = whole[~whole.engine.isin(LEFT_OUT)]
        if family == "moe":
            whole[WHOLE_TOKENS] = takes_whole_tokens(whole)
        parts = [part.sample(min(len(part), most), random_state=0) for _, part in whole.groupby(["gpu", "engine"])]
        pandas.concat(parts, ignore_index=True).to_parquet(into / FILES[family])


def sources_of(gpu: str, named: str | None, samples: dict[Key, Sample]) -> list[tuple[str, ...]]:
    if named is not None:
        return [tuple(named.split(","))]
    others = tuple(sorted({key[1] for key in samples} - {gpu}))
    twin = DIES.get(gpu)
    return [others, tuple(each for each in others if each != twin)] if twin in others else [others]


def ways(
    folder: Path, samples: dict[Key, Sample], gpu: str, sources: tuple[str, ...], anchors: list[int]
) -> Iterator[tuple[str, list[Scored]]]:
    """What is known of the GPU, and its rows told by that."""
    for name, make in BASELINES.items():
        yield name, list(by_baseline(folder, make, gpu, sources))
    known = {key: sample for key, sample in samples.items() if key[1] in sources}
    pools = pools_of(known).items()
    models = [fit_pooled((family, POOLED, engine, variant), found) for (family, engine, variant), found in pools]
    # Models of several GPUs alone: nothing else stands for one that is left out.
    artifact = Artifact(Path("left out"), {}, {}, {}).with_models(models)
    rows, profile = list(_chosen_rows(folder, FAMILIES, [gpu])), kernel_profile()
    yield "nothing (unseen)", list(_score_artifact(rows, artifact, profile, "unseen"))
    for count in anchors:
        yield f"{count} rows of each kind", list(_score_few_shot(rows, artifact, profile, count))
    if anchors:
        yield "four rows in five, as anchors", list(by_most(rows, artifact))
    if DIES.get(gpu) in sources:
        own = [fit_measured(key, sample) for key, sample in known.items() if key[1] == DIES[gpu]]
        twin = Artifact(Path("sibling"), {}, {}, {}).with_models([*models, *own])
        yield f"its sibling {DIES[gpu]}", list(_score_artifact(rows, twin, profile, "sibling"))


def by_most(rows: list[Rows], artifact: Artifact) -> Iterator[Scored]:
    """Every fifth of a kind's groups in turn by all its others, as anchors."""
    by_key: dict[Key, list[Rows]] = defaultdict(list)
    for part in rows:
        by_key[key_of(part)].append(part)
    for key, parts in by_key.items():
        predictor = Learned(artifact, kernel_profile().preferring(key[2]), tier="unseen", as_tabled=True)
        samples = [sample_of(part) for part in parts]
        before = [_estimated(predictor, part, key[3])[0] for part in parts]
        features, group = (np.concatenate([getattr(each, name) for each in samples]) for name in ("features", "group"))
        misses = np.log(np.concatenate([part.seconds for part in parts]) / np.concatenate(before))
        asked = (parts[0].op, load_gpu(key[1]), (key[3],))
        learner, choice = predictor.learner(*asked), predictor.choose(*asked)
        near = choice is not None and choice.is_near(asked[1])
        for fold in range(HELD_OUT_SHARE):
            known = group % HELD_OUT_SHARE != fold
            if FEWEST <= np.count_nonzero(known) < known.size:
                correction = learn(key[0], features[known], misses[known], features, learner, near=near)
                for part, sample, told in zip(parts, samples, before, strict=True):
                    seconds, half = told * np.exp(correction(sample.features)), correction.spread(sample.features)
                    ends = seconds * np.exp(-half), seconds * np.exp(half)
                    yield from _scored(part, seconds, *ends, sample.group % HELD_OUT_SHARE == fold)


def by_baseline(folder: Path, make: Any, gpu: str, sources: tuple[str, ...]) -> Iterator[Scored]:
    """Without an interval: both ends are the estimate itself."""
    for family in FAMILIES:
        points = read_points(folder, family, (*sources, gpu))
        model = make({name: rows for name, rows in points.items() if name != gpu}, family)
        for kernel, rows in points.get(gpu, {}).items():
            seconds = model.seconds(kernel, rows, gpu)
            yield Scored(family, gpu, kernel[1].split("/")[0], rows.seconds, seconds, seconds, seconds)


def row(gpu: str, sources: str, known: str, scored: list[Scored]) -> str:
    found = summarise(scored)["families"]
    cells, means = [], []
    for family in FAMILIES:
        figures = found[family]["gpus"][gpu]
        means.append(figures["mape"])
        shown = " / ".join(f"{100 * figures[name]:.1f}" for name in ("mape", "median_ape", "p90_ape"))
        cells.append(shown if known in BASELINES else f"{shown} ({100 * figures['coverage80']:.0f})")
    return f"| {gpu} | {sources} | {known} | {' | '.join(cells)} | {100 * np.mean(means):.1f} |"


def coverage(gpu: str, sources: str, known: str, scored: list[Scored]) -> Iterator[str]:
    """Rows inside their intervals by format, and half of the mean interval's width as a logarithm."""
    kinds = sorted({(part.family, part.dtype) for part in scored if not part.dtype.endswith(" served")})
    for family, dtype in kinds if known not in BASELINES else ():
        parts = [part for part in scored if (part.family, part.dtype) == (family, dtype)]
        inside = np.concatenate([(part.measured >= part.low) & (part.measured <= part.high) for part in parts])
        half = np.concatenate([np.log(part.high / part.low) / 2.0 for part in parts])
        if inside.size >= ENOUGH:
            shown = f"{inside.size:,} | {100 * inside.mean():.0f} | {half.mean():.2f}"
            yield f"| {gpu} | {sources} | {known} | {family} | {dtype} | {shown} |"


if __name__ == "__main__":
    main()
