"""Kernels that are compiled when first used, launched once by a few processes before anything is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from threading import Thread

from infercast.lab.measure.cases import Case
from infercast.lab.measure.device import choose_engine

MOST_WORKERS = 14
SHARE_OF_TIME = 0.3  # of the time budget that compiling may take
LEAST_SECONDS = 15.0
LOADED = "infercast.lab.measure.kernels", "vllm.model_executor.layers.fused_moe"
POOL_SHARE = 0.035  # of the GPU's memory for one process's operands
RECURRENT = {
    "scan": ("kind", "heads", "key_heads", "key_dim", "value_dim", "chunk"),
    "state_update": ("kind", "heads", "key_heads", "key_dim", "value_dim", "state_dtype"),
    "convolution": ("update", "channels"),
    "gating": ("op", "heads", "key_heads"),
}
LARGEST_TOKENS = 8192  # kernels for more tokens are the same, and their operands larger


def compiled_cases(cases: Sequence[Case]) -> list[Case]:
    first: dict[tuple[object, ...], Case] = {}
    for case in cases:
        shape = case.shape
        if case.family == "moe":
            small = Case("moe", shape | {"tokens": min(shape["tokens"], LARGEST_TOKENS)})
            first[(small.key,)] = small
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
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # One process loads PyTorch and vLLM and splits into the others, as nothing of it has touched the GPU. This one,
    # which has, loads them meanwhile.
    context, modules = get_context("forkserver"), LOADED[: 2 if engine == "vllm" else 1]
    context.set_forkserver_preload([*modules])
    running = [context.Process(target=launch_once, args=(cases[number::workers], engine)) for number in range(workers)]
    loading = Thread(target=_load, args=(modules,))
    loading.start()
    try:
        for process in running:
            process.start()
        until = time.monotonic() + seconds
        for process in running:
            process.join(max(0.0, until - time.monotonic()))  # the rest is compiled when its turn comes
    finally:
        for process in running:
            process.kill()
            process.join()
        loading.join()


def _load(modules: Sequence[str]) -> None:
    with suppress(ImportError):
        for name in modules:
            import_module(name)


def launch_once(cases: Sequence[Case], engine: str) -> None:
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    choose_engine(engine)
    bench = GpuBench(POOL_SHARE)
    for case in cases:
        try:
            bench.build(case)()
        except Exception:  # what cannot run is counted, with its reason, when its turn comes
            continue
