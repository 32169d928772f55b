"""The rules of an engine whose steps are prompts or decoding: what bounds them, and how many tokens a start promises.

SGLang schedules so. Steps of prompts go first as long as one can be formed, and decoding stands still meanwhile. A
request starts only if there is room for its prompt and for a share of the answers that all who run have declared; the
share becomes smaller with every step of decoding, and is set anew when the cache overflows after all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from infercast.serve.scheduler.policy import WHOLE_PROMPT

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
