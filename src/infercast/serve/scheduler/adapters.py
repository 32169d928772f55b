"""Limit on distinct LoRA adapters in a step: requests beyond the engine's adapter slots are skipped.

A waiting request stays queued if the adapters of running requests, and of those admitted before it in this step, fill
all slots and its own is not among them. In SGLang requests without an adapter take a slot, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from infercast.serve.scheduler.base import Sequence


class AdapterLimit:
    """The adapters of the step being planned."""

    def __init__(self, max_adapters: int, *, counts_base: bool = False) -> None:
        self._max_adapters = max_adapters
        self._free: set[int | None] = set() if counts_base else {None}
        self._in_step: set[int | None] = set()

    def begin(self, planned: Iterable[Sequence]) -> None:
        """Set the adapters of sequences scheduled before any waiting request."""
        self._in_step = {each.adapter for each in planned} - self._free

    def has_slot(self, sequence: Sequence) -> bool:
        adapter, taken = sequence.adapter, self._in_step
        return adapter in self._free or adapter in taken or len(taken) < self._max_adapters

    def add(self, sequence: Sequence) -> None:
        self._in_step |= {sequence.adapter} - self._free
