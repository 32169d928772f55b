"""Speculative decoding: drafts per step, acceptance, and the KV slots it needs.

A decoding sequence computes its next token and the drafts after it in one step, which yields the accepted drafts and
one token of the model itself. Acceptance is drawn for every output position from the request's own random stream, so it
does not depend on timing or on the rest of the batch.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.lazy_classes import dataclass, field

MOST_DRAFTS = 255
ACCEPTED, MATCHED = 1, 2  # Random streams of a sequence
DRAWN, TURNS = 31, (0.0, -0.67, 0.67, -1.15, 1.15, -0.32, 0.32, -1.5, 1.5, -0.16, 0.16, -0.9, 0.9, -0.49, 0.49)
"""Draws for each of the first answers, and the luck assigned to each, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Speculation:
    num_drafts: int  # Drafts per step, K
    acceptance: tuple[float, ...]  # For i = 1 to K, the probability that at least i drafts of a step are accepted
    num_verified: int = 0  # Tokens verified per step, if not 1 + K: a tree of drafts has several for each position
    match: float = 1.0  # The probability that there are drafts at all (prompt lookup)
    lookahead: int = 0  # KV slots of a sequence beyond the tokens of a step
    drops_block: bool = False  # The last block of a cached prefix is recomputed: the drafter needs its hidden states
    hash_ahead: int = 0  # Tokens after a block that belong to its key, for the same reason; no block is then dropped
    names_results: bool = False  # Blocks are cached with a step's result, even if the next one is planned after it
    slots_taken: int = 0  # Token budget reserved for the drafter, for each of max_num_seqs sequences ...
    slots_by_step: bool = False  # ... or for each sequence in the step.
    pads_new: bool = False
    """A request that starts with one token next to decoding ones gets padding drafts, so that the batch stays uniform;
    if the budget or max_model_len has no room for them, it waits."""
    pads_first: bool = False  # Also for a step's first sequence if any of it is cached, and max_model_len has room
    read_ahead: int = 0
    """Prompt tokens the drafter reads beyond a step: no chunk ends closer than that to the end of the prompt, and KV of
    the last ones, except the first of them, is not final (several prediction heads)."""
    by_batch: tuple[tuple[int, int], ...] = ()
    """(sequences, drafts): from this batch size on, this many drafts for the next step; empty: always K."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_drafts <= MOST_DRAFTS:
            raise InputError(f"num_speculative_tokens is {self.num_drafts}; it must be from 1 to {MOST_DRAFTS}")
        rates = self.acceptance
        if len(rates) != self.num_drafts:
            raise InputError(
                f"there are {len(rates)} acceptance rates for num_speculative_tokens {self.num_drafts}; "
                "give one for each position"
            )
        if not all(1.0 >= before >= after >= 0.0 for before, after in pairwise((1.0, *rates, 0.0))):
            raise InputError(f"acceptance rates {list(rates)} must be between 0 and 1, none above the one before it")
        if not 0.0 <= self.match <= 1.0:
            raise InputError(f"the share of steps with a match is {self.match}; it must be between 0 and 1")
        if self.by_batch and (
            self.by_batch[0][0] != 1
            or any(one[0] >= other[0] for one, other in pairwise(self.by_batch))
            or not all(0 <= drafts <= self.num_drafts for _, drafts in self.by_batch)
        ):
            raise InputError(
                f"drafts by the number of sequences are {list(self.by_batch)}; they must begin with 1 sequence, "
                f"rise in sequences and have from 0 to {self.num_drafts} drafts"
            )

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step with all drafts, including the model's own."""
        return 1.0 + sum(self.acceptance)

    @property
    def width(self) -> int:
        """Tokens of a sequence with all its drafts."""
        return self.num_verified or 1 + self.num_drafts

    @property
    def spare_tokens(self) -> int:
        """Slots a sequence may hold beyond its tokens: the last step's drafts, and lookahead."""
        return self.num_drafts + self.lookahead

    def budget(self, max_num_batched_tokens: int, max_num_seqs: int) -> int:
        """Tokens per step left for the target model."""
        left = max_num_batched_tokens - self.slots_taken * (1 if self.slots_by_step else max_num_seqs)
        if left < 1:
            raise InputError(
                f"max_num_batched_tokens {max_num_batched_tokens} leaves nothing to compute where drafts take "
                f"{self.slots_taken} of it for each of max_num_seqs {max_num_seqs}; raise it or lower max_num_seqs"
            )
        return left

    def drafts_for(self, num_sequences: int) -> int:
        """Drafts for the step after one with this many sequences."""
        drafts = self.num_drafts
        for least, each in self.by_batch:
            if num_sequences < least:
                break
            drafts = each
        return drafts


