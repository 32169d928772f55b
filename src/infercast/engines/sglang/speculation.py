"""Reads ``--speculative-*`` of SGLang: the method, the tree of drafts, and the KV slots of a sequence.

Facts of SGLang 0.5.16: ``arg_groups/speculative_hook.py`` (defaults), ``mem_cache/allocation_sizing.py`` (slots).
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import NamedTuple

from infercast.engines.sglang.settings import ARCHITECTURES, SglangSettings
from infercast.engines.speculation import (
    BY_HEADS,
    DRAFT_MODEL,
    EAGLE,
    EAGLE_3,
    MATCH_SHARE,
    MTP,
    NGRAM,
    Drafting,
    draft_of,
    read_acceptance,
    usual,
)
from infercast.errors import InputError, UnknownNameError
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

ALGORITHMS = {"EAGLE": EAGLE, "NEXTN": EAGLE, "EAGLE3": EAGLE_3, "STANDALONE": DRAFT_MODEL, "NGRAM": NGRAM}
OWN_HEADS = ("nextn", "mtp")
"""In names of checkpoints with the target's own prediction heads."""
TREE_BACKENDS = ("flashinfer", "fa3", "triton")
LOOKED_UP, BREADTH = 12, 10
"""Tokens verified and branches of n-gram lookups."""


class Tree(NamedTuple):
    steps: int
    branches: int
    tokens: int
    """Tokens that a sequence verifies."""

    def slots(self, page: int, *, has_cache: bool) -> int:
        """KV slots beyond a sequence's tokens: of two steps, as the last one's result is not known."""
        branch = self.steps
        if has_cache and page > 1 and self.branches > 1:  # each branch has pages of its own
            branch = (2 * (page - 1) + self.steps) // page * page
        return 2 * max(branch * self.branches, self.tokens)


def tree_of(asked: SglangSettings, target: ModelConfig) -> Tree:
    """The tree of drafts, with the engine's defaults."""
    steps, branches, tokens = (
        asked.speculative_num_steps, asked.speculative_eagle_topk, asked.speculative_num_draft_tokens
    )  # fmt: skip
    method = _method(asked)
    if method == NGRAM:
        tokens = tokens or LOOKED_UP
        return Tree(steps or max(1, tokens // BREADTH), BREADTH, tokens)
    if steps is None:
        if branches is not None or tokens is not None:
            raise InputError("speculative_eagle_topk and speculative_num_draft_tokens need speculative_num_steps")
        return (
            Tree(5, 4, 8)
            if method != DRAFT_MODEL and target.architecture in ARCHITECTURES["branched"]
            else Tree(3, 1, 4)
        )
    if branches is None or (branches > 1 and tokens is None):
        raise InputError(
            f"speculative_num_steps {steps} needs speculative_eagle_topk, and above 1 speculative_num_draft_tokens; "
            "SGLang does not start without"
        )
    return Tree(steps, branches, steps + 1 if branches == 1 else tokens or 0)


def _method(asked: SglangSettings) -> str:
    name = str(asked.speculative_algorithm).upper()
    if name not in ALGORITHMS:
        raise UnknownNameError("speculative_algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def drafting_of(
    asked: SglangSettings, target: ModelConfig, layout: ParallelLayout, backend: str, page: int
) -> Drafting:
    """What the engine does with its flags; an error where it does not start."""
    tree, method, path = tree_of(asked, target), _method(asked), asked.speculative_draft_model_path
    if layout.pipeline > 1:
        raise InputError("SGLang does not start with speculative_algorithm and pipeline parallelism; leave one out")
    if asked.enable_dp_attention if method in (DRAFT_MODEL, NGRAM) else asked.has_adapters:
        other = "enable_dp_attention" if asked.enable_dp_attention else "LoRA adapters"
        raise InputError(f"SGLang does not start with {asked.speculative_algorithm} and {other}; leave one out")
    if tree.branches > 1 and page > 1 and backend not in (TREE_BACKENDS[:1] if method == NGRAM else TREE_BACKENDS):
        raise InputError(
            f"SGLang does not start with {tree.branches} branches of drafts, page_size {page} and attention_backend "
            f"{backend}; set speculative_eagle_topk to 1"
        )
    if method == EAGLE and target.prediction is not None:
        is_own = path is None or any(word in path.lower() for word in OWN_HEADS)
        method = MTP if is_own else method
    if path is None and method not in (MTP, NGRAM):
        raise InputError(f"speculative_algorithm {asked.speculative_algorithm} needs speculative_draft_model_path")
    if path is not None and not os.path.exists(path) and path.startswith((".", "/", "~")):
        path = PurePosixPath(path).name  # a folder of another machine
    draft, note = draft_of(method, path, target, asked.speculative_draft_model_quantization)
    num_drafts = tree.tokens - 1 if method == NGRAM else tree.steps
    accepted = usual(target.name, method, num_drafts)
    if method == NGRAM:
        accepted = accepted._replace(rates=tuple(MATCH_SHARE * rate for rate in accepted.rates))
    if asked.acceptance:
        accepted = read_acceptance(asked.acceptance, num_drafts)
    return Drafting(
        method,
        num_drafts,
        accepted,
        draft,
        layout.tensor,
        num_verified=tree.tokens,
        branches=1 if method == NGRAM else tree.branches,
        lookahead=tree.slots(page, has_cache=method != NGRAM),
        drops_block=method in BY_HEADS,
        heads_all=True,
        note=note,
    )
