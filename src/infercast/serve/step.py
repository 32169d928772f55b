"""The contract between an engine and whoever drives it: a step's shape in, what it costs GPU and host out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any, NamedTuple, Protocol, runtime_checkable

Prompts = Sequence[tuple[int, int]]
"""(new, computed) tokens of each."""
Contexts = Callable[[], list[int]]
"""Tokens that each of a group of sequences has computed, on request."""


@dataclass(repr=False)
class StepShape:
    """The batch of one step: sequence i computes ``new_tokens[i]`` tokens after ``computed[i]`` earlier ones."""

    new_tokens: Sequence[int]
    """Tokens that each sequence computes ..."""
    computed: Sequence[int]
    """... and its tokens that were computed before."""
    num_sampled: int
    """Sequences that produce a token at the end of the step."""

    def __repr__(self) -> str:
        words = f"{self.num_tokens:,} tokens of {len(self.new_tokens):,} sequences, {len(self.prompts)} with prompts"
        return f"<{type(self).__name__}: {words}>"

    @cached_property
    def num_sequences(self) -> int:
        """Sequences in the step."""
        return len(self.new_tokens)

    @property
    def head_rows(self) -> int:
        """Rows whose number decides which kernels the head runs."""
        return self.num_sequences

    @cached_property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(self.new_tokens)

    @cached_property
    def total_computed(self) -> int:
        """Earlier tokens of all sequences."""
        return sum(self.computed)

    @cached_property
    def is_decode(self) -> bool:
        """Every sequence computes a single token, so the step is as uniform as a CUDA graph needs it."""
        return max(self.new_tokens) == 1

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """(new, computed) of the sequences that compute more than one token."""
        return [pair for pair in zip(self.new_tokens, self.computed, strict=True) if pair[0] > 1]


class GroupShape(StepShape):
    """The same for ``decodes`` sequences of one token each, known by their sum, with others ``beside`` them.

    A timer that needs the length of each asks for ``computed``, which is worked out only then.
    """

    def __init__(
        self,
        decodes: int,
        decode_computed: int,
        contexts: Contexts,
        beside: Prompts = (),
        num_first: int = 0,
    ) -> None:
        """``beside``: (new, computed) tokens of others, of which ``num_first`` sample a token too."""
        self._later = decodes, contexts, beside
        if not beside:
            self.num_sequences = self.num_tokens = self.num_sampled = decodes
            self.total_computed, self.is_decode, self.prompts = decode_computed, True, []
            return
        self.num_sequences = decodes + len(beside)
        self.num_sampled = decodes + num_first
        self.num_tokens, self.total_computed = decodes, decode_computed
        for new, computed in beside:
            self.num_tokens += new
            self.total_computed += computed
        self.prompts = [pair for pair in beside if pair[0] > 1]
        self.is_decode = not self.prompts

    def __getattr__(self, name: str) -> Any:
        """The two lists, made on request."""
        if name not in ("new_tokens", "computed"):
            raise AttributeError(name)
        decodes, contexts, beside = self._later
        self.new_tokens = [1] * decodes + [new for new, _ in beside]
        self.computed = contexts() + [computed for _, computed in beside]
        return self.__dict__[name]


@dataclass(repr=False)
class DraftShape(StepShape):
    """The batch of a step with speculative decoding: those that verify drafts first, then prompts.

    ``num_sampled`` are the rows that the head computes: every draft and one more of each sequence that samples.
    """

    num_verifying: int
    """Sequences that compute a token and its drafts, if any."""
    num_drafts: int
    """Drafts in the step, of all of them together."""
    width: int
    """Tokens of a sequence that has as many drafts as there may be, 1 + K."""
    num_drafting: int
    """Sequences for which drafts are made at the end of the step ..."""
    num_next: int
    """... and how many for each."""

    @property
    def head_rows(self) -> int:
        """All that it computes."""
        return self.num_sampled

    @cached_property
    def is_decode(self) -> bool:
        """Every sequence has exactly 1 + K tokens, so the step is as uniform as a CUDA graph needs it."""
        return self.num_verifying == self.num_sequences and min(self.new_tokens) == max(self.new_tokens) == self.width

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """(new, computed) of the sequences that compute tokens of a prompt."""
        return [*zip(self.new_tokens[self.num_verifying :], self.computed[self.num_verifying :], strict=True)]


class HostCost(NamedTuple):
    """Seconds that the engine's one host thread spends on a step, in the order in which it does."""

    plan: float = 0.0
    """Choosing what the step computes."""
    prepare: float = 0.0
    """From there to the first kernel on its way."""
    launch: float = 0.0
    """From the first kernel to the last, sampling among them; the GPU may work on the first ones meanwhile."""
    process: float = 0.0
    """Taking in the result, once the GPU has it."""
    wake: float = 0.0
    """What launching takes longer in the first step after the engine had nothing to do: a CPU that slept is slow."""

    def waiting(self, seconds: float) -> HostCost:
        """The same where launching waits so long for the GPU."""
        if not seconds:
            return self
        plan, prepare, launch, process, wake = self
        return HostCost(plan, prepare, launch + seconds, process, wake)

    def plus(self, more: HostCost) -> HostCost:
        """The same with as much more of everything."""
        return HostCost(*map(add, self, more))

    @property
    def total(self) -> float:
        """What the thread is busy for: no step can follow the one before it faster."""
        return self.plan + self.prepare + self.launch + self.process


NO_HOST = HostCost()
"""A host that takes no time."""


class StepEstimate(NamedTuple):
    """What one step costs, or each of several steps in a row: its GPU, and its host."""

    gpu_seconds: list[float]
    varying: Sequence[Sequence[float]]
    """For each kernel whose time differs from step to step, its seconds in each of the steps."""
    host: HostCost = NO_HOST
    """The same for all of the steps: it does not depend on how long contexts are."""
    rows: tuple[int, ...] = ()
    """Where the timer keeps the other kernels, the same in all of the steps: a row in each of its tables."""
    slowed: float = 0.0
    """By which share products take longer in this one step than the tables say, because the clock went down."""
    target: float = 0.0
    """The share by which they would if such steps went on and on ..."""
    throttled: float = 0.0
    """... and the seconds of a step with prompts that it applies to, at the full clock."""


class StepTimer(Protocol):
    """Anything that can tell what steps cost."""

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """The costs of steps in a row: of this batch, then of the same batch with all its contexts one token longer,
        and so on. More than one step can be asked of a decoding batch only; the answer may hold fewer than asked for.
        """


@runtime_checkable
class GroupTimer(Protocol):
    """A step timer for whoever knows decoding sequences by their sums and asks often."""

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """Consecutive steps of sequences that have computed this many tokens in all."""

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """One step of these and of others ``beside`` them, of which ``num_first`` sample a token too."""


class _ByShape:
    """Any step timer as one of groups."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        return self._timer(GroupShape(count, computed, contexts), steps)

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        return self._timer(GroupShape(count, computed, contexts, beside, num_first))


def groups_of(timer: StepTimer) -> GroupTimer:
    """The timer itself where it can, or else one that asks it."""
    return timer if isinstance(timer, GroupTimer) else _ByShape(timer)


def constant_timer(seconds: float) -> StepTimer:
    """Every step takes the same time: for tests and for queueing theory."""

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        each = [seconds] * steps
        return StepEstimate(each, [each])

    return timer
