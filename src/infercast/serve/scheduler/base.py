"""What all schedulers share: sequences, decode groups, planned steps, the interface, and the rules of engines."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from infercast.serve.cache.blocks import BlockAllocation, Ends, KvShape, Path
from infercast.serve.step import GroupShape, StepShape
from infercast.serve.workload.request import Request

# A request inside the engine, and the step that a scheduler plans for some of them.


APART, ENDING = -1, -2
"""Instead of the step after which a sequence joined a cohort."""


class Sequence(BlockAllocation):
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
        "thrown_away", "wasted",
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
        """Those beside the cohort that are sampled for at the end of the step."""
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
        """Whether prompts are computed while decoding sequences stand still."""
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

    def forget(self, sequence: Sequence, *, was_decoding: bool) -> None:
        """A sequence that had to leave gets no token of this step."""
        if sequence in self.sampled:
            self.sampled.remove(sequence)
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
        """Blocks that sequences hold."""


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


# Where a step of a prompt ends, so that the states of recurrent layers can be found again.
#
# A state stands for all tokens before it, so only one that was left where a block of tokens ends can serve another
# one. Steps of prompts are cut there: after the last whole block, and where the prompt parts from another one whose
# tokens are cached and whose state is not. Some kernels leave a state before the end of a step, too, which then need
# not be cut.


class Prompt(NamedTuple):
    """What is left to compute of a sequence."""

    computed: int
    num_input: int
    known: int
    """Tokens of the prompt and of the answer that are known."""
    parts_at: int = 0
    """Where it parts from the other prompt; 0: nowhere."""

    @property
    def end(self) -> int:
        """Where it decodes, or computes its last known token."""
        return max(self.num_input, self.known - 1)


def whole_blocks(prompt: Prompt, new_tokens: int, ends: Ends) -> int:
    """A step has whole blocks, up to the last one of the prompt that is of use; the rest comes with the next."""
    if prompt.computed >= prompt.end:
        return new_tokens
    size = ends.size
    last, reached = max(0, prompt.known // size - ends.drops) * size, prompt.computed + new_tokens
    if reached < last:
        new_tokens = new_tokens // size * size
    elif prompt.computed < last < reached:
        new_tokens = last - prompt.computed
    common = prompt.parts_at - prompt.computed
    return common // size * size if size <= common < new_tokens else new_tokens


def opened_blocks(prompt: Prompt, new_tokens: int, ends: Ends, most: int, *, last_token_own_step: bool = True) -> int:
    """The same where a block larger than the ``most`` tokens of a step is computed in several, and, with
    ``last_token_own_step``, the last token of a prompt is in a step after its last block.
    """
    if prompt.computed >= prompt.end:
        return new_tokens
    size, start, end = ends.size, prompt.computed, prompt.computed + new_tokens
    if end < prompt.end:
        aligned = end // size * size
        end = aligned if aligned > start or size <= most else end
    stops = []
    if start + new_tokens < prompt.end or not ends.is_left(start, start + new_tokens, ends.last(prompt.end)):
        stops.append(ends.last(prompt.known) if last_token_own_step else (prompt.known // size - ends.drops) * size)
    if start % size:
        stops.append((start // size + 1) * size)
    if start < prompt.parts_at < end:
        stops.append(start + (prompt.parts_at - start) // size * size)
    end = min([stop for stop in stops if start < stop < end], default=end)
    return max(end - start, 0)


# The rules of engines whose steps mix prompts and decoding.


RANK = attrgetter("rank")
WHOLE_PROMPT = 1 << 40
"""Tokens that an engine may take in at once where it does not compute them."""


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Sequences are served in order of arrival, in steps that mix prompts and decoding; the last is preempted first."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int = 0
    """At most this many tokens of one prompt a step; 0: no such limit."""
    chunked_prefill: bool = True
    prompts_first: bool = False
    """Steps of prompts alone as long as one waits that fits; decoding stands still meanwhile."""
    waits_for_tokens: bool = False
    """A sequence is in one step at a time: its next token is planned when the last one is known."""
    decode_stride: int = 1
    """A sequence that samples in a step samples again this many steps later, others in between (pipelines)."""
    threshold_exempts_single_request: bool = False
    """The threshold does not hold for a request that is alone in the engine."""
    settles: bool = False
    """Blocks used by steps in flight are freed only on completion. Sliding windows then advance by completed tokens,
    new requests need room for those in flight, and a preempted one is queued again when its last step completes."""
    allow_partial_block: bool = False
    """Where steps of prompts end with blocks: one that no step has room for is computed in several."""
    skipped_queue_separate: bool = False
    """Skipped requests are in a queue of their own, before preempted ones."""
    last_token_own_step: bool = True
    """The same: the last token of a prompt that ends with a block is in a step of its own."""
    watermark: float = 0.0
    """The share of all blocks that is left free where a request starts beside others."""
    reserves_prompts: bool = True
    """A request starts only if all of its prompt has room, not just the first chunk."""
    by_priority: bool = False
    """The smallest priority goes first, and of equals the first that came. A request that waits never takes the place
    of one that runs; where a running one needs a block and there is none, the last of all that run is preempted,
    although the step may have taken it in already (``--scheduling-policy priority``)."""
    steps_over: bool = False
    """The index into the list of those that run is not moved back for a victim before it that had nothing to compute,
    so the one after it loses its turn (vLLM 0.25)."""

    @property
    def repeats(self) -> bool:
        """Whether stretches of decoding can be jumped over."""
        return not self.prompts_first

    def spare_tokens(self, block_size: int) -> int:
        """Tokens beyond its own for which there must be room before a request can start: none."""
        return 0

    def chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """Tokens of a running prompt that a step computes; ``alone``: no other request is in the engine."""
        threshold = self.long_prefill_token_threshold
        if threshold and not (self.threshold_exempts_single_request and alone):
            return min(missing, budget, threshold)
        return missing if missing < budget else budget

    def first_chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """The same for a prompt that starts; 0: it has to wait, without chunked prefill until all of it fits."""
        # The threshold comes first: a prompt that it cuts small enough may start even without chunked prefill.
        if not self.chunked_prefill and self.chunk(missing, missing, alone=alone) > budget:
            return 0
        return self.chunk(missing, budget, alone=alone)

    def align(self, prompt: Prompt, new_tokens: int, ends: Ends, *, starts: bool) -> int:
        """As many of these tokens as end where the state of recurrent layers can be found again; 0: none now.

        Of the two rules, the second looks for where prompts part only when one ``starts``.
        """
        if self.max_num_batched_tokens == WHOLE_PROMPT:  # it arrives with its state
            return new_tokens
        if self.allow_partial_block:
            threshold = self.long_prefill_token_threshold or self.max_num_batched_tokens
            most = min(threshold, self.max_num_batched_tokens)
            return opened_blocks(prompt, new_tokens, ends, most, last_token_own_step=self.last_token_own_step)
        return whole_blocks(prompt if starts else prompt._replace(parts_at=0), new_tokens, ends)

    def reserved_tokens(self, sequence: Sequence, num_tokens: int) -> int:
        """Tokens for which there must be room when a sequence starts: its prompt, or just what a step computes."""
        return num_tokens if self.reserves_prompts else 0

    def kept_free(self, num_blocks: int) -> int:
        """Blocks that a sequence which starts beside others has to leave free; vLLM counts its empty block, too."""
        return int(self.watermark * (num_blocks + 1))

    def for_decode_pool(self) -> FirstCome:
        """The same rules where prompts arrive computed, so that no step is bounded by their tokens."""
        return replace(self, max_num_batched_tokens=WHOLE_PROMPT, long_prefill_token_threshold=0)

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The one that started last, or the last by priority."""
        return max(running, key=RANK) if self.by_priority else next(iter(running))


