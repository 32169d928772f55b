"""No more different LoRA adapters in a step than an engine has slots for: a request for another one is skipped.

As in vLLM: a waiting request stays where it is if the adapters of those that run, and of those that start before it in
the step, fill all slots and its own is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from infercast.serve.scheduler.base import Sequence


class AdapterLimit:
    """The adapters of the step that is being planned."""

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._in_step: set[int | None] = set()

    def begin(self, planned: Iterable[Sequence]) -> None:
        """These are in the step before any waiting request starts."""
        self._in_step = {each.adapter for each in planned} - {None}

    def has_slot(self, sequence: Sequence) -> bool:
        adapter, taken = sequence.adapter, self._in_step
        return adapter is None or adapter in taken or len(taken) < self._max_adapters

    def add(self, sequence: Sequence) -> None:
        if sequence.adapter is not None:
            self._in_step.add(sequence.adapter)
