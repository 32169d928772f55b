"""Interface between an engine model and the simulator: a step's shape in, its GPU and host cost out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import add
from typing import Any, Protocol, runtime_checkable

from infercast.lazy_classes import NamedTuple, dataclass

Prompts = Sequence[tuple[int, int]]  # (new, computed) tokens of each sequence
Contexts = Callable[[], list[int]]  # Returns the computed tokens of each sequence in a group; evaluated lazily


@dataclass(repr=False)
class StepShape:
    """The batch of one step: sequence i computes ``new_tokens[i]`` tokens on top of ``computed[i]`` earlier ones."""

    new_tokens: Sequence[int]  # Tokens each sequence computes in this step ...
    computed: Sequence[int]  # ... and tokens it computed before.
    num_sampled: int  # Sequences that sample a token at the end of the step

    def __repr__(self) -> str:
        words = f"{self.num_tokens:,} tokens of {len(self.new_tokens):,} sequences, {len(self.prompts)} with prompts"
        return f"<{type(self).__name__}: {words}>"

    @cached_property
    def num_sequences(self) -> int:
        """Sequences in the step."""
        return len(self.new_tokens)

    @property
    def head_rows(self) -> int:
        """Row count by which the LM head's kernels are selected."""
        return self.num_sequences

    @cached_property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(self.new_tokens)

    @cached_property
    def total_computed(self) -> int:
        """Context tokens of all sequences."""
        return sum(self.computed)

    @cached_property
    def is_decode(self) -> bool:
        """Every sequence computes one token, so the step is uniform and can use a CUDA graph."""
        return max(self.new_tokens) == 1

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """(new, computed) of sequences that compute more than one token."""
        return [pair for pair in zip(self.new_tokens, self.computed, strict=True) if pair[0] > 1]


class GroupShape(StepShape):
    """A batch of ``decodes`` single-token sequences, known by their total context, plus the sequences in ``prefills``.
    Per-sequence lengths (``computed``) are built only if a timer asks for them.
    """

    def __init__(
        self, decodes: int, decode_computed: int, contexts: Contexts, prefills: Prompts = (), num_first: int = 0
    ) -> None:
        """``prefills``: (new, computed) tokens of the other sequences, ``num_first`` of which sample a token too."""
        self._later = decodes, contexts, prefills
        if not prefills:
            self.num_sequences = self.num_tokens = self.num_sampled = decodes
            self.total_computed, self.is_decode, self.prompts = decode_computed, True, []
            return
        self.num_sequences = decodes + len(prefills)
        self.num_sampled = decodes + num_first
        self.num_tokens, self.total_computed = decodes, decode_computed
        for new, computed in prefills:
            self.num_tokens += new
            self.total_computed += computed
        self.prompts = [pair for pair in prefills if pair[0] > 1]
        self.is_decode = not self.prompts

    def __getattr__(self, name: str) -> Any:
        """Build the two lists on first access."""
        if name not in ("new_tokens", "computed"):
            raise AttributeError(name)
        decodes, contexts, prefills = self._later
        self.new_tokens = [1] * decodes + [new for new, _ in prefills]
        self.computed = contexts() + [computed for _, computed in prefills]
        return self.__dict__[name]


@dataclass(repr=False)
class DraftShape(StepShape):
    """A step with speculative decoding: verifying sequences first. ``num_sampled``: drafts, and one per sequence."""

    num_verifying: int  # Sequences that compute a token and its drafts, if any
    num_drafts: int  # Draft tokens in the step, over all sequences
    width: int  # Tokens of a sequence with the full number of drafts, 1 + K
    num_drafting: int  # Sequences that drafts are proposed for at the end of the step ...
    num_next: int  # ... and drafts for each.

    @property
    def head_rows(self) -> int:
        return self.num_sampled

    @cached_property
    def is_decode(self) -> bool:
        """Every sequence has exactly 1 + K tokens, so the step is uniform and can use a CUDA graph."""
        return self.num_verifying == self.num_sequences and min(self.new_tokens) == max(self.new_tokens) == self.width

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """(new, computed) of sequences that compute prompt tokens."""
        return [*zip(self.new_tokens[self.num_verifying :], self.computed[self.num_verifying :], strict=True)]


