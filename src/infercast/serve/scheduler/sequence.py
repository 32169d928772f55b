"""A request inside the engine, and the step that a scheduler plans for some of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from infercast.serve.cache.holding import Holding
from infercast.serve.cache.paths import Path
from infercast.serve.step import GroupShape, StepShape
from infercast.serve.workload.request import Request

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
        "computed", "contexts", "decode_context", "decodes", "early", "ending", "fresh", "has_adapters", "held",
        "is_apart", "left", "new_tokens", "num_cut", "num_preempted", "sampled", "sequences", "started",
        "thrown_away", "wasted", "yielded",
    )  # fmt: skip

    def __init__(self) -> None:
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
