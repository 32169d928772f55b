"""Kernels that are compiled when first used, launched once by a few processes before anything is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from infercast.lab.measure.cases import Case
from infercast.lab.measure.device import choose_engine

MOST_WORKERS = 14
SHARE_OF_TIME = 0.3  # of the time budget that compiling may take
LEAST_SECONDS = 45.0  # starting the processes takes half of that
POOL_SHARE = 0.035  # of the GPU's memory for one process's operands
RECURRENT = {
    "scan": ("kind", "heads", "key_heads", "key_dim", "value_dim", "chunk"),
    "state_update": ("kind", "heads", "key_heads", "key_dim", "value_dim", "state_dtype"),
    "convolution": ("update", "channels"),
    "gating": ("op", "heads", "key_heads"),
}
LARGEST_TOKENS = 2048  # kernels for more tokens are the same, and their operands larger


def compiled_cases(cases: Sequence[Case]) -> list[Case]:
    first: dict[tuple[object, ...], Case] = {}
    for case in cases:
        shape = case.shape
        if case.family == "moe" and shape["tokens"] <= LARGEST_TOKENS:
            first[(case.key,)] = case
        elif case.family == "elementwise":
            first.setdefault((shape["op"], shape["width"], shape["heads"]), case)
        elif case.family in RECURRENT:
            key = (case.family, *(shape[name] for name in RECURRENT[case.family]))
            first[key] = min(first.get(key, case), case, key=_tokens)
    # A scan is half a dozen kernels in a hundred configurations: each is the first of another process.
    return sorted(first.values(), key=lambda case: case.family != "scan")


def _tokens(case: Case) -> int:
    return int(case.shape.get("rows", 0) or case.shape["batch"] * case.shape["q_len"])


def prepare(cases: Sequence[Case], engine: str, deadline: float) -> None:
    """Compile what ``cases`` need, as far as there is time before the deadline (of ``time.monotonic``)."""
    seconds = SHARE_OF_TIME * (deadline - time.monotonic())
    if seconds >= LEAST_SECONDS:
        compile_ahead(compiled_cases(cases), engine, seconds)


def compile_ahead(cases: Sequence[Case], engine: str, seconds: float) -> None:
    """Launch each case once, by one process per core, for at most ``seconds``."""
    workers = min(MOST_WORKERS, (os.cpu_count() or 1) - 1, len(cases))
    if workers < 2:
        return
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.jsonl"
        path.write_text("\n".join(json.dumps([case.family, case.shape]) for case in cases), encoding="utf-8")
        command = [sys.executable, "-m", "infercast.lab.measure.prepare", engine, str(path), str(workers)]
        start = partial(subprocess.Popen, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running = [start([*command, str(number)]) for number in range(workers)]
        until = time.monotonic() + seconds
        try:
            for process in running:
                process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # the rest is compiled when its turn comes
        finally:
            for process in running:
                process.kill()
                process.wait()


def main(engine: str, path: str, workers: int, number: int) -> None:
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    choose_engine(engine)
    bench = GpuBench(POOL_SHARE)
    for line in Path(path).read_text(encoding="utf-8").splitlines()[number::workers]:
        try:
            bench.build(Case(*json.loads(line)))()
        except Exception:  # what cannot run is counted, with its reason, when its turn comes
            continue


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