class Draws:
    """Accepted and proposed drafts at each output position. Acceptance is random. With few requests that would decide
    the result, so the luck of the first ones is spread evenly: of several draws each takes the one nearest to its
    quantile, the first the average.
    """

    def __init__(self, speculation: Speculation) -> None:
        self._speculation = speculation
        self._rising = np.array(speculation.acceptance[::-1])

    def accepted(self, index: int, count: int) -> bytes:
        """For each output token of a request, the number of accepted drafts after it, of K."""
        draws = DRAWN if index < len(TURNS) else 1
        uniform = self._uniform(index, ACCEPTED, draws * count)
        right = (self._rising.size - np.searchsorted(self._rising, uniform, side="right")).astype(np.uint8).tobytes()
        if draws == 1:
            return right
        wanted = self._steps_of(count, TURNS[index])
        drawn = [right[place * count : (place + 1) * count] for place in range(DRAWN)]
        return min(drawn, key=lambda accepted: abs(_num_steps(accepted) - wanted))

    def _steps_of(self, count: int, luck: float) -> float:
        """Steps of an answer of ``count`` tokens that is ``luck`` standard deviations luckier than average."""
        rates = self._speculation.acceptance
        mean = self._speculation.acceptance_length
        square = 1.0 + sum((2 * position + 3) * rate for position, rate in enumerate(rates))
        beyond = square / (2.0 * mean) - 0.5  # tokens the last step yields in excess
        spread = sqrt(max(count * (square - mean * mean), 0.0) / mean**3)
        return (count - 1 + beyond) / mean - luck * spread

    def drafted(self, index: int, count: int) -> bytes:
        """For each output token of a request, the number of drafts proposed after it."""
        found = self._uniform(index, MATCHED, count) < self._speculation.match
        return np.where(found, self._speculation.num_drafts, 0).astype(np.uint8).tobytes()

    def _uniform(self, index: int, stream: int, count: int) -> npt.NDArray[Any]:
        bits = np.random.Philox(key=self._speculation.seed, counter=(0, stream, index, 0))
        return np.random.Generator(bits).random(count)


def _num_steps(accepted: bytes) -> int:
    """Steps an answer takes with these acceptances."""
    produced, steps, last = 1, 0, len(accepted)
    while produced < last:
        produced += 1 + accepted[produced]
        steps += 1
    return steps


@dataclass(slots=True)
class DraftCounts:
    """Draft statistics of a run, counted as in vLLM (``vllm:spec_decode_*``)."""

    num_draft_tokens: int = 0  # Verified drafts; those of a surplus step after a request's last token do not count
    by_accepted: list[int] = field(default_factory=list)  # For 0 to K: (sequence, step) pairs with so many accepted

    @property
    def num_drafts(self) -> int:
        return sum(self.by_accepted)

    @property
    def accepted_by_position(self) -> list[int]:
        return [sum(self.by_accepted[position:]) for position in range(1, len(self.by_accepted))]

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per (sequence, step) with drafts, including the model's own."""
        return 1.0 + self.num_accepted / self.num_drafts if self.num_drafts else 1.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def rates_by_position(self) -> list[float]:
        """The share of (sequence, step) pairs with drafts in which each position was accepted."""
        return [count / self.num_drafts if self.num_drafts else 0.0 for count in self.accepted_by_position]

    def add(self, other: DraftCounts) -> None:
        self.num_draft_tokens += other.num_draft_tokens
        counts, others = self.by_accepted, other.by_accepted
        longest = max(len(counts), len(others))
        padded = [each + [0] * (longest - len(each)) for each in (counts, others)]
        self.by_accepted = [one + another for one, another in zip(*padded, strict=True)]
