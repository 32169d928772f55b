"""SGLang's own tree of two tiers on a CPU, with copies that are done at once and pools that only count."""

from types import SimpleNamespace as Namespace
from typing import Any

import torch
from sglang.srt.mem_cache import hiradix_cache, radix_cache
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.radix_cache import RadixCache

DONE = Namespace(query=lambda: True, synchronize=lambda: None)


class Copies:
    """In place of the cache controller: pages of the host are counted, those of the GPU come from its allocator."""

    write_policy = "write_through"

    def __init__(self, allocator: Any, host_tokens: int) -> None:
        self.mem_pool_device_allocator, self.free, self._all = allocator, host_tokens, host_tokens
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []

    def reset(self) -> None:
        self.free = self._all

    def write(self, device_indices: torch.Tensor, node_id: int) -> torch.Tensor | None:
        if len(device_indices) > self.free:
            return None
        self.free -= len(device_indices)
        self.ack_write_queue.append(Namespace(finish_event=DONE, node_ids=[node_id]))
        return torch.zeros(len(device_indices), dtype=torch.int64)

    def load(self, host_indices: torch.Tensor, node_id: int) -> Any:
        found = self.mem_pool_device_allocator.alloc(len(host_indices))
        if found is not None:
            self.ack_load_queue.append(Namespace(finish_event=DONE, node_ids=[node_id], timing_enabled=False))
        return found

    def evict_device(self, device_indices: torch.Tensor) -> int:
        self.mem_pool_device_allocator.free(device_indices)
        return len(device_indices)

    def evict_host(self, host_indices: torch.Tensor) -> int:
        self.free += len(host_indices)
        return len(host_indices)

    def start_loading(self) -> int:
        return -1


class TwoTiers(HiRadixCache):
    """The real tree, without what it starts beside itself."""

    def __init__(self, parameters: CacheInitParams, host_tokens: int, copied_at: int) -> None:
        self.page_size, self.pp_rank, self.pp_size = parameters.page_size, 0, 1
        self.cache_controller: Any = Copies(parameters.token_to_kv_pool_allocator, host_tokens)
        self.token_to_kv_pool_host = Namespace(clear=lambda: None)
        self.ongoing_write_through: dict[int, Any] = {}
        self.ongoing_load_back: dict[int, Any] = {}
        self.ongoing_prefetch: dict[str, Any] = {}
        self.ongoing_backup: dict[int, Any] = {}
        self.prefetch_loaded_tokens_by_reqid: dict[str, int] = {}
        self.work_list: list[Any] = []
        self.write_through_threshold, self.load_back_threshold = copied_at, 10
        self.enable_storage = self.enable_storage_metrics = False
        self.evictable_host_leaves: set[Any] = set()
        hiradix_cache.time = radix_cache.time  # a clock that ticks, as the other tree has it
        RadixCache.__init__(self, params=parameters)

    def _all_reduce(self, *_: Any) -> None:
        """There is one rank."""

    def _drain_async_work(self) -> None:
        """Nothing is sent."""
