"""Whose kernels are measured: vLLM's where it is installed, or PyTorch's own throughout."""

from __future__ import annotations

import os
from contextvars import ContextVar
from importlib.util import find_spec

from infercast.errors import InputError, UnknownNameError

ENGINES = ("vllm", "torch")
_engine = ContextVar("engine", default="vllm")


def choose_engine(name: str | None) -> str:
    """Take this engine's kernels from now on, vLLM's by default where it is installed; returns which that is."""
    if name is not None and name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    installed = find_spec("vllm") is not None
    if name == "vllm" and not installed:
        raise InputError("--engine vllm needs vLLM: pip install vllm, or measure PyTorch's kernels with --engine torch")
    _engine.set(name or ("vllm" if installed else "torch"))
    log_to_stderr()
    return _engine.get()


def use_vllm() -> bool:
    """Whether kernels of vLLM are wanted."""
    return _engine.get() == "vllm"


def need_vllm() -> None:
    """Raise ImportError, as a missing package would, where kernels of vLLM are not wanted."""
    if not use_vllm():
        raise ImportError("only vLLM has this kernel, and PyTorch's own are measured")


def log_to_stderr() -> None:
    """Keep what vLLM logs off standard output, which is for results; to be called before vLLM is imported."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
