"""Reads ``--speculative-*`` of SGLang: the method, the tree of drafts, and the KV slots of a sequence.

Facts of SGLang 0.5.16: ``arg_groups/speculative_hook.py`` (defaults), ``mem_cache/allocation_sizing.py`` (slots).
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from infercast.engines import speculation as drafts
from infercast.engines.sglang.settings import ARCHITECTURES, SglangSettings
from infercast.errors import InputError, UnknownNameError
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

ALGORITHMS = {
    "EAGLE": drafts.EAGLE, "NEXTN": drafts.EAGLE, "EAGLE3": drafts.EAGLE_3, "STANDALONE": drafts.DRAFT_MODEL,
    "NGRAM": drafts.NGRAM,
}  # fmt: skip
OWN_HEADS = ("nextn", "mtp")  # In names of checkpoints with the target's own prediction heads
TREE_BACKENDS = ("flashinfer", "fa3", "triton")
LOOKED_UP, BREADTH = 12, 10  # Tokens verified and branches of n-gram lookups


def tree_of(asked: SglangSettings, target: ModelConfig, method: str) -> tuple[int, int, int]:
    """Steps, branches and verified tokens, with the engine's defaults."""
    steps, branches, tokens = (
        asked.speculative_num_steps, asked.speculative_eagle_topk, asked.speculative_num_draft_tokens
    )  # fmt: skip
    if method == drafts.NGRAM:
        tokens = tokens or LOOKED_UP
        return steps or max(1, tokens // BREADTH), BREADTH, tokens
    if steps is branches is tokens is None:
        branched = method != drafts.DRAFT_MODEL and target.architecture in ARCHITECTURES["branched"]
        return (5, 4, 8) if branched else (3, 1, 4)
    if steps is None or branches is None or (branches > 1 and tokens is None):
        raise InputError(
            "SGLang needs all or none of speculative_num_steps, speculative_eagle_topk and, above 1 branch, "
            f"speculative_num_draft_tokens, which are {steps}, {branches} and {tokens}"
        )
    return steps, branches, steps + 1 if branches == 1 else tokens or 0


def slots_of(steps: int, branches: int, tokens: int, page: int, *, has_cache: bool) -> int:
    """KV slots beyond a sequence's tokens: of two steps, as the last one's result is not known."""
    if has_cache and page > 1 and branches > 1:  # each branch has pages of its own
        steps = (2 * (page - 1) + steps) // page * page
    return 2 * max(steps * branches, tokens)


def drafting_of(
    asked: SglangSettings, target: ModelConfig, layout: ParallelLayout, backend: str, page: int
) -> drafts.Drafting:
    """What the engine does with its flags; an error where it does not start."""
    name, path = str(asked.speculative_algorithm).upper(), asked.speculative_draft_model_path
    if (method := ALGORITHMS.get(name, "")) == "":
        raise UnknownNameError("speculative_algorithm", name, ALGORITHMS)
    steps, branches, tokens = tree_of(asked, target, method)
    by_tree = TREE_BACKENDS[:1] if method == drafts.NGRAM else TREE_BACKENDS
    failing = {
        "pipeline parallelism": layout.pipeline > 1,
        "enable_dp_attention": asked.enable_dp_attention and method in (drafts.DRAFT_MODEL, drafts.NGRAM),
        "LoRA adapters": asked.has_adapters and method != drafts.NGRAM,
        f"{branches} branches of drafts in pages of {page}": branches > 1 and page > 1 and backend not in by_tree,
    }
    if reason := next((each for each, fails in failing.items() if fails), ""):
        raise InputError(f"SGLang does not start with speculative_algorithm {name} and {reason}; leave one out")
    if method == drafts.EAGLE and target.prediction is not None:
        method = drafts.MTP if path is None or any(each in path.lower() for each in OWN_HEADS) else method
    if path is None and method not in (drafts.MTP, drafts.NGRAM):
        raise InputError(f"speculative_algorithm {name} needs speculative_draft_model_path")
    if path is not None and path.startswith((".", "/", "~")) and not os.path.exists(path):
        path = PurePosixPath(path).name  # a folder of another machine
    draft, note = drafts.draft_of(method, path, target, asked.speculative_draft_model_quantization)
    is_lookup = method == drafts.NGRAM
    num_drafts = tokens - 1 if is_lookup else steps
    accepted = drafts.usual(target.name, method, num_drafts)
    if asked.acceptance:
        accepted = drafts.read_acceptance(asked.acceptance, num_drafts)
    elif is_lookup:
        accepted = accepted._replace(rates=tuple(drafts.MATCH_SHARE * rate for rate in accepted.rates))
    return drafts.Drafting(
        method,
        num_drafts,
        accepted,
        draft,
        layout.tensor,
        num_verified=tokens,
        branches=1 if is_lookup else branches,
        lookahead=slots_of(steps, branches, tokens, page, has_cache=not is_lookup),
        drops_block=method in drafts.BY_HEADS,
        heads_all=True,
        note=note,
    )
