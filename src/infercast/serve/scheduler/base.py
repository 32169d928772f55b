"""Common parts of the schedulers: sequences, decode batches, planned steps and the scheduling policies."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from infercast.lazy_classes import dataclass, replace
from infercast.serve.cache.blocks import BlockAllocation, Ends, KvShape, Path
from infercast.serve.step import GroupShape, StepShape
from infercast.serve.workload.request import NEVER, Request

# A request inside the engine, and the plan of a step.

APART, ENDING = -1, -2  # Values of `Sequence.joined` outside a decode batch
RANK = attrgetter("rank")
WHOLE_PROMPT = 1 << 40  # The token budget where prompts arrive computed
Order = Literal["arrival", "longest_match"]
ORDERS: dict[str, Callable[[Request], Any]] = {
    "priority": attrgetter("priority"),
    "shortest_prompt": attrgetter("num_input"),
    "deadline": lambda request: request.arrival + request.due,
}
"""Orders of a queue: an engine's own by priorities, and those that priorities set by clients can bring about."""


class Sequence(BlockAllocation):
    """A request inside the engine, with its KV blocks."""

    __slots__ = (
        "adapter", "joined", "last_step", "last_token", "not_before", "num_cached", "num_computed", "num_most",
        "num_preemptions", "num_produced", "num_promised", "num_tokens", "num_under_way", "place", "rank",
    )  # fmt: skip

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, path, request.num_input, num_groups)
        self.num_output = request.num_output
        self.num_most = request.most_output  # Output length at which the scheduler knows the end; it may end earlier
        self.num_tokens = request.num_input  # The prompt and all tokens sampled, or in flight, that are computed on
        self.num_computed = 0
        self.num_promised = 0  # Output tokens of completed and in-flight steps
        self.num_produced = 0  # Output tokens of completed steps
        self.num_cached = 0  # Prompt tokens found in the prefix cache at the last start
        self.num_preemptions = 0
        self.last_token = math.nan
        self.num_under_way = 0  # Tokens in in-flight steps, where the scheduler tracks them
        self.not_before = 0  # The first step that may compute its next token
        self.place = 0  # Position in start order
        self.joined = APART
        """In a decode batch, the step after which it joined; the counts above are as of the end of that step. Otherwise
        `APART`, or `ENDING` while its last token is in flight."""
        self.last_step = 0  # In a decode batch, the step that yields its last token
        self.adapter: int | None  # The requested LoRA adapter, if adapters are limited
        self.rank: tuple[Any, int]  # With priorities: (priority, arrival number). The smallest goes first.


class Plan:
    """One step: a token each for ``decodes`` sequences of the decode batch, plus individually scheduled sequences."""

    __slots__ = (
        "budget", "computed", "contexts", "decode_context", "decodes", "early", "ending", "fresh", "has_adapters",
        "held", "is_apart", "late", "left", "new_tokens", "num_cut", "num_preempted", "sampled", "sequences", "started",
        "thrown_away", "wasted",
    )  # fmt: skip

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget  # Tokens that may still be added
        self.decodes = 0
        self.decode_context = 0  # Total context of the decode batch ...
        self.contexts: Callable[[], list[int]] = list
        """... and each member's context, valid while this is the last planned step."""
        self.sequences: list[Sequence] = []  # Individually scheduled sequences, with new and computed tokens of each
        self.new_tokens: list[int] = []
        self.computed: list[int] = []
        self.started: list[Sequence] = []  # Admitted from the queue for this step
        self.sampled: list[Sequence] = []  # Individually scheduled sequences that sample a token at the end of the step
        self.ending: list[Sequence] = []  # Members of the decode batch that get their last token in this step
        self.early: SequenceOf[Sequence] = ()
        """If the step is repeated, members that got their last token in the second to last repetition."""
        self.late: SequenceOf[Sequence] = ()  # Members of the decode batch whose token in this step is one too many
        self.left: list[Sequence] = []  # Members of the decode batch in this step that have left it since
        self.num_preempted = 0
        self.held = 0  # KV blocks held by all sequences in this step
        self.is_apart = False  # True for a prefill-only step, in which decoding stalls
        self.fresh: SequenceOf[Sequence] = ()  # Members in their first decode step, after a token from a prefill step
        self.wasted = 0  # Decode batch tokens that are discarded: their sequences ended or were preempted meanwhile
        self.thrown_away: list[Sequence] = []  # Individually scheduled sequences whose token is discarded, as above
        self.has_adapters = False  # True if a sequence in the step uses a LoRA adapter
        self.num_cut = 0  # Chunked prompts with tokens left: their last row is computed and discarded

    @property
    def num_sampled(self) -> int:
        """Sequences a token is sampled for."""
        return self.decodes + len(self.sampled)

    def forget(self, sequence: Sequence, *, was_decoding: bool) -> None:
        """A preempted sequence gets no token from this step."""
        if sequence in self.sampled:
            self.sampled.remove(sequence)
        elif self.decodes and was_decoding:
            self.wasted += 1
            self.fresh = [each for each in self.fresh if each is not sequence]
            self.ending = [each for each in self.ending if each is not sequence]

    def take_back(self, sequence: Sequence) -> int:
        """Remove a sequence from the step; returns its tokens, which are back in the budget."""
        place = self.sequences.index(sequence)
        del self.sequences[place], self.computed[place]
        new_tokens = self.new_tokens.pop(place)
        self.budget += new_tokens
        return new_tokens

    @property
    def num_sequences(self) -> int:
        return self.decodes + len(self.sequences)

    @property
    def prefills(self) -> list[tuple[int, int]]:
        """(new, computed) tokens of the individually scheduled sequences."""
        return [*zip(self.new_tokens, self.computed, strict=True)]

    @property
    def shape(self) -> StepShape:
        return GroupShape(self.decodes, self.decode_context, self.contexts, self.prefills, len(self.sampled))


