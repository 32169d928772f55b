"""SGLang's hierarchical cache: the tier of the KV cache that its settings make.

Facts of SGLang 0.5.16: ``mem_cache/hiradix_cache.py``, ``mem_cache/memory_pool_host.py``,
``managers/cache_controller.py``. Kernels of the GPU copy pages, layer by layer; how fast, nobody measured here, so they
are taken to reach what large copies reach.
"""

from __future__ import annotations

from infercast.engines.offload import host_link
from infercast.engines.sglang.settings import WRITE_POLICIES, ResolvedSglang
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.serve.cache.offload import Offload
from infercast.serve.cache.shape import KvShape
from infercast.units import GIGA


def offload_of(
    settings: ResolvedSglang,
    shape: KvShape,
    page_bytes: int,
    num_pages: int,
    layers: int,
    layout: ParallelLayout,
    gpu: Gpu,
) -> Offload | None:
    """The tier; None where it is not asked for."""
    if not settings.enable_hierarchical_cache:
        return None
    if shape.states or shape.state_blocks or any(shape.windows):
        raise InputError(
            "enable_hierarchical_cache is not modelled for models with windows or recurrent layers; leave it out"
        )
    size = settings.hicache_size
    pages = int(size * GIGA // page_bytes) if size else int(num_pages * settings.hicache_ratio)
    link = host_link(gpu, layout.tensor * layout.pipeline, 0.0, 0.0)
    return Offload(
        num_blocks=pages,
        block_bytes=page_bytes,
        block_pieces=layers,
        load=link,
        store=link,
        prompts_only=False,
        store_threshold=1 + WRITE_POLICIES.index(settings.hicache_write_policy),
    )
