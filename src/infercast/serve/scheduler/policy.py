"""Scheduling rules of an engine: queue order, mixed or prefill-first steps, reserved tokens, preemption."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import Ends
from infercast.serve.scheduler.base import Sequence

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


def opened_blocks(prompt: Prompt, new_tokens: int, ends: Ends, most: int, *, last_apart: bool = True) -> int:
    """The same where a block larger than the ``most`` tokens of a step is computed in several, and, with
    ``last_apart``, the last token of a prompt is in a step after its last block.
    """
    if prompt.computed >= prompt.end:
        return new_tokens
    size, start, end = ends.size, prompt.computed, prompt.computed + new_tokens
    if end < prompt.end:
        aligned = end // size * size
        end = aligned if aligned > start or size <= most else end
    stops = []
    if start + new_tokens < prompt.end or not ends.is_left(start, start + new_tokens, ends.last(prompt.end)):
        stops.append(ends.last(prompt.known) if last_apart else (prompt.known // size - ends.drops) * size)
    if start % size:
        stops.append((start // size + 1) * size)
    if start < prompt.parts_at < end:
        stops.append(start + (prompt.parts_at - start) // size * size)
    end = min([stop for stop in stops if start < stop < end], default=end)
    return max(end - start, 0)


# A scheduler keeps the books; whatever one engine decides differently from another is asked here.


RANK = attrgetter("rank")
WHOLE_PROMPT = 1 << 40
"""Tokens that an engine may take in at once where it does not compute them."""


class Policy(Protocol):
    """What is asked of any engine's rules; who plans steps by them asks more."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of a step, those of decoding aside where prompts are computed apart from it."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at the same time."""

    @property
    def chunked_prefill(self) -> bool:
        """Whether a prompt may be computed that is longer than a step."""

    @property
    def repeats(self) -> bool:
        """Whether stretches of decoding can be jumped over."""

    @property
    def settles(self) -> bool:
        """What steps under way still use is not given up: windows move on by processed tokens, which a request that
        starts has to have room for, and who gave way comes back when its last step is done.
        """

    def spare_tokens(self, block_size: int) -> int:
        """Tokens beyond its own for which there must be room before a request can start."""

    def of_computed_prompts(self) -> Policy:
        """The same rules where prompts arrive computed, so that no step is bounded by their tokens."""


