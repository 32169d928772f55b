"""Published SGLang runs held against forecasts, by GPU, source and model.

    python benchmarks/accuracy/published_sglang.py RUNS.csv [WORD]

RUNS.csv is a table of collected runs (docs/validation.md); rows of quality A on H100, H200 and B200 are taken, those
with WORD in their model, source or GPU where one is given. What publishers' own pages say beyond the table is in
`published_pages.py`. A run that stands in the table twice counts once.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from infercast.forecast.csv_rows import read_rows
from infercast.validate.published.collected import read_collected
from infercast.validate.published.compare import PublishedComparison, compare_published, summarise
from infercast.validate.published.load import RowReader
from published_pages import as_published

GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "output_tokens_per_second": "tokens/s"}
SAME = ("infercast_gpu", "concurrency_or_rate", "ttft_mean_ms", "tpot_mean_ms", "output_tok_s")
"""What tells that two rows are one run."""
REASONS = {
    "prompts are text": "images in prompts",
    "unknown model": "a model whose config is not bundled",
    "'server_cmd'": "no command",
    "'mean_in'": "no lengths",
    "does not fit": "weights that do not fit in the stated GPUs",
    "already quantised": "a checkpoint in another format whose config is not bundled",
    "ep_size": "experts over some of the GPUs",
}
"""By words of an error."""


def chosen(row: dict[str, str], word: str) -> bool:
    """Whether a row is one of ours."""
    return (
        row["engine"] == "sglang"
        and row["quality"] == "A"
        and row["infercast_gpu"] in GPUS
        and word in f"{row['model']} {row['source_repo']} {row['infercast_gpu']}"
    )


def line_of(each: PublishedComparison) -> str:
    """Measured > predicted, in milliseconds or tokens a second."""
    parts = []
    for name, title in QUANTITIES.items():
        pair, scale = getattr(each, name), 1.0 if name.startswith("output") else 1e3
        if pair is not None:
            parts.append(f"{title} {scale * pair.measured:.5g} > {scale * pair.predicted:.5g} {pair.error:+.0%}")
    clients = each.run.workload.concurrency or "burst"
    return f"{each.run.run_id} {each.run.gpu} {each.run.model} {each.run.layout} x{clients} " + ", ".join(parts)


def reason_of(problem: str) -> str:
    """The kind of a problem."""
    return next((reason for word, reason in REASONS.items() if word in problem), problem)


def main() -> None:
    """Print every run, and medians by GPU, source and model."""
    path, word = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    groups: dict[str, list[PublishedComparison]] = defaultdict(list)
    seen: set[tuple[str, ...]] = set()
    reasons: Counter[str] = Counter()
    for line, stated in enumerate(read_rows(path), start=2):
        row = as_published(stated)
        if not chosen(row, word):
            continue
        measured = tuple(row[name] for name in SAME)
        if measured in seen:
            reasons["the same run as one before"] += 1
            continue
        seen.add(measured)
        (each,) = compare_published([read_collected(RowReader(path, line, row))])
        if each.problem:
            print(f"line {line} {row['model']}: {each.problem}")
            reasons[reason_of(each.problem)] += 1
            continue
        print(line_of(each), flush=True)
        source, gpu = row["source_repo"].split(" ")[0], each.run.gpu
        for group in ("all", gpu, row["load_kind"], f"{gpu} {row['load_kind']}", source, f"{gpu} {each.run.model}"):
            groups[group].append(each)
    for group, runs in groups.items():
        found = {title: summarise(runs, name) for name, title in QUANTITIES.items()}
        told = (f"{title} {each.median:.1%} ({each.bias:+.1%})" for title, each in found.items() if each is not None)
        print(f"{group:44s} {len(runs):4d}  " + "  ".join(told))
    for reason, count in reasons.most_common():
        print(f"not simulated: {count:3d} {reason}")


if __name__ == "__main__":
    main()
