"""What all schedulers share: sequences, groups that decode together, planned steps, and the scheduler interface."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

from infercast.serve.cache.allocation import Holding, Path
from infercast.serve.cache.shape import KvShape
from infercast.serve.step import GroupShape, StepShape
from infercast.serve.workload.request import Request

# A request inside the engine, and the step that a scheduler plans for some of them.


APART, ENDING = -1, -2
"""Instead of the step after which a sequence joined a cohort."""


class Sequence(Holding):
    """A request inside the engine, and what it holds of the KV cache."""

    __slots__ = (
        "adapter", "joined", "last_step", "last_token", "not_before", "num_cached", "num_computed", "num_most",
        "num_preemptions", "num_produced", "num_promised", "num_tokens", "num_under_way", "place", "rank",
    )  # fmt: skip

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, path, request.num_input, num_groups)
        self.num_output = request.num_output
        self.num_most = request.most_output
        """Tokens at which the scheduler knows that its answer ends, which may do so before."""
        self.num_tokens = request.num_input
        """The prompt and every token sampled so far, or being sampled in a step under way, that will be computed on."""
        self.num_computed = 0
        self.num_promised = 0
        """Tokens that finished steps and steps under way yield."""
        self.num_produced = 0
        """Tokens that finished steps have yielded."""
        self.num_cached = 0
        """Prompt tokens found in the prefix cache when the sequence was last started."""
        self.num_preemptions = 0
        self.last_token = math.nan
        self.num_under_way = 0
        """Tokens in steps under way, where the scheduler has to know."""
        self.not_before = 0
        """The first step that may compute its next token."""
        self.place = 0
        """Its place in the order in which sequences were started."""
        self.joined = APART
        """In a cohort, the step after which it decodes with the others; the counts above hold for the end of that step.
        Otherwise `APART`, or `ENDING` where its last token is under way."""
        self.last_step = 0
        """In a cohort, the step that yields its last token."""
        self.adapter: int | None
        """Where adapters are bounded: the one that it asks for."""
        self.rank: tuple[int, int]
        """Where priorities count: its own, and how many requests came before it. The smallest goes first."""


class Plan:
    """What one step computes: a token each of ``decodes`` sequences that decode together, and others beside them."""

    __slots__ = (
        "budget", "computed", "contexts", "decode_context", "decodes", "early", "ending", "fresh", "has_adapters",
        "held", "is_apart", "left", "new_tokens", "num_cut", "num_preempted", "sampled", "sequences", "started",
        "thrown_away", "wasted", "yielded",
    )  # fmt: skip

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        """Tokens that may still be added."""
        self.decodes = 0
        self.decode_context = 0
        """Tokens that these have computed before, together ..."""
        self.contexts: Callable[[], list[int]] = list
        """... and each, while the step is the last one planned."""
        self.sequences: list[Sequence] = []
        """The others, with how many tokens each computes and has computed before."""
        self.new_tokens: list[int] = []
        self.computed: list[int] = []
        self.started: list[Sequence] = []
        """Those that left the queue for this step."""
        self.sampled: list[Sequence] = []
        """Those beside the cohort that are sampled for at the end of the step, and how many tokens that yields each."""
        self.yielded: list[int] = []
        self.ending: list[Sequence] = []
        """Those of the cohort whose last token this step yields."""
        self.early: SequenceOf[Sequence] = ()
        """Where the step is repeated, those whose last token the one before the last yields."""
        self.left: list[Sequence] = []
        """Those that were in the cohort in this step, and are no more."""
        self.num_preempted = 0
        self.held = 0
        """KV blocks that all sequences hold for it."""
        self.is_apart = False
        """Whether prompts are computed while those who decode stand still."""
        self.fresh: SequenceOf[Sequence] = ()
        """Those that decode together for the first time, and had a token in a step of prompts before."""
        self.wasted = 0
        """Of those that decode together, how many have no use for a token: they ended, or had to leave meanwhile."""
        self.thrown_away: list[Sequence] = []
        """Of those sampled beside them, the same."""
        self.has_adapters = False
        """Whether a sequence of the step has a LoRA adapter."""
        self.num_cut = 0
        """Prompts of which a part is left: their last row is computed and thrown away."""

    @property
    def num_sampled(self) -> int:
        """Sequences that a token is sampled for."""
        return self.decodes + len(self.sampled)

    @property
    def num_yielded(self) -> int:
        """Sequences that get a token."""
        return self.decodes - self.wasted + len(self.sampled) - len(self.thrown_away)

    def forget(self, sequence: Sequence, *, was_decoding: bool) -> None:
        """A sequence that had to leave gets no token of this step."""
        if sequence in self.sampled:
            self.sampled.remove(sequence)
            self.yielded.pop()
        elif self.decodes and was_decoding:
            self.wasted += 1
            self.fresh = [each for each in self.fresh if each is not sequence]
            self.ending = [each for each in self.ending if each is not sequence]

    def take_back(self, sequence: Sequence) -> int:
        """It is not in the step after all; returns its tokens, which others may take."""
        place = self.sequences.index(sequence)
        del self.sequences[place], self.computed[place]
        new_tokens = self.new_tokens.pop(place)
        self.budget += new_tokens
        return new_tokens

    @property
    def num_sequences(self) -> int:
        """Sequences that are computed."""
        return self.decodes + len(self.sequences)

    @property
    def beside(self) -> list[tuple[int, int]]:
        """(new, computed) tokens of those beside the cohort."""
        return [*zip(self.new_tokens, self.computed, strict=True)]

    @property
    def shape(self) -> StepShape:
        """What a step timer needs to know."""
        return GroupShape(self.decodes, self.decode_context, self.contexts, self.beside, len(self.sampled))


# Sequences that compute a token each in the same steps, so that one count of steps serves all of them.
#
# What differs between two of them stays the same from step to step: how far apart their lengths are, in which steps
# they need another block, in which step they will have all their tokens. A step therefore costs the same however many
# sequences are in it, and so do many steps in a row.


Member = TypeVar("Member", bound=Sequence)


class Blocks(Protocol):
    """What members take their blocks from."""

    num_blocks: int
    num_groups: int
    shape: KvShape

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""


class Group(Generic[Member]):
    """Members, whose own counts stand still while they are in it."""

    def __init__(self, blocks: Blocks) -> None:
        self.members: dict[Member, None] = {}
        self.steps = 0
        """Steps planned so far; members have been in each of them since they joined."""
        self.computed = 0
        """Tokens that all members have computed together."""
        self._pool = blocks
        shape, self._num_groups = blocks.shape, blocks.num_groups
        self._block_size, self.period = shape.block_size, shape.common_size
        """Tokens of the shortest block, and those after which all groups of layers begin one together."""
        starts = [[offset % size == 0 for size in shape.sizes] for offset in range(0, self.period, self._block_size)]
        self._begun = [(number * self._block_size, sum(each)) for number, each in enumerate(starts)]
        """Within a period: tokens after which groups begin a block, and how many do."""
        self._last_steps: list[tuple[int, int, Member]] = []
        self._num_joined = 0
        self.blocks = [0] * self.period
        """For the number of a step modulo the period: blocks that members begin in it."""

    def contexts(self) -> list[int]:
        """Tokens that each member has computed."""
        steps = self.steps
        return [member.num_computed + steps - member.joined for member in self.members]

    def steps_left(self) -> int:
        """Steps until some member has all its tokens."""
        heap = self._last_steps
        while True:
            last, _, member = heap[0]
            if member.joined >= 0 and member.last_step == last:
                return last - self.steps
            heapq.heappop(heap)  # it left before

    def _enter(self, member: Member) -> int:
        """A sequence that has caught up is a member from the next step on; returns when it begins blocks."""
        steps, computed = self.steps, member.num_computed
        member.joined = steps
        self._num_joined += 1
        self.members[member] = None
        self.computed += computed
        member.last_step = last = steps + member.num_output - member.num_promised
        heapq.heappush(self._last_steps, (last, self._num_joined, member))
        phase = (steps + 1 - computed) % self.period
        for offset, count in self._begun:
            self.blocks[(phase + offset) % self.period] += count
        return phase

    def _blocks_needed(self, steps: int) -> list[int]:
        """Blocks that the members ask for in each of the steps after the next one."""
        blocks, start = self.blocks, (self.steps + 2) % self.period
        if steps <= self.period - start:
            return blocks[start : start + steps]
        return (blocks[start:] + blocks * (1 + steps // self.period))[:steps]

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are blocks, even if windows give none back."""
        room = self._pool.num_blocks - self._pool.num_held
        if len(self.members) * self._num_groups * (1 + steps // self._block_size) <= room:
            return steps
        return bisect_right([*accumulate(self._blocks_needed(steps))], room)

    def _due(self) -> list[Member]:
        """Members that have all their tokens after the steps so far, by the order in which that came."""
        heap, due = self._last_steps, dict[Member, None]()
        while heap and heap[0][0] <= self.steps:
            last, _, member = heapq.heappop(heap)
            if member.joined >= 0 and member.last_step == last:
                due[member] = None  # once, even if it left and came back with as much to do
        return [*due]


# What the loop of an engine asks of whoever plans its steps.


class Planner(Protocol):
    """Decides what each step computes."""

    num_preemptions: int
    cache: Any
    """The blocks that it hands out."""
    just_left: Any
    """Sequences that have left those who decode together since somebody looked, and had a token with them last."""

    @property
    def waiting(self) -> Collection[Sequence]:
        """Who has not started."""

    @property
    def running(self) -> Collection[Sequence]:
        """Who has."""

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""

    def plan(self) -> Plan | None:
        """Plan the next step; None if nothing can be computed."""

    @property
    def tries_again(self) -> bool:
        """Whether it may plan a step at once where it could not plan one."""

    def most_steps(self, plan: Plan) -> int:
        """How often in a row the step just planned can be computed before something changes that is known of."""

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are blocks."""

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPU so many times; returns the blocks held in each."""

    def end_early(self, plan: Plan) -> None:
        """Let go of those who had their last token in a repetition of a step before the last."""

    def complete(self, plan: Plan) -> SequenceOf[Sequence]:
        """Take in the tokens that a finished step yields; returns the sequences that are done."""