class MixingPolicy(Policy, Protocol):
    """What a scheduler asks whose steps mix prompts and decoding."""

    @property
    def prompts_first(self) -> bool:
        """Steps of prompts alone as long as one waits that fits; decoding stands still meanwhile."""

    @property
    def waits_for_tokens(self) -> bool:
        """A sequence is in one step at a time: its next token is planned when the last one is known."""

    @property
    def steps_between_tokens(self) -> int:
        """A sequence that samples in a step samples again so many steps later, others in between (pipelines)."""

    @property
    def decode_tokens(self) -> tuple[int, int]:
        """Tokens that a decoding sequence computes in a step, and how many it yields: as many, but for drafts."""

    @property
    def by_priority(self) -> bool:
        """Waiting requests are in order of priority, and the least important of those that run is preempted."""

    @property
    def steps_over(self) -> bool:
        """By priority: the sequence after a victim that came before it and had nothing to compute loses its turn."""

    @property
    def passed_apart(self) -> bool:
        """Skipped requests are in a queue of their own, before preempted ones."""

    def chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """Tokens of a running prompt that a step computes; ``alone``: no other request is in the engine."""

    def first_chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """The same for one that starts; 0: it has to wait."""

    def align(self, prompt: Prompt, new_tokens: int, ends: Ends, *, starts: bool) -> int:
        """As many of these tokens as end where the state of recurrent layers can be found again; 0: none now."""

    def promised_tokens(self, sequence: Sequence, num_tokens: int) -> int:
        """Tokens for which there must be room when a sequence starts with ``num_tokens`` to compute."""

    def kept_free(self, num_blocks: int) -> int:
        """Of so many blocks, those that a sequence which starts beside others has to leave free."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """Who gives way; ``running`` tells who started last first."""

    def give_up(self, cache: KvCache, victim: Sequence) -> None:
        """What happens to the blocks of one who gives way."""


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Sequences are served in order of arrival, prompts beside decodes; the last one gives way and computes again."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int = 0
    """At most this many tokens of one prompt a step; 0: no such limit."""
    chunked_prefill: bool = True
    prompts_first: bool = False
    waits_for_tokens: bool = False
    steps_between_tokens: int = 1
    spares_lone_prompts: bool = False
    """The threshold does not hold for a request that is alone in the engine."""
    settles: bool = False
    decode_tokens: tuple[int, int] = (1, 1)
    opens_blocks: bool = False
    """Where steps of prompts end with blocks: one that no step has room for is computed in several."""
    passed_apart: bool = False
    """Who was passed in the queue stands before those who give way, in a queue of its own."""
    last_apart: bool = True
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
        """Decoding goes on from step to step, unless prompts go before it."""
        return not self.prompts_first

    def spare_tokens(self, block_size: int) -> int:
        """None."""
        return 0

    def chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """As much as there is, fits the budget and the threshold allows."""
        threshold = self.long_prefill_token_threshold
        if threshold and not (self.spares_lone_prompts and alone):
            return min(missing, budget, threshold)
        return missing if missing < budget else budget

    def first_chunk(self, missing: int, budget: int, *, alone: bool) -> int:
        """Without chunked prefill a prompt starts only if all of it fits."""
        # The threshold comes first: a prompt that it cuts small enough may start even without chunked prefill.
        if not self.chunked_prefill and self.chunk(missing, missing, alone=alone) > budget:
            return 0
        return self.chunk(missing, budget, alone=alone)

    def align(self, prompt: Prompt, new_tokens: int, ends: Ends, *, starts: bool) -> int:
        """By one of two rules; the first one looks for where prompts part when one ``starts``, and no more after."""
        if self.max_num_batched_tokens == WHOLE_PROMPT:  # it arrives with its state
            return new_tokens
        if self.opens_blocks:
            threshold = self.long_prefill_token_threshold or self.max_num_batched_tokens
            most = min(threshold, self.max_num_batched_tokens)
            return opened_blocks(prompt, new_tokens, ends, most, last_apart=self.last_apart)
        return whole_blocks(prompt if starts else prompt._replace(parts_at=0), new_tokens, ends)

    def promised_tokens(self, sequence: Sequence, num_tokens: int) -> int:
        """The prompt and what was produced before, or just what a step computes; nothing for tokens to come."""
        return num_tokens if self.reserves_prompts else 0

    def kept_free(self, num_blocks: int) -> int:
        """A share of them, with the one block that vLLM keeps for itself."""
        return int(self.watermark * (num_blocks + 1))

    def of_computed_prompts(self) -> FirstCome:
        """Whole prompts are taken in at once."""
        return replace(self, max_num_batched_tokens=WHOLE_PROMPT, long_prefill_token_threshold=0)

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The one that started last, or the last by priority."""
        return max(running, key=RANK) if self.by_priority else next(iter(running))

    def give_up(self, cache: KvCache, victim: Sequence) -> None:
        """They are freed; what nobody overwrites can be found again."""
        cache.free(victim, done=False)


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
"""Who is looked at first of those who wait."""


@dataclass(frozen=True, slots=True)
class PrefillFirst:
    """Prompts first, one of them at most in parts; who has produced least gives way, to the end of the queue."""

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
    longest_promise: int = 4096
    """Tokens of one answer that are counted at most."""
    max_prompts: int | None = None
    """Prompts of a step at most."""
    retraction_headroom: int = 20
    """Tokens of each sequence that stays for which there is room after a retraction."""
    tries_always: bool = False
    """Prompts that did not fit are tried again in every step, not only when somebody has left (a pool of windows)."""
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

    def of_computed_prompts(self) -> PrefillFirst:
        """Whole prompts are taken in at once."""
        return replace(self, chunked_prefill_size=None, max_prefill_tokens=WHOLE_PROMPT)
