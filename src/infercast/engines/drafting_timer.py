"""The time of a step with speculative decoding: verifying drafts, then drafting the next ones.

Sequences that verify drafts compute several tokens each. Their products are those of as many tokens, their attention
reads each sequence's keys once for all of them, and the head computes a row for every draft. What drafts then makes a
first pass over all tokens of the step, and a pass over one token a sequence for each further draft.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from infercast.engines.kernel_tables import Table, thinned, together
from infercast.engines.surface import DecodeSurface, PromptSurface
from infercast.engines.timer import DRAFT_GAPS, KernelTimer
from infercast.models.lower import verify_calls
from infercast.ops import Call
from infercast.ops.elementwise import rejection
from infercast.ops.op import Size
from infercast.serve.step import Contexts, DraftShape, HostCost, Prompts, StepEstimate, StepShape

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment


class DraftingTimer(KernelTimer):
    """A timer of steps that verify and draft; beside the tables of steps there is one of drafts.

    A row of it holds the passes of so many drafts for so many sequences, but for what depends on the tokens of the
    step or on the lengths of sequences.
    """

    def __init__(self, deployment: Deployment) -> None:
        drafting, layout, settings = deployment.drafting, deployment.layout, deployment.settings
        assert drafting is not None
        assert deployment.engine.draft_passes is not None
        self._drafting, self._draft = drafting, drafting.draft
        self._draft_layout = replace(layout, tensor=drafting.tensor, data=1) if drafting.tensor == 1 else layout
        self._passes = deployment.engine.draft_passes(deployment)
        self.rows_a_sequence, self._most_tokens = drafting.width, settings.max_num_batched_tokens
        self._most_sequences, self._longest = settings.max_num_seqs, settings.max_model_len
        super().__init__(deployment)
        by_sequence = len(self._attention_names)
        names, self._draft_table = self._table_of_drafts()
        self.kernels = (*self.kernels[: len(self.kernels) - by_sequence], *names, *self.kernels[-by_sequence:])
        self._draft_seconds: list[float] = self._draft_table.sum(axis=1).tolist()
        longest = self._longest
        self._surfaces = (
            DecodeSurface(self._time_sequences, self._most_sequences, longest),
            PromptSurface(self._time_sequences, max(settings.max_num_batched_tokens, 1), longest),
        )
        self._verifying = cache(self._surface_of_width)
        self._single = DecodeSurface(self._time_single, self._most_sequences, longest)
        self._settled = cache(self._look_at_step)

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What a step costs."""
        if not isinstance(shape, DraftShape):
            estimate = super().__call__(shape, steps)
            return estimate._replace(rows=(*estimate.rows, 0))
        attention = self._attention(shape)
        passes = min(self._drafting.passes, shape.num_next) if shape.num_drafting else 0
        # A head drafts for everybody in the step; who has not finished a prompt has no use for it.
        number = shape.num_sequences
        if passes > 1:
            again = self._single(number, shape.total_computed + shape.num_tokens)
            attention = [each + (passes - 1) * more[0] for each, more in zip(attention, again, strict=True)]
        row = passes * (self._most_sequences + 1) + number
        drafts = self._draft_seconds[row]
        if shape.prompts:
            whole = self._put_together(
                shape.num_tokens, number, len(shape.prompts), shape.num_sampled, attention, shape.num_verifying
            )
            launch, _ = self._prompting(shape.num_tokens)
            host = whole.host.plus(self._passes.cost(launch, passes, number, has_prompts=True))
            return whole._replace(gpu_seconds=[whole.gpu_seconds[0] + drafts], host=host, rows=(*whole.rows, row))
        of_tokens, host, dense = self._settled(shape.num_tokens, shape.num_sampled, number, shape.is_decode, passes)
        seconds = dense + sum(attention) + drafts
        return StepEstimate([seconds], [[each] for each in attention], host, (of_tokens, shape.num_sampled, row))

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """A step of sequences that are known by their sum and all have their drafts."""
        return self(self._group(count, computed, ()))

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """The same with prompts beside them."""
        return self(self._group(count, computed, beside))

    def _group(self, count: int, computed: int, beside: Prompts) -> DraftShape:
        width, drafts = self._drafting.width, self._drafting.num_drafts
        room = self._most_tokens - sum([each for each, _ in beside])
        computed, count = computed // max(count, 1), max(0, min(count, room // width))
        new = [width] * count + [each for each, _ in beside]
        before = [computed] * count + [each for _, each in beside]
        return DraftShape(new, before, width * count + len(beside), count, drafts * count, width, len(new), drafts)

    def _attention(self, shape: DraftShape) -> list[float]:
        """Seconds of each attention kernel of the target's pass and of the first one that drafts."""
        assert self._surfaces is not None
        of_single, of_prompts = self._surfaces
        verifying, prompts = shape.num_verifying, shape.prompts
        found = of_prompts(prompts) if prompts else None
        if verifying:
            computed = sum(shape.computed[:verifying])
            each = self._time_verifying(verifying, shape.num_drafts, computed, of_single)
            found = each if found is None else [*map(together, found, each, self._attention_launches, repeat(0.0))]
        assert found is not None
        return found

    def _time_verifying(self, count: int, num_drafts: int, computed: int, of_single: DecodeSurface) -> list[float]:
        """Sequences with drafts, and those without beside them."""
        most = self._drafting.num_drafts
        if not num_drafts:
            return [column[0] for column in of_single(count, computed + count)]
        with_drafts = min(count, -(-num_drafts // most))
        if self._drafting.by_batch:
            with_drafts = count
        width = 1 + max(1, round(num_drafts / with_drafts))
        share = with_drafts / count
        wide = self._verifying(width)(with_drafts, int(share * computed) + with_drafts * width)
        seconds = [column[0] for column in wide]
        if with_drafts == count:
            return seconds
        rest = of_single(count - with_drafts, computed - int(share * computed) + count - with_drafts)
        others = (column[0] for column in rest)
        return [*map(together, seconds, others, self._attention_launches, repeat(0.0))]

    def _put_together(
        self, tokens: int, sequences: int, prompts: int, sampled: int, attention: list[float], verifying: int = 0
    ) -> StepEstimate:
        """A step with prompts; drafts that are verified cost the host no more than a token of each sequence."""
        whole = super()._put_together(tokens, sequences, prompts, sampled, attention)
        launch, _ = self._prompting(tokens)
        plain = self._host.cost(launch, sequences, tokens - verifying * self._drafting.num_drafts, prompts)
        return whole._replace(host=plain.waiting(self._host.waited_share * whole.gpu_seconds[0]))

    def _look_at_step(
        self, tokens: int, sampled: int, sequences: int, uniform: bool, passes: int
    ) -> tuple[int, HostCost, float]:
        """What steps without prompts have in common: row of tokens, host, and seconds by the tables."""
        launch, padded = self._graphs.launch(tokens, uniform)
        row = self._decoding_row + padded
        host = self._host.cost(launch, sequences, sequences, 0)
        host = host.plus(self._passes.cost(launch, passes, sequences, has_prompts=False))
        return row, host, self._token_seconds[row] + self._row_seconds[sampled]

    def _by_tokens(self, tokens: Size) -> list[Call]:
        """The target's, and those of the first pass that drafts."""
        calls = super()._by_tokens(tokens)
        if self._draft is None:
            return calls
        return [*calls, *self._draft.combining_calls(tokens), *self._draft.pass_calls(self._draft_layout, tokens)]

    def _by_rows(self, rows: Size) -> list[Call]:
        """The head and sampling, and what verifies."""
        return [*super()._by_rows(rows), Call("rejection", rejection(rows, self._config.vocabulary))]

    def _by_sequence(self, queries: Table, keys: Table, sequences: Table | int = 1) -> list[Call]:
        calls = super()._by_sequence(queries, keys, sequences)
        if self._draft is None:
            return calls
        return [*calls, *self._draft.attention_calls(self._draft_layout, queries, keys, sequences)]

    def _surface_of_width(self, width: int) -> DecodeSurface:
        """Attention of sequences that verify so many tokens each, and of the first pass over them."""

        def time(_: Table, keys: Table, sequences: Table | int = 1) -> Table:
            calls = verify_calls(self._config, self._layout, width, keys, sequences)
            if self._draft is not None:
                calls += self._draft.verify_calls(self._draft_layout, width, keys, sequences)
            return self._time_calls(calls, keys.shape[0])

        return DecodeSurface(time, self._most_sequences, self._longest)

    def _time_single(self, queries: Table, keys: Table, sequences: Table | int = 1) -> Table:
        """Attention of one later pass."""
        calls = [] if self._draft is None else self._draft.attention_calls(self._draft_layout, queries, keys, sequences)
        return self._time_calls(calls, keys.shape[0])

    def _table_of_drafts(self) -> tuple[tuple[tuple[str, str], ...], Table]:
        """Names and seconds of kernels that draft, by sequences and by how many drafts each gets."""
        most, draft = self._most_sequences, self._draft
        if draft is None:
            return (), np.zeros((most + 1, 0))
        layout, graphs = self._draft_layout, self._passes
        counts = np.arange(most + 1)
        padded = np.array([graphs.padded(count) for count in counts.tolist()])
        sizes = thinned(int(max(padded.max(), most)), ())
        heads, calls = draft.head_calls(layout, sizes), draft.pass_calls(layout, sizes)
        head = self._time_table(heads, sizes, int(sizes[-1]))
        later = self._time_table(calls, sizes, int(sizes[-1]))[padded]
        rows = [np.zeros((most + 1, len(heads) + len(calls) + 1))]
        for passes in range(1, self._drafting.num_drafts + 1):
            of_heads = head[counts] + (passes - 1) * head[padded]
            gaps = np.full(most + 1, passes * graphs.gap_seconds)
            rows.append(np.column_stack([of_heads, (passes - 1) * later, gaps]))
        named = ((call.name, call.op.family) for call in (*heads, *calls))
        return (*named, DRAFT_GAPS), np.vstack(rows)

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        """The kernels of these rows; those of the third table are run once for each pass, or each later one."""
        if table < 2:
            return super().row_calls(table, rows)
        if self._draft is None:
            return []
        passes, count = np.divmod(rows, self._most_sequences + 1)
        sizes = np.maximum(count, 1)
        heads = self._draft.head_calls(self._draft_layout, sizes)
        calls = self._draft.pass_calls(self._draft_layout, sizes)
        later = np.maximum(passes - 1, 0)
        return [*((call, call.count * passes) for call in heads), *((call, call.count * later) for call in calls)]

    @property
    def _tables(self) -> tuple[Table, ...]:
        return *super()._tables, self._draft_table