class HostCost(NamedTuple):
    """Seconds the engine's host thread spends on a step, in execution order."""

    plan: float = 0.0  # Scheduling
    prepare: float = 0.0  # Input preparation, up to the first kernel launch
    launch: float = 0.0
    """From the first kernel launch to the last, sampling included; the GPU may already be running the first ones."""
    process: float = 0.0  # Processing the result once the GPU has it
    wake: float = 0.0  # Extra launch time in the first step after idling: a CPU core leaving a sleep state is slow

    def waiting(self, seconds: float) -> HostCost:
        """The same where launching waits so long for the GPU."""
        if not seconds:
            return self
        plan, prepare, launch, process, wake = self
        return HostCost(plan, prepare, launch + seconds, process, wake)

    def plus(self, more: HostCost) -> HostCost:
        return HostCost(*map(add, self, more))

    @property
    def total(self) -> float:
        """Time the thread is busy, which bounds the interval between steps from below."""
        return self.plan + self.prepare + self.launch + self.process


host_cost_of: Callable[[tuple[float, float, float, float, float]], HostCost] = partial(tuple.__new__, HostCost)
"""The same of all fields in order, in half the time: one is made in most steps."""


class StepEstimate(NamedTuple):
    """GPU and host cost of one step, or of each of several consecutive steps."""

    gpu_seconds: list[float]
    varying: Sequence[Sequence[float]]  # Seconds in each step, for each kernel that varies between steps
    host: HostCost = HostCost()  # The same for all steps: it does not depend on context length
    rows: tuple[int, ...] = ()  # The kernels that are the same in all steps: a row index in each of the timer's tables
    slowed: float = 0.0  # Fractional slowdown of this step's GEMMs over the tables, because the clock was lowered
    target: float = 0.0  # The slowdown in steady state, if such steps continued ...
    throttled: float = 0.0  # ... and the seconds it applies to in a prefill step, at full clock.


estimated: Callable[[tuple[Any, ...]], StepEstimate] = partial(tuple.__new__, StepEstimate)
"""The same of all fields in order, in half the time."""


class StepTimer(Protocol):
    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """Costs of consecutive steps: of this batch, then of the same batch with every context one token longer, and so
        on. More than one step is allowed only for a decode batch; fewer may be returned than requested.
        """


@runtime_checkable
class GroupTimer(Protocol):
    """A step timer for frequent callers that know decoding sequences by their total context only."""

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """Consecutive decode steps of ``count`` sequences with ``computed`` context tokens in total."""

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """One step of the decode batch with the sequences in ``prefills``, ``num_first`` of which sample, too."""


class _ByShape:
    """Adapts a `StepTimer` to `GroupTimer`."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        return self._timer(GroupShape(count, computed, contexts), steps)

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        return self._timer(GroupShape(count, computed, contexts, prefills, num_first))


def groups_of(timer: StepTimer) -> GroupTimer:
    """The timer itself if it supports groups, otherwise an adapter."""
    return timer if isinstance(timer, GroupTimer) else _ByShape(timer)


class ChangedTimer:
    """A timer that says what another one does, changed: ``change`` is called with whether a step has prompts."""

    def __init__(self, timer: StepTimer, change: Callable[[StepEstimate, bool], StepEstimate]) -> None:
        self._timer, self._groups, self._change = timer, groups_of(timer), change

    @property
    def adapted(self) -> ChangedTimer | None:
        """For steps with a LoRA adapter, where those have a timer of their own."""
        adapted = getattr(self._timer, "adapted", None)
        return adapted and ChangedTimer(adapted, self._change)

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        return self._change(self._timer(shape, steps), bool(shape.prompts))

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        return self._change(self._groups.decode(count, computed, contexts, steps), False)

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        estimate = self._groups.compute(prefills, num_first, count, computed, contexts)
        return self._change(estimate, max(prefills, default=(0, 0))[0] > 1)


def constant_timer(seconds: float) -> StepTimer:
    """Every step takes the same time: for tests and queueing theory."""

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        each = [seconds] * steps
        return StepEstimate(each, [each])

    return timer
