"""What the best implementations reach: the latency that one in ten measured kernels of a shape beats.

For each family a forest was fitted to the lowest tenth of log(measured / (hard limit + launch floor)) over all measured
GPUs and engines. Its features say what shape a kernel has in units of the GPU (how long it must take, which pipe is the
busiest, how full the chip is), and not which GPU it is. So a ceiling is what kernels of this shape reach somewhere, as
a share of what the hardware allows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.bundled import DATA
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Elementwise, Gemm, MoE, Op
from infercast.predict.adjust.mixed import split_batch, together
from infercast.predict.artifact.artifact import POOLED, Artifact, load_artifact
from infercast.predict.artifact.features import Inputs
from infercast.predict.limits import limit_seconds, limits_of
from infercast.predict.profile import family_of
from infercast.predict.roofline import launch_floor

Array = npt.NDArray[Any]

TILE = 128
LONGEST = 1 << 40
"""Rows of a tile that holds any sequence."""
NOT_STREAMED = ("sampling", "moe")
"""Families of memory-bound operators that are several kernels: what was measured of single ones does not hold."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_COMMON = ("log_launches", "log_tensor_per_dram")
_OF_ATTENTION = ("log_rounds", "log_queries", "log_keys", "log_group", "head_dim", "window", "latent", "kv_dtype")
FEATURES: dict[str, tuple[str, ...]] = {
    "gemm": (*_COMMON, "log_m", "log_k", "log_rounds", "aligned"),
    "attention_prefill": (*_COMMON, *_OF_ATTENTION),
    "attention_decode": (*_COMMON, *_OF_ATTENTION),
    "moe": (*_COMMON, "log_rows", "log_experts", "log_inter", "log_hidden", "log_rounds"),
    "collective": (*_COMMON, "kind", "gpus", "linked"),
    "memory_bound": _COMMON,
}
CEILINGS = Inputs("ceilings", FEATURES, lambda family, *_: family, ("adjust/ceiling.py", "limits.py"))


class Ceilings:
    """Ceilings of kernels on any GPU."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @property
    def provenance(self) -> dict[str, Any]:
        """What they were learned from."""
        return {name: value for name, value in self._artifact.header.items() if name != "models"}

    def knows(self, op: Op) -> bool:
        """Whether kernels of this kind were measured anywhere."""
        if isinstance(op, Elementwise) and op.family in NOT_STREAMED:
            return False
        return self._artifact.find(family_of(op), POOLED, POOLED, variant_of(op)) is not None

    def seconds(self, op: Op, gpu: Gpu) -> Array:
        """What one launch takes where it is done best, never less than the hard limit; only for what it `knows`."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(together(self.seconds(prompts, gpu), self.seconds(decodes, gpu)))
        limit = limit_seconds(op, gpu)
        found = self._artifact.find(family_of(op), POOLED, POOLED, variant_of(op))
        if found is None:
            raise InputError(f"no kernel of {family_of(op)} {variant_of(op)} was measured, so its ceiling is not known")
        return np.maximum(limit, (limit + launch_floor(gpu)) * np.exp(found[1].predict(features_of(op, gpu))))


@lru_cache
def default_ceilings() -> Ceilings:
    """Those that come with infercast."""
    return Ceilings(load_artifact(DATA / "fitted/ceilings.npz", CEILINGS))


def variant_of(op: Op) -> str:
    """Kernels that are learned apart: by format."""
    if isinstance(op, Gemm):
        return op.dtype if op.dtype != "fp16" else "bf16"
    if isinstance(op, MoE):
        return op.weight_dtype or op.dtype
    return ""


def features_of(op: Op, gpu: Gpu) -> Array:
    """One row a kernel: its size and balance in units of the GPU, then what its family has, as in ``FEATURES``."""
    pipes = limits_of(op, gpu)
    limit = limit_seconds(op, gpu)
    busy = np.maximum(pipes.get("tensor", limit), 1e-12)
    balance = np.clip(np.log2(busy / np.maximum(pipes.get("dram", limit), 1e-12)), -8.0, 8.0)
    parts = [np.log2(limit / launch_floor(gpu) + 1e-6), balance, *_shape(op, gpu)]
    return np.column_stack(np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in parts)))


def _shape(op: Op, gpu: Gpu) -> list[Any]:
    if isinstance(op, Gemm):
        m, n, k = (np.ravel(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k))
        blocks = op.batch * np.ceil(m / TILE) * np.ceil(n / TILE)
        return [np.log2(m), np.log2(k), np.log2(blocks / gpu.sms), (n * k) % 64 == 0]
    if isinstance(op, Attention):
        return _attention(op, gpu)
    if isinstance(op, MoE):
        hit = np.maximum(np.ravel(op.experts_hit), 1.0)
        rows = np.ravel(op.routed_rows) / hit
        blocks = hit * np.ceil(rows / TILE) * np.ceil(op.inter / TILE)
        return [np.log2(rows), np.log2(hit), np.log2(op.inter), np.log2(op.hidden), np.log2(blocks / gpu.sms)]
    if isinstance(op, Collective):
        return [KINDS.index(op.kind), op.gpus, gpu.is_linked(op.gpus)]
    return []


def _attention(op: Attention, gpu: Gpu) -> list[Any]:
    sequences = np.ravel(op.num_tiles(LONGEST))
    queries, keys = np.ravel(op.num_queries), _num_keys(op)
    tiles = np.ravel(op.num_tiles(TILE)) * op.heads if int(np.max(op.queries)) > 1 else sequences * op.kv_heads
    return [
        np.log2(tiles / gpu.sms),
        np.log2(queries / sequences),
        np.log2(keys / sequences),
        np.log2(op.heads / op.kv_heads),
        op.head_dim,
        float(op.window > 0),
        float(op.latent_kv),
        float(op.kv_dtype != op.dtype),
    ]


def _num_keys(op: Attention) -> Array:
    """Keys of all sequences."""
    return np.ravel((op.keys * op.sequences).sum(axis=-1))