# Sequences that compute one token each in the same steps, with one step counter for all. What differs between two
# members is constant from step to step: the difference in length, the steps that need another block, the step with the
# last token. A step therefore costs the same for any batch size, and so do many steps in a row.

Member = TypeVar("Member", bound=Sequence)


class Blocks(Protocol):
    """The pool that members' blocks are allocated from."""

    num_blocks: int
    num_groups: int
    shape: KvShape

    @property
    def num_held(self) -> int: ...


class Group(Generic[Member]):
    """A decode batch; its members' own counts are frozen while they are in it."""

    def __init__(self, blocks: Blocks) -> None:
        self.members: dict[Member, None] = {}
        self.steps = 0  # Steps planned so far; members have been in each since they joined
        self.computed = 0  # Total context of all members
        self._pool = blocks
        shape, self._num_groups = blocks.shape, blocks.num_groups
        self._block_size, self.period = shape.block_size, shape.common_size
        """The smallest block size, and the period in tokens after which all layer groups begin a block together."""
        starts = [[offset % size == 0 for size in shape.sizes] for offset in range(0, self.period, self._block_size)]
        self._begun = [(number * self._block_size, sum(each)) for number, each in enumerate(starts)]
        """Within a period: token offsets at which layer groups begin a block, and how many groups do."""
        self._last_steps: list[tuple[int, int, Member]] = []
        self._num_joined = 0
        self.blocks = [0] * self.period  # By step number modulo the period: blocks that members begin in that step

    def contexts(self) -> list[int]:
        steps = self.steps
        return [member.num_computed + steps - member.joined for member in self.members]

    def steps_left(self) -> int:
        """Steps until the first member has all its tokens."""
        heap = self._last_steps
        while True:
            last, _, member = heap[0]
            if member.joined >= 0 and member.last_step == last:
                return last - self.steps
            heapq.heappop(heap)  # left earlier

    def _enter(self, member: Member) -> int:
        """Add a sequence that has caught up, from the next step on; returns the phase at which it begins blocks."""
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
        """Blocks needed in each of the steps after the next one."""
        if self.period == 1:
            return self.blocks * steps
        blocks, start = self.blocks, (self.steps + 2) % self.period
        if steps <= self.period - start:
            return blocks[start : start + steps]
        return (blocks[start:] + blocks * (1 + steps // self.period))[:steps]

    def steps_with_room(self, steps: int) -> int:
        """Number of steps after the next one for which there are blocks, assuming that sliding windows free none."""
        room = self._pool.num_blocks - self._pool.num_held
        if len(self.members) * self._num_groups * (1 + steps // self._block_size) <= room:
            return steps
        return bisect_right([*accumulate(self._blocks_needed(steps))], room)

    def _due(self) -> list[Member]:
        """Members that have all their tokens after the steps so far, in order of completion."""
        due: dict[Member, None] = {}
        heap = self._last_steps
        while heap and heap[0][0] <= self.steps:
            last, _, member = heapq.heappop(heap)
            if member.joined >= 0 and member.last_step == last:
                due[member] = None  # once, even if it left and rejoined with the same last step
        return [*due]


# Where prefill steps end, so that recurrent states can be reused. A state stands for all tokens before it, so only a
# state stored at a block boundary can serve another request. Prefill steps are cut there: after the last whole block,
# and where the prompt diverges from one whose tokens are cached but whose state is not. Some kernels also store a state
# before the end of a step, which then need not be cut.


class Prompt(NamedTuple):
    computed: int
    num_input: int
    known: int  # Known tokens of prompt and answer
    parts_at: int = 0  # Where it diverges from another cached prompt; 0: nowhere

    @property
    def end(self) -> int:
        """Where decoding begins, or its last known token is computed."""
        return max(self.num_input, self.known - 1)


def whole_blocks(prompt: Prompt, new_tokens: int, ends: Ends) -> int:
    """Cut a step to whole blocks, up to the prompt's last useful one; the rest goes into the next step."""
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
    """The same, but a block larger than the ``most`` tokens of a step, or the last token of a prompt, is split off."""
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


# Policy of engines whose steps mix prefill and decode (vLLM).


@dataclass(frozen=True, slots=True, kw_only=True)
class FcfsPolicy:
    """First come, first served, in steps that mix prefill and decode; the last started is preempted first."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int = 0  # Limit of one prompt's tokens per step; 0: none
    chunked_prefill: bool = True
    max_num_scheduled_tokens: int = 0  # Token budget of a step, if below ``max_num_batched_tokens``; 0: the same
    adaptive_threshold: bool = False  # The threshold is at least an equal share of the step for each request present
    prefill_interval: int = 1  # Decoding engines in lockstep compute prompts in every n-th pass, unless requests wait
    prompts_first: bool = False  # Prefill-only steps while a waiting prompt fits; decoding stalls meanwhile
    waits_for_tokens: bool = False  # A sequence is in one step at a time: its next token waits until the last is known
    decode_stride: int = 1  # A sequence samples again this many steps later, with others in between (pipelines)
    threshold_exempts_single_request: bool = False  # The threshold does not apply to a request alone in the engine
    frees_on_completion: bool = False
    """Blocks used by in-flight steps are freed only on completion. Sliding windows then advance by completed tokens,
    new requests need room for those in flight, and a preempted one is re-queued when its last step completes."""
    allow_partial_block: bool = False  # With block-aligned prefill: a block larger than any step's budget is split
    skipped_queue_separate: bool = False  # Skipped requests have a queue of their own, ahead of preempted ones
    last_token_own_step: bool = True
    """With block-aligned prefill steps: the last token of a prompt that ends with a block has its own step."""
    watermark: float = 0.0  # Share of all blocks kept free when a request is admitted while others run
    reserves_prompts: bool = True  # A request is admitted only if its whole prompt fits, not just the first chunk
    by_priority: bool = False
    """The smallest priority goes first, ties by arrival. A waiting request never displaces a running one; when a
    running one needs a block and none is free, the last of all running by priority is preempted, even if it is already
    in the step (``--scheduling-policy priority``)."""
    order: Callable[[Request], Any] | None = None  # What takes the place of a request's own priority
    steps_over: bool = False
    """Reproduces vLLM 0.25: the index into the running list is not moved back for a preempted request ahead of it that
    had nothing to compute, so the next request is not scheduled in this step."""
    goes_on: bool = False  # With priorities: requests after one that was preempted for its own blocks are scheduled
    counts_running: bool = False  # Adapters of all running requests take slots, not only those in the step
    skips_unreadable: bool = False  # Others overtake what waits for an image, or has too small a chunk to draft from
    own_interval: bool = False  # A lone engine, too, computes prompts every n-th step, counted from the last with some

    @property
    def repeats(self) -> bool:
        """True if runs of decode steps can be jumped over."""
        return not self.prompts_first

    def spare_tokens(self, block_size: int) -> int:
        """Tokens beyond its own that must fit before a request is admitted: none."""
        return 0

    @property
    def step_tokens(self) -> int:
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    def chunk(self, missing: int, budget: int, requests: int) -> int:
        threshold = self.long_prefill_token_threshold
        if threshold and not (self.threshold_exempts_single_request and requests == 1):
            if self.adaptive_threshold:
                threshold = max(threshold, self.max_num_batched_tokens // requests)
            return min(missing, budget, threshold)
        return missing if missing < budget else budget

    def first_chunk(self, missing: int, budget: int, requests: int) -> int:
        """The same for a prompt to be admitted; 0: it has to wait, without chunked prefill until all of it fits."""
        # The threshold comes first: a prompt it cuts small enough may start even without chunked prefill.
        if not self.chunked_prefill and self.chunk(missing, missing, requests) > budget:
            return 0
        return self.chunk(missing, budget, requests)

    def align(self, prompt: Prompt, new_tokens: int, ends: Ends, *, starts: bool) -> int:
        """Shorten a chunk to end where a recurrent state can be reused, or a cached prompt diverges; 0: none now."""
        if self.max_num_batched_tokens == WHOLE_PROMPT:  # the state arrives with the prompt
            return new_tokens
        if self.allow_partial_block:
            most = min(self.long_prefill_token_threshold or self.step_tokens, self.step_tokens)
            return opened_blocks(prompt, new_tokens, ends, most, last_token_own_step=self.last_token_own_step)
        return whole_blocks(prompt if starts else prompt._replace(parts_at=0), new_tokens, ends)

    def reserved_tokens(self, sequence: Sequence, num_tokens: int) -> int:
        """Tokens that must fit on admission: the whole prompt, or just what the step computes."""
        return num_tokens if self.reserves_prompts else 0

    def kept_free(self, num_blocks: int) -> int:
        """Blocks to leave free when admitting while others run; vLLM's count includes its null block."""
        return int(self.watermark * (num_blocks + 1))

    def for_decode_pool(self) -> FcfsPolicy:
        """The same policy for a pool that gets prompts computed: no step is bounded by prompt tokens."""
        bounded = replace(self, max_num_scheduled_tokens=0, prefill_interval=1, long_prefill_token_threshold=0)
        return replace(bounded, max_num_batched_tokens=WHOLE_PROMPT)

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        return max(running, key=RANK) if self.by_priority else next(iter(running))


# Policy of an engine with separate prefill and decode steps: their limits, and tokens reserved on admission. As in
# SGLang, prefill steps go first as long as one can be formed, and decoding stalls meanwhile. A request is admitted only
# if there is room for its prompt and for a share of the outputs declared by all running requests; the share decays with
# every decode step, and is reset when the cache overflows after all.


class PrefillRules(NamedTuple):
    """What changed from release to release; the defaults are the oldest rules (SGLang 0.5.16)."""

    evicts_missing: bool = False  # Eviction frees what is missing, not as much as was asked for
    parts_answers: bool = False  # Answers are nodes of their own in the radix tree, so they are evicted before prompts
    spares_page: bool = False  # Admission by the end times of others leaves a page free for the prompt
    skips_ending: bool = False
    """A sequence whose in-flight token is its last allowed one is not in the next decode step. If decoding lacks room
    while there is such a sequence, it waits for its end; in a mixed step it waits for the next step."""
    reserves_fixed: bool = False  # All remaining output of running requests that ignore EOS is reserved, not a share
    refreshes_waiting: bool = False
    """Every 32nd time that prompts are tried, cached prefixes of waiting requests count as accessed."""
    retries_alone: bool = False  # A prompt that does not fit beside none is tried again in the next step
    clears_ended: bool = False  # Finished sequences leave before prompts are tried, and an empty batch is never full
    counts_rows: bool = False  # A chunked prompt does not count twice towards the running requests
    sorts_drafts: bool = False
    """With drafts, too, the sequence with the fewest output tokens is retracted first, not the last of the batch."""
    keeps_answers: bool = False  # Accepted drafts beyond the end of an answer are not cached
    stops_when_spent: bool = False  # No prompt is tried once a step's tokens are spent
    copies_paths: bool = False
    """A node is copied to the host with all above it that are not there yet, and the host evicts what is missing."""
    counts_once: bool = False  # Copies to the host count a request once for each node, from its first chunk on


OLDEST_RULES = PrefillRules()


class Priorities(NamedTuple):
    """Requests with priorities: the next one goes first by the number times ``sign``, ties by when it was queued."""

    sign: int = -1  # -1: the largest number goes first
    preempts: bool = True  # When all is in use, running requests give way to one of a priority better by the threshold
    threshold: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFirstPolicy:
    """Prefill first, with at most one chunked prompt; the sequence with the fewest output tokens is retracted first."""

    max_running_requests: int
    chunked_prefill_size: int | None = 8192  # Prompt tokens in a step, to which the last prompt is cut; None: no chunks
    max_prefill_tokens: int = 16384  # Prompt tokens in a step beyond which no further prompt is added
    mixed_chunk: bool = False  # True if prefill steps include the decode batch, which then counts towards both limits
    order: Order = "arrival"
    first_ratio: float = 0.7  # Initial share of the running requests' remaining output for which there must be room ...
    least_ratio: float = 0.098  # ... its minimum ...
    ratio_decay: float = (0.7 - 0.098) / 600  # ... and its decay per decode step.
    max_reserved_output: int = 4096  # Limit of one request's reserved output tokens
    max_prompts: int | None = None  # Prompts per step at most
    retraction_headroom: int = 20  # Tokens per remaining sequence that must be free after a retraction
    tries_always: bool = False
    """Prompts that did not fit are retried in every step, not only after a request has ended (sliding window pool)."""
    ignores_end: bool = False  # The engine knows that requests produce all they declare (``ignore_eos``)
    rules: PrefillRules = OLDEST_RULES
    priorities: Priorities | None = None  # None: priorities do not count
    chunked_prefill: ClassVar[bool] = True  # Any prompt can be computed: in chunks or, alone, as a whole
    repeats: ClassVar[bool] = True  # Decode steps are taken in runs
    frees_on_completion: ClassVar[bool] = False  # Blocks of in-flight steps are freed with their results

    @property
    def max_num_batched_tokens(self) -> int:
        return self.chunked_prefill_size or self.max_prefill_tokens

    @property
    def max_num_seqs(self) -> int:
        return self.max_running_requests

    def spare_tokens(self, block_size: int) -> int:
        """A partly filled page, one that may be needed, and a token."""
        return 2 * block_size + 1

    def for_decode_pool(self) -> PrefillFirstPolicy:
        """Whole prompts are admitted at once."""
        return replace(self, chunked_prefill_size=None, max_prefill_tokens=WHOLE_PROMPT)


Policy = FcfsPolicy | PrefillFirstPolicy


class AdapterLimit:
    """Distinct LoRA adapters of the step being planned: requests beyond the engine's slots are skipped. A waiting
    request stays queued if the adapters of running requests, and of those admitted before it in this step, fill all
    slots and its own is not among them. In SGLang requests without an adapter take a slot, too.
    """

    def __init__(self, max_adapters: int, *, counts_base: bool = False) -> None:
        self._max_adapters = max_adapters
        self._free: set[int | None] = set() if counts_base else {None}
        self._in_step: set[int | None] = set()

    def begin(self, planned: Iterable[Sequence]) -> None:
        self._in_step = {each.adapter for each in planned} - self._free

    def has_slot(self, sequence: Sequence) -> bool:
        adapter, taken = sequence.adapter, self._in_step
        return adapter in self._free or adapter in taken or len(taken) < self._max_adapters

    def first(self, waiting: deque[Sequence], position: int) -> int:
        """The first place from there on with a request that has a slot; their number if none has."""
        if len(self._in_step) < self._max_adapters:
            return position
        able = self._in_step | self._free
        later = enumerate(islice(waiting, position, None), position)
        return next((place for place, each in later if each.adapter in able), len(waiting))

    def add(self, sequence: Sequence) -> None:
        self._in_step |= {sequence.adapter} - self._free


class PrefillInterval:
    """Prompts are computed in every n-th step only, while sequences decode and no request was left over."""

    def __init__(self, policy: FcfsPolicy) -> None:
        self._interval, self._own_interval = policy.prefill_interval, policy.own_interval
        self.pass_number: Callable[[], int] | None = None
        """Of engines in lockstep: the number of the pass that is planned, counted from 1."""
        self.in_prompt: set[Sequence] = set()  # Sequences whose last step left some of their known tokens uncomputed
        self.defers = self._has_prompts = False  # True if the step being planned leaves prompts to others, or has some
        self._since_prompts, self._num_left = NEVER, 0
        """Steps since one had prompts, and requests that were left over by the last one that could have some."""

    def begin(self, num_running: int) -> None:
        self._has_prompts = False
        if self.pass_number is not None:
            is_due = (self.pass_number() - 1) % self._interval == 0
        else:
            is_due = not self._own_interval or self._since_prompts + 1 >= self._interval
        self.defers = not (is_due or self._num_left) and len(self.in_prompt) < num_running

    def schedule(self, sequence: Sequence, computed: int, samples: bool) -> None:
        """A sequence is in the step, after its ``computed`` tokens."""
        known = sequence.num_input + sequence.num_produced
        self._has_prompts |= sequence in self.in_prompt or computed < known - 1
        (self.in_prompt.discard if samples else self.in_prompt.add)(sequence)

    def close(self, plan: Plan, num_left: int) -> None:
        """A step is planned, and leaves requests over."""
        if not (self.defers or plan.num_preempted):
            self._num_left = max(0, num_left)
        if plan.decodes or plan.sequences:
            self._since_prompts = 0 if self._has_prompts else self._since_prompts + 1
