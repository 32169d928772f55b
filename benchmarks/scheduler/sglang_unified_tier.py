"""SGLang's tree of two tiers since 0.5.19 (one class has both) on a CPU: copies are done at once, pools only count."""

from types import SimpleNamespace as Namespace
from typing import Any

import torch
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

DONE = Namespace(query=lambda: True, synchronize=lambda: None)


def _ack(node_ids: list[int]) -> Any:
    return Namespace(finish_event=DONE, node_ids=node_ids, timing_enabled=False, num_tokens_by_pool={}, num_bytes=0)


class Copies:
    """In place of the cache controller: tokens of the host are counted, those of the GPU come from its allocator."""

    write_policy, enable_storage, pp_prefetch_command_group = "write_through", False, None

    def __init__(self, allocator: Any, host_tokens: int) -> None:
        self.mem_pool_device_allocator, self.free_tokens, self._all = allocator, host_tokens, host_tokens
        self.layer_done_counter = Namespace(num_counters=1 << 30)
        anchor = Namespace(host_pool=Namespace(shared_allocation_domain=None), host_evict_fn=None)
        self.mem_pool_host = Namespace(available_size=lambda: self.free_tokens, clear=lambda: None, anchor_entry=anchor)
        self.reset()

    def reset(self) -> None:
        self.free_tokens = self._all
        self.queued: list[int] = []
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []

    def write(self, device_indices: torch.Tensor, node_id: int, *, flush: bool = True, **_: Any) -> torch.Tensor | None:
        if len(device_indices) > self.free_tokens:
            return None
        self.free_tokens -= len(device_indices)
        self.queued.append(node_id)
        if flush:
            self.start_writing()
        return torch.zeros(len(device_indices), dtype=torch.int64)

    def start_writing(self) -> None:
        self.ack_write_queue += [_ack([each]) for each in self.queued]
        self.queued = []

    def load(self, host_indices: torch.Tensor, node_id: int, **_: Any) -> Any:
        found = self.mem_pool_device_allocator.alloc(len(host_indices))
        if found is not None:
            self.ack_load_queue.append(_ack([node_id]))
        return found

    def free(self, host_indices: torch.Tensor, **_: Any) -> None:
        self.free_tokens += len(host_indices)

    def start_loading(self) -> int:
        return -1


class TwoTiers(UnifiedRadixCache):
    """The real tree, with what ``init_hicache`` sets."""

    def __init__(self, parameters: CacheInitParams, host_tokens: int, copied_at: int) -> None:
        parameters.tree_components = (ComponentType.FULL,)
        super().__init__(parameters)
        copies: Any = Copies(parameters.token_to_kv_pool_allocator, host_tokens)
        self.cache_controller = self.host_pool_group = copies
        self.components[ComponentType.FULL]._full_kv_pool_host = copies
        self.tree_core.set_hicache_enabled()
        self.write_through_threshold, self.load_back_threshold, self.is_write_back = copied_at, 10, False
