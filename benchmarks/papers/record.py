"""What takes long of `infercast reproduce`, for the file that comes with the package.

    python benchmarks/papers/record.py runs TABLES     # measured runs, once a tier and part turned off: 10 minutes
    python benchmarks/papers/record.py several RUNS    # published runs on several GPUs, with parts turned off: a minute
    python benchmarks/papers/record.py tables          # tables of benchmarks/results, as they are today

RUNS: a table of published runs (benchmarks/published/README.md). TABLES: a folder of published kernel tables
(docs/predict.md), from which kernels of A100 and L40S alone are fitted for the tier that knows nothing of the target.
The pages of benchmarks/results name the commands that make each table again; `src/infercast/data/papers.toml` says
which of them are kept.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.lab.validate.compare import COMMUNICATION, HOST, RunComparison, deployment_without, validate
from infercast.lab.validate.measured import read_measured, shipped_runs
from published.compare import results_of, set_up, system_for
from published.table import read_published

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src" / "infercast" / "data"
RECORDED = DATA / "papers" / "recorded.json.gz"
QUANTITIES = ("ttft_p50", "tpot_p50", "output_tokens_per_second")
FAMILIES = "gemm,attention_prefill,attention_decode,moe,collective,quantise"
SOURCES = "a100-sxm,l40s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("runs", "several", "tables"))
    parser.add_argument("data", type=Path, nargs="?", help="RUNS or TABLES")
    parser.add_argument("--artefact", type=Path, help="kernels of the two GPUs, where they are fitted already")
    asked = parser.parse_args()
    known = json.loads(gzip.decompress(RECORDED.read_bytes())) if RECORDED.is_file() else {}
    if asked.what == "tables":
        known["tables"] = {"several": known["tables"]["several"], **dict(tables())}
    elif asked.what == "several":
        known["tables"]["several"] = several(asked.data)
    else:
        with tempfile.TemporaryDirectory() as folder:
            known["runs"] = runs(asked.artefact or fitted(asked.data, Path(folder) / "kernels.npz"))
    text = json.dumps(known, separators=(",", ":"))
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))


def fitted(tables: Path, out: Path) -> Path:
    words = ("fit", tables, "--gpus", SOURCES, "--families", FAMILIES, "--out", out)
    subprocess.run([sys.executable, "-m", "infercast", *map(str, words)], check=True)
    return out


def runs(unseen: Path) -> list[dict[str, Any]]:
    """Each run with what was measured and what each way to forecast it says: TTFT, TPOT and tokens a second."""
    ways: dict[str, dict[str, Any]] = {
        "whole": {},
        # Runs are on one GPU, where no collective is: the same forecast as with another predictor, without intervals.
        "unseen": {"predictor": str(unseen), "without": COMMUNICATION},
        "roofline": {"predictor": "roofline", "without": COMMUNICATION},
        **{part: {"without": part} for part in ("host", "scheduler", "overlap")},
    }
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in (*shipped_runs("vllm"), *shipped_runs("sglang")):
        engine = path.parent.name.partition("-")[2].replace("-", "@")
        measured = read_measured(path)
        for way, options in ways.items():
            for place, run in enumerate(validate([measured], **options).runs):
                row = rows.setdefault((engine, path.name, place), first(engine, path.name, run))
                row[way] = [shortened(each and each.predicted) for each in pairs(run)]
                if way == "whole":
                    row["inside"] = [each and each.is_inside for each in pairs(run)]
        print(engine, path.name, flush=True)
    return [*rows.values()]


def first(engine: str, file: str, run: RunComparison) -> dict[str, Any]:
    measured = [shortened(each and each.measured) for each in pairs(run)]
    about = {"engine": engine, "file": file.removesuffix(".json.gz"), "kind": run.kind, "label": run.label}
    return {**about, "load": run.load, "measured": measured}


def pairs(run: RunComparison) -> list[Any]:
    return [getattr(run, name) for name in QUANTITIES]


def shortened(value: float | None) -> float | None:
    return value and float(f"{value:.4g}")


def several(path: Path) -> dict[str, Any]:
    """Median errors of published runs on more than one GPU, in per cent: whole, and without a part."""
    errors: dict[str, list[list[float]]] = {"whole": [], **{f"without {part}": [] for part in (COMMUNICATION, HOST)}}
    for run in read_published(path):
        ready, deployment = set_up(run)
        if deployment.layout.gpus == 1:
            continue
        measured = [getattr(ready, name) or np.nan for name in ("ttft", "tpot", "output_tokens_per_second")]
        for name, found in errors.items():
            part = deployment_without(name.removeprefix("without "), deployment)
            served = system_for(ready, part).serve(ready.workload)
            ttft, tpot, _, rate = results_of(ready)(served.clients).tolist()
            found.append([abs(value / real - 1.0) for value, real in zip((ttft, tpot, rate), measured, strict=True)])
    medians = {name: np.round(100.0 * np.nanmedian(found, axis=0), 1).tolist() for name, found in errors.items()}
    rows = [
        [name, len(errors[name]), *(None if np.isnan(each) else each for each in row)] for name, row in medians.items()
    ]
    return {"columns": ["forecast", "runs", "TTFT", "TPOT", "tokens/s"], "rows": rows}


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables that papers.toml names: the page, and how a table on it begins."""
    for name, figure in tomllib.loads((DATA / "papers.toml").read_text("utf-8"))["figures"].items():
        if "page" in figure:
            lines = (ROOT / figure["page"]).read_text("utf-8").splitlines()
            after = lines.index(figure["under"]) if "under" in figure else 0
            yield name, table_after(lines[after:], f"| {figure['head']}")


def table_after(lines: list[str], head: str) -> dict[str, Any]:
    at = next(place for place, line in enumerate(lines) if line.startswith(head))
    rows = [cells(line) for line in takewhile(lambda line: line.startswith("|"), lines[at:])]
    return {"columns": rows[0], "rows": rows[2:]}


def cells(line: str) -> list[str]:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("**", "").replace("`", "")
    return [cell.strip() for cell in plain.strip("|").split("|")]


if __name__ == "__main__":
    main()
