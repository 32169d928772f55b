"""The rules of an engine: who goes first, what is computed together, what a start is promised, and who gives way.

A scheduler keeps the books; whatever one engine decides differently from another is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import Ends
from infercast.serve.scheduler.alignment import Prompt, opened_blocks, whole_blocks
from infercast.serve.scheduler.sequence import Sequence

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
        """Whoever started last."""
        return next(iter(running))

    def give_up(self, cache: KvCache, victim: Sequence) -> None:
        """They are freed; what nobody overwrites can be found again."""
        cache.free(victim, done=False)
