"""Published SGLang runs held against forecasts, by GPU, source and model.

    python benchmarks/accuracy/published_sglang.py RUNS.csv [WORD]

RUNS.csv is a table of collected runs (docs/validation.md); rows of quality A on H100, H200 and B200 are taken, those
with WORD in their model, source or GPU where one is given. InferenceX publishes no server's command: it is that of its
scripts (SemiAnalysisAI/InferenceX, benchmarks/dsr1_fp8_h200.sh, dsr1_fp8_b200.sh and dsr1_fp4_b200.sh).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from infercast.forecast.csv_rows import read_rows
from infercast.validate.published.collected import read_collected
from infercast.validate.published.compare import PublishedComparison, compare_published, summarise
from infercast.validate.published.load import RowReader

GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "output_tokens_per_second": "tokens/s"}
START = "sglang.launch_server --trust-remote-code --disable-radix-cache --tensor-parallel-size {tp} "
LONG = "--chunked-prefill-size 32768 --max-prefill-tokens 32768 --mem-fraction-static 0.82 "
BLACKWELL = "--kv-cache-dtype fp8_e4m3 --enable-flashinfer-allreduce-fusion --attention-backend trtllm_mla "


def inferencex_command(row: dict[str, str]) -> str:
    """What its scripts start for DeepSeek-R1."""
    lengths = row["len_dist"].split()[-1]
    if row["infercast_gpu"] == "h200-sxm":
        most = 512 if lengths == "1024/1024" else 256
        flags = f"{LONG}--max-running-requests {most} --cuda-graph-max-bs {most} --attention-backend flashinfer"
    elif "nvfp4" in row["precision"]:
        flags = f"{BLACKWELL}--max-running-requests 256 --cuda-graph-max-bs 256 --mem-fraction-static 0.85 "
        flags += "--chunked-prefill-size 16384"
    elif row["tp"] == "8":
        flags = f"{BLACKWELL}{LONG}--max-running-requests 128 --cuda-graph-max-bs 128"
    else:
        flags = f"{BLACKWELL}--max-running-requests 32 --cuda-graph-max-bs 32 --mem-fraction-static 0.95 "
        flags += "--chunked-prefill-size 8192 --max-prefill-tokens 8192"
    return START.format(tp=row["tp"]) + flags


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


def main() -> None:
    """Print every run, and medians by GPU, source and model."""
    path, word = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    groups: dict[str, list[PublishedComparison]] = defaultdict(list)
    for line, stated in enumerate(read_rows(path), start=2):
        if not chosen(stated, word):
            continue
        is_missing = not stated["server_cmd"] and "InferenceX" in stated["source_repo"]
        row = {**stated, "server_cmd": inferencex_command(stated)} if is_missing else stated
        (each,) = compare_published([read_collected(RowReader(path, line, row))])
        if each.problem:
            print(f"line {line} {row['model']}: {each.problem}")
            continue
        print(line_of(each), flush=True)
        load = "bursts" if each.run.workload.concurrency is None else "clients"
        for group in ("all", each.run.gpu, load, row["source_repo"].split(" ")[0], f"{each.run.gpu} {each.run.model}"):
            groups[group].append(each)
    for group, runs in groups.items():
        found = {title: summarise(runs, name) for name, title in QUANTITIES.items()}
        told = (f"{title} {each.median:.1%} ({each.bias:+.1%})" for title, each in found.items() if each is not None)
        print(f"{group:44s} {len(runs):4d}  " + "  ".join(told))


if __name__ == "__main__":
    main()
