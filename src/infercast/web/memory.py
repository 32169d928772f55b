"""What fits on the GPUs of a state, as a stack that fills."""

from __future__ import annotations

from typing import Any

from infercast.forecast.memory import fit_memory
from infercast.report.memory import fit_dict
from infercast.web.arguments import LAYOUT, Asked, known_gpu, settings_of


def memory_of(asked: Asked) -> dict[str, Any]:
    """How the memory of one GPU is divided, also where the answer is that the model does not fit."""
    state = asked.state
    names = ("quantization", "kv_cache_dtype", "network", "context", *LAYOUT)
    fit = fit_memory(asked.model, known_gpu(state["gpu"]), settings_of(asked), **{name: state[name] for name in names})
    found = fit_dict(fit)
    parts = [{"key": name, "title": name.replace("_", " "), "bytes": size} for name, size in found["bytes"].items()]
    needed = sum(part["bytes"] for part in parts if part["key"] not in ("KV_cache", "left_free"))
    return {
        **found,
        "parts": parts,
        "needed_bytes": needed,
        "usable_bytes": found["total_bytes"] * getattr(fit.settings, "gpu_memory_utilization", 1.0),
        "kv_tokens": found["num_gpu_blocks"] * found["block_size"],
        "gpus": fit.layout.gpus,
    }
