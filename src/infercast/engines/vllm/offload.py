"""vLLM's offloading connector: what its settings ask for, and the tier of the KV cache that they make.

Facts of vLLM 0.25: ``config/vllm.py`` (_post_init_kv_transfer_config), ``v1/kv_offload/base.py``, ``cpu/spec.py``,
``cpu/gpu_worker.py`` and ``cpu/swap_blocks_triton.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from infercast.engines.memory import KvLayout
from infercast.engines.offload import host_link
from infercast.engines.vllm.versions import EngineVersion
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.serve.cache.offload import Offload
from infercast.units import GIB

BACKENDS = ("native", "lmcache")
CONNECTOR = "OffloadingConnector"
MOST_GIB = 1_000_000
READ = ("cpu_bytes_to_use", "block_size", "offload_prompt_only", "store_threshold", "eviction_policy")
"""What is read of ``kv_connector_extra_config``."""
SUBMIT = 0.4e-3
"""Seconds of the thread that hands a copy over, for a list of all its pieces (an estimate) ..."""
SUBMIT_PIECE = 1.0e-6
"""... and for each of them, in one call of the driver (measured on an H200's host)."""
SMALL_PIECE = 28 * 1024
"""Smaller pieces are brought to the GPU by a kernel of its own, which takes their list as it is."""
SUBMIT_SMALL_PIECE = 0.1e-6
EMPTY_STEP = 1.2e-3
"""A turn of the engine's loop without a step: it sleeps a millisecond."""


class TierSettings(NamedTuple):
    """What a user asks for."""

    num_bytes: float
    """Of all GPUs of the engine together."""
    block_size: int | None = None
    prompts_only: bool = True
    store_threshold: int = 0


def tier_settings(size: float | None, backend: str, transfer: str | None) -> TierSettings | None:
    """From ``kv_offloading_size`` in GiB, its backend and ``kv_transfer_config``; None: there is no tier."""
    if backend not in BACKENDS:
        raise InputError(f"kv_offloading_backend must be {' or '.join(BACKENDS)}, not {backend!r}")
    if size is not None and not 0 < size <= MOST_GIB:
        raise InputError(f"kv_offloading_size must be above 0 and at most {MOST_GIB:,} GiB, not {size:g}")
    extra = _extra_config(transfer, has_size=size is not None)
    if size is None and extra is None:
        return None
    if size is not None and backend != BACKENDS[0]:
        raise InputError(f"kv_offloading_backend {backend} is not modelled; {BACKENDS[0]} is")
    extra = extra or {}
    num_bytes = extra.get("cpu_bytes_to_use") if size is None else size * GIB
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int | float) or not 0 < num_bytes <= MOST_GIB * GIB:
        raise InputError(
            f"kv_transfer_config: cpu_bytes_to_use must be above 0 and at most {MOST_GIB:,} GiB, not {num_bytes!r}"
        )
    if (policy := extra.get("eviction_policy", "lru")) != "lru":
        raise InputError(f"kv_transfer_config: eviction_policy {policy!r} is not modelled; lru is")
    block_size, threshold = extra.get("block_size"), extra.get("store_threshold", 0)
    for name, value in (("block_size", block_size), ("store_threshold", threshold)):
        if value is not None and (type(value) is not int or value < 0):
            raise InputError(f"kv_transfer_config: {name} must be a whole number, not {value!r}")
    return TierSettings(float(num_bytes), block_size, bool(extra.get("offload_prompt_only", True)), threshold)


def _extra_config(text: str | None, *, has_size: bool) -> Mapping[str, Any] | None:
    """The extra config of the offloading connector, where it is the one that is asked for."""
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InputError(f"kv_transfer_config must be a JSON object, not {text[:80]!r}")
    connector = values.get("kv_connector", CONNECTOR if has_size else None)
    if connector != CONNECTOR:
        raise InputError(
            f"kv_transfer_config: the connector {connector!r} is not modelled; {CONNECTOR} is, and `infercast "
            "disaggregate` forecasts prefill and decode pools"
        )
    extra = values.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        raise InputError(f"kv_transfer_config: kv_connector_extra_config must be an object, not {extra!r}")
    if strange := [name for name in extra if name not in READ]:
        raise InputError(f"kv_transfer_config: {strange[0]} is not modelled; read are {', '.join(READ)}")
    return extra


def offload_of(
    asked: TierSettings,
    kv: KvLayout,
    layers: int,
    layout: ParallelLayout,
    gpu: Gpu,
    *,
    whole: bool,
    latent: bool,
    version: EngineVersion,
) -> Offload:
    """The tier; ``whole``: a block of all layers lies in one piece; ``latent``: all GPUs of a stage hold the same."""
    shape, block_bytes = kv.shape.of_one_size, kv.block_bytes
    if shape.states or shape.state_blocks:
        raise InputError("kv_offloading_size is not modelled for models with recurrent layers; leave it out")
    size = asked.block_size or shape.block_size
    if size % shape.block_size:
        raise InputError(
            f"kv_transfer_config: block_size {size} is no multiple of the {shape.block_size} tokens of a block"
        )
    factor, gpus = size // shape.block_size, layout.tensor * layout.pipeline
    copies = 1 if latent and version.shares_latent and layout.pipeline == 1 else gpus
    taken = -(-block_bytes * copies * factor // version.host_page) * version.host_page
    num_blocks = int(asked.num_bytes) // taken
    if num_blocks < 1:
        raise InputError(f"kv_offloading_size of {asked.num_bytes / GIB:.3g} GiB holds no block of {size} tokens")
    pieces = 1 if whole else -(-layers // (len(shape.windows) * layout.pipeline))
    is_small = block_bytes // pieces < SMALL_PIECE
    return Offload(
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        block_pieces=pieces,
        load=host_link(gpu, gpus, SUBMIT, SUBMIT_SMALL_PIECE if is_small else SUBMIT_PIECE),
        store=host_link(gpu, gpus, SUBMIT, SUBMIT_PIECE),
        factor=factor,
        prompts_only=asked.prompts_only,
        store_threshold=asked.store_threshold,
        empty_step_seconds=EMPTY_STEP,
        **tier_rules(version),
    )


def tier_rules(version: EngineVersion) -> dict[str, bool]:
    """What `Offload` has of a release's rules."""
    return {
        "holders_first": version.holders_first,
        "spares_under_way": version.spares_under_way,
        "stores_ends": version.stores_ends,
        "by_request": version.recency_by_request,
    }
