"""GPU memory of a sweep: pools of random numbers that all operands are cut from, so nothing is allocated twice."""

from __future__ import annotations

from typing import Any

import torch

from infercast.errors import InputError

ALIGNMENT = 1024
POOL_SHARE = 0.45
"""Of the free memory; the rest is for what kernels allocate themselves."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
DTYPES |= {"fp8": torch.float8_e4m3fn}


class Workspace:
    """Random operands, and a way to empty the L2 cache."""

    def __init__(self, device: str = "cuda", share: float = POOL_SHARE) -> None:
        free, _ = torch.cuda.mem_get_info()
        narrow = int(free * share / 4)
        self._sizes = {"wide": int(free * share), "fp8": narrow, "fp16": 2**31, "fp32": min(2**32, narrow)}
        self._pools: dict[str, Any] = {}
        self._next: dict[str, int] = {}
        self._flush = torch.zeros(2 * l2_bytes() // 4, dtype=torch.float32, device=device)
        self.device = device

    def _pool(self, kind: str) -> Any:
        """Made when first asked for.

        Products of random numbers cost power, products of zeros do not: never measure on zeros. One GiB of random
        numbers is repeated over the pool; a GiB is more than any cache.
        """
        if kind not in self._pools:
            formats = {"fp16": torch.float16, "fp32": torch.float32}
            block = torch.randn(2**28, dtype=formats.get(kind, torch.bfloat16), device=self.device)
            if kind == "fp8":
                block = block.to(torch.float8_e4m3fn)
            size = self._sizes[kind] // ALIGNMENT * ALIGNMENT
            self._pools[kind] = torch.empty(size, dtype=torch.uint8, device=self.device)
            _fill(self._pools[kind], block.view(torch.uint8))
            self._next[kind] = 0
        return self._pools[kind]

    def take(self, *sizes: int, dtype: str = "bf16") -> Any:
        """A tensor of random numbers; later ones lie elsewhere until the pool is used up."""
        kind = {"fp8": "fp8", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32"}.get(dtype, "wide")
        pool, scalar = self._pool(kind), DTYPES[dtype]
        count = 1
        for size in sizes:
            count *= size
        length = -(-count * scalar.itemsize // ALIGNMENT) * ALIGNMENT
        if length > pool.numel():
            raise InputError(f"a tensor of {length / 2**30:.1f} GiB is larger than the GPU has room for")
        start = self._next[kind]
        if start + length > pool.numel():
            start = 0
        self._next[kind] = start + length
        return pool[start : start + count * scalar.itemsize].view(scalar).view(*sizes)

    def flush(self) -> None:
        """Read twice the L2 cache's size: what a kernel finds there afterwards is nothing of its own."""
        self._flush.sum()


def l2_bytes() -> int:
    """Size of the L2 cache as the driver reports it."""
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def _fill(pool: Any, block: Any) -> None:
    for start in range(0, pool.numel(), block.numel()):
        part = pool[start : start + block.numel()]
        part.copy_(block[: part.numel()])
