"""A sequence with drafts, and the step that a scheduler plans for some of them."""

from __future__ import annotations

from infercast.serve.cache.paths import Path
from infercast.serve.scheduler.sequence import Plan, Sequence
from infercast.serve.step import DraftShape
from infercast.serve.workload.request import Request


class DraftSequence(Sequence):
    """A request inside an engine that drafts; ``num_tokens`` are those that are known."""

    __slots__ = ("accepted", "drafted", "in_prompt", "is_padded", "num_awaited", "num_drafts", "num_last")

    def __init__(self, index: int, request: Request, path: Path = (), num_groups: int = 1) -> None:
        super().__init__(index, request, path, num_groups)
        self.num_drafts = 0
        """Drafts that it has for its next step."""
        self.num_awaited = 0
        """Tokens that steps under way yield if all their drafts are right."""
        self.num_last = request.num_input + request.num_output
        """Tokens that it has when it is done."""
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

    __slots__ = ("num_drafting", "num_drafts", "num_next", "num_verifying", "received", "verified", "width")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.verified: list[int] = []
        """Drafts of each sequence."""
        self.num_drafts = 0
        """All drafts of the step."""
        self.num_verifying = 0
        """Sequences that compute no part of a prompt: a token, and its drafts."""
        self.num_drafting = self.num_next = 0
        """Sequences for which drafts are made at its end, and how many for each."""
        self.width = width
        """Tokens of a sequence with all the drafts there may be."""
        self.received: list[Sequence] = []
        """Those that got tokens, once its result is taken in."""

    @property
    def num_yielded(self) -> int:
        """Sequences that got tokens."""
        return len(self.received)

    @property
    def has_prompts(self) -> bool:
        """Whether any part of a prompt is computed."""
        return self.num_verifying < len(self.sequences)

    @property
    def num_rows(self) -> int:
        """Rows that the head computes: every draft, and the token after it."""
        return self.num_drafts + len(self.sampled)

    @property
    def shape(self) -> DraftShape:
        """What a step timer needs to know; those that verify first, then prompts."""
        new_tokens, computed = self.new_tokens, self.computed
        if self.has_prompts and self.num_verifying:
            rows = zip(new_tokens, computed, self.verified, strict=True)
            ordered = sorted(rows, key=lambda row: row[0] > 1 + row[2])
            new_tokens, computed = [row[0] for row in ordered], [row[1] for row in ordered]
        return DraftShape(
            new_tokens, computed, self.num_rows, self.num_verifying, self.num_drafts, self.width, self.num_drafting,
            self.num_next,
        )  # fmt: skip
