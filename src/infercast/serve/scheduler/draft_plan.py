"""A sequence with drafts, and the step that a scheduler plans for some of them."""

from __future__ import annotations

from infercast.serve.cache.paths import Path
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.step import DraftShape
from infercast.serve.workload.request import Request


class DraftSequence(Sequence):
    """A request inside an engine that drafts.

    ``num_tokens`` are those that are known, ``num_computed`` those that will be if all drafts under way are right. One
    that decodes has computed all but its last known token when nothing of it is under way; so whatever is computed
    beyond that says how many tokens it waits for.
    """

    __slots__ = ("accepted", "drafted", "full_at", "in_prompt", "is_padded", "num_drafts", "num_last", "room")

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, request, path, num_groups)
        self.num_drafts = 0
        """Drafts that it has for its next step."""
        self.num_last = request.num_input + request.num_output
        """Tokens that it has when it is done."""
        self.room = 0
        """Tokens that it has slots for, those looked ahead among them."""
        self.full_at = 0
        """Known tokens at which the next of its blocks can be found."""
        self.in_prompt = False
        """Whether the step planned last left some of its known tokens."""
        self.is_padded = False
        """Whether its drafts under way are dummies."""
        self.accepted = b""
        """By the number of tokens produced: how many drafts are right ..."""
        self.drafted = b""
        """... and, where that differs, how many there are."""


class DraftPlan(Plan):
    """What one step computes; every sequence is named."""

    __slots__ = ("num_next", "num_prompts", "num_unsampled", "received", "verified", "width")

    sequences: list[DraftSequence]  # type: ignore[assignment]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.verified: list[int] = []
        """Drafts of each sequence; -1: it is in the middle of its prompt, and not sampled for."""
        self.num_prompts = 0
        """Sequences of which more is computed than a token and its drafts ..."""
        self.num_unsampled = 0
        """... and those that are not sampled for."""
        self.num_next = 0
        """Drafts that are made for each of the others at its end."""
        self.width = width
        """Tokens of a sequence with all the drafts there may be."""
        self.received: list[Sequence] = []
        """Those that got tokens, once its result is taken in."""

    @property
    def num_sampled(self) -> int:
        """Sequences that are sampled for."""
        return len(self.sequences) - self.num_unsampled

    @property
    def num_yielded(self) -> int:
        """Sequences that got tokens."""
        return len(self.received)

    @property
    def shape(self) -> DraftShape:
        """What a step timer needs to know; those that verify first, then prompts."""
        new_tokens, computed, verified = self.new_tokens, self.computed, self.verified
        count, num_prompts, num_sampled = len(new_tokens), self.num_prompts, self.num_sampled
        if 0 < num_prompts < count:
            ordered = sorted(zip(new_tokens, computed, verified, strict=True), key=lambda row: row[0] > 1 + row[2])
            new_tokens, computed = [row[0] for row in ordered], [row[1] for row in ordered]
        num_drafts = sum(verified) + self.num_unsampled
        shape = DraftShape(
            new_tokens, computed, num_drafts + num_sampled, count - num_prompts, num_drafts, self.width, num_sampled,
            self.num_next,
        )  # fmt: skip
        # What is asked in every step, told at once.
        shape.num_sequences, shape.total_computed = count, sum(computed)
        shape.num_tokens = sum(new_tokens) if num_prompts else num_drafts + count
        if not num_prompts:
            shape.prompts, shape.is_decode = [], num_drafts == count * (self.width - 1)
        return shape