class RankedQueue(deque[Sequence]):
    """Waiting requests in order of rank, however they come."""

    def append(self, sequence: Sequence) -> None:
        if not self or self[-1].rank < sequence.rank:
            super().append(sequence)
        else:
            insort(self, sequence, key=RANK)

    def appendleft(self, sequence: Sequence) -> None:
        """A preempted sequence comes back to its place."""
        self.append(sequence)


# The rules of an engine whose steps are prompts or decoding: what bounds them, and how many tokens a start promises.
#
# SGLang schedules so. Steps of prompts go first as long as one can be formed, and decoding stands still meanwhile. A
# request starts only if there is room for its prompt and for a share of the answers that all who run have declared;
# the share becomes smaller with every step of decoding, and is set anew when the cache overflows after all.


Order = Literal["arrival", "longest_match"]
"""Order of the waiting queue."""


@dataclass(frozen=True, slots=True)
class PrefillFirst:
    """Prompts first, at most one of them chunked; the sequence that has produced least is preempted first."""

    max_running_requests: int
    chunked_prefill_size: int | None = 8192
    """Tokens of prompts in a step, of which the last prompt is cut; None: prompts are not cut."""
    max_prefill_tokens: int = 16384
    """Tokens of prompts in a step after which no other one is added to it."""
    mixed_chunk: bool = False
    """Whether decoding goes on beside prompts; its tokens count towards both limits."""
    order: Order = "arrival"
    first_ratio: float = 0.7
    """The share of the tokens that running requests may still ask for, for which there must be room ..."""
    least_ratio: float = 0.098
    """... at the least, ..."""
    ratio_decay: float = (0.7 - 0.098) / 600
    """... and by how much it becomes less with every step of decoding."""
    max_reserved_output: int = 4096
    """Tokens of one answer that are counted at most."""
    max_prompts: int | None = None
    """Prompts of a step at most."""
    retraction_headroom: int = 20
    """Tokens of each sequence that stays for which there is room after a retraction."""
    tries_always: bool = False
    """Prompts that did not fit are tried again in every step, not only when a request has ended (a pool of windows)."""
    ignores_end: bool = False
    """Of requests that produce all that they declare the engine knows that (``ignore_eos``)."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of a step of prompts."""
        return self.chunked_prefill_size or self.max_prefill_tokens

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at the same time."""
        return self.max_running_requests

    @property
    def chunked_prefill(self) -> bool:
        """Any prompt can be computed: in pieces or, alone, as a whole."""
        return True

    @property
    def repeats(self) -> bool:
        """Steps of decoding are taken in stretches."""
        return True

    @property
    def settles(self) -> bool:
        """What a step under way uses is given up with its result."""
        return False

    def spare_tokens(self, block_size: int) -> int:
        """A block that is begun, one that may be needed, and a token."""
        return 2 * block_size + 1

    def for_decode_pool(self) -> PrefillFirst:
        """Whole prompts are taken in at once."""
        return replace(self, chunked_prefill_size=None, max_prefill_tokens=WHOLE_PROMPT)


Policy = FirstCome | PrefillFirst
