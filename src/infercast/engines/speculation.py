"""Speculative decoding as an engine does it: how it drafts, how many, and how many of them are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infercast.engines.acceptance import Acceptance
    from infercast.models.draft import Draft

NGRAM, NGRAM_GPU = "ngram", "ngram_gpu"
EAGLE, EAGLE_3, MTP, DRAFT_MODEL = "eagle", "eagle3", "mtp", "draft_model"
BY_HEADS = (EAGLE, EAGLE_3, MTP)
"""Methods whose drafts come from the target's hidden states."""
TITLES = {
    NGRAM: "n-gram lookup",
    NGRAM_GPU: "n-gram lookup on the GPU",
    EAGLE: "EAGLE",
    EAGLE_3: "EAGLE-3",
    MTP: "multi-token prediction",
    DRAFT_MODEL: "a draft model",
}


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafts, and what becomes of it."""

    method: str
    num_drafts: int
    """Drafts of a sequence and step; the most where it goes by the size of the batch."""
    acceptance: Acceptance
    draft: Draft | None = None
    """What computes them; None where they are looked up."""
    tensor: int = 1
    """GPUs that share each layer that drafts."""
    match: float = 1.0
    """Share of the steps of a sequence in which a lookup finds anything."""
    by_batch: tuple[tuple[int, int], ...] = ()
    """(sequences, drafts): from so many in a step on, so many drafts; nothing: always as many."""
    v2_runner: bool = True
    """Whether vLLM's second model runner launches it: whole passes of drafts as one graph each."""
    asynchronous: bool = True
    """Whether a step is planned before the result of the last is known."""
    lookahead: int = 0
    """Slots in the cache that a sequence takes beyond its tokens, for drafts of the next step."""
    drops_block: bool = False
    """Whether the last block of a prefix that is found is computed again."""
    read_ahead: int = 0
    """Tokens of a prompt that it reads beyond those that a step computes, where a step leaves them for it."""
    slots_taken: int = 0
    """Tokens that each sequence takes off the budget of a step."""
    note: str = ""
    """What was taken for granted of the draft."""

    @property
    def width(self) -> int:
        """Tokens of a sequence that verifies drafts."""
        return 1 + self.num_drafts

    @property
    def passes(self) -> int:
        """How often something is computed for the drafts of a step."""
        return self.num_drafts if self.draft is not None else 0

    @property
    def title(self) -> str:
        """In words."""
        return TITLES[self.method]

    def capped(self, max_num_seqs: int) -> int:
        """Sequences that verify in the largest step."""
        return max_num_seqs * self.width
