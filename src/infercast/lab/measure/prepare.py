"""Kernels that are compiled when first used, launched once by a few processes before anything is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from threading import Thread

from infercast.lab.measure.cases import Case
from infercast.lab.measure.device import choose_engine

RECURRENT = {
    "scan": ("kind", "heads", "key_heads", "key_dim", "value_dim", "chunk"),
    "state_update": ("kind", "heads", "key_heads", "key_dim", "value_dim", "state_dtype"),
    "convolution": ("update", "channels"),
    "gating": ("op", "heads", "key_heads"),
}
COMPILED = "moe", "elementwise", *RECURRENT


def compiled_cases(cases: Sequence[Case]) -> list[Case]:
    first: dict[tuple[object, ...], Case] = {}
    largest_tokens = 8192  # kernels for more tokens are the same, and their operands larger
    for case in cases:
        shape = case.shape
        if case.family == "moe":
            small = Case("moe", shape | {"tokens": min(shape["tokens"], largest_tokens)})
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


def prepare(cases: Sequence[Case], engine: str, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Compile what ``cases`` need, as far as there is time before the deadline (of ``time.monotonic``)."""
    share_of_time = 0.3  # of the time budget that compiling may take
    seconds = share_of_time * (deadline - time.monotonic())
    least_seconds = 15.0
    if seconds >= least_seconds:
        compile_ahead(compiled_cases(cases), engine, seconds, meanwhile)
    else:
        meanwhile()


def load_apart(engine: str) -> ForkServerContext:
    """One process loads PyTorch and vLLM, and will split into others, as nothing of it has touched the GPU."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload([*_modules(engine)])
    ensure_running()
    return context


def compile_ahead(
    cases: Sequence[Case], engine: str, seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Launch each case once, by one process per core, for at most ``seconds``.

    While they load, ``meanwhile`` is called and has the GPU for itself.
    """
    most_workers = 14
    workers = min(most_workers, (os.cpu_count() or 1) - 1, len(cases))
    if workers < 2:
        meanwhile()
        return
    context = load_apart(engine)
    is_free, num_taken = context.Event(), context.Value("i")
    running = [context.Process(target=launch_all, args=(cases, engine, is_free, num_taken)) for _ in range(workers)]
    starting = Thread(target=_start, args=(running,))  # which takes until all is loaded
    starting.start()
    try:
        meanwhile()
        is_free.set()
        _load(_modules(engine))
        starting.join()
        until = time.monotonic() + seconds
        for process in running:
            process.join(max(0.0, until - time.monotonic()))  # the rest is compiled when its turn comes
    finally:
        starting.join()
        for process in running:
            process.kill()
            process.join()


def _start(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.start()


def _modules(engine: str) -> tuple[str, ...]:
    loaded = "infercast.lab.measure.kernels", "vllm.model_executor.layers.fused_moe"
    return loaded[: 2 if engine == "vllm" else 1]


def _load(modules: Sequence[str]) -> None:
    with suppress(ImportError):
        for name in modules:
            import_module(name)


def launch_all(cases: Sequence[Case], engine: str, is_free: Event, num_taken: Synchronized[int]) -> None:
    """Launch one case after another that no other process has taken."""
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    choose_engine(engine)
    is_free.wait()
    pool_share = 0.035  # of the GPU's memory for one process's operands
    bench = GpuBench(pool_share)
    while (number := _take(num_taken)) < len(cases):
        try:
            bench.compile(cases[number])
        except Exception:  # what cannot run is counted, with its reason, when its turn comes
            continue


def _take(num_taken: Synchronized[int]) -> int:
    with num_taken.get_lock():
        num_taken.value += 1
        return num_taken.value - 1
