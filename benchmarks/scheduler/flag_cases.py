"""Random engines of any other mode, with one more flag of the scheduler."""

import random

import drafting_cases
import scheduling_cases
from scheduling_cases import STATE, Case, is_run

MODES = {
    "scheduled-tokens": "a max_num_scheduled_tokens below max_num_batched_tokens",
    "adaptive": "a long_prefill_token_threshold that is adaptive",
    "interval": "engines in lockstep that compute prompts in every N-th step (prefill_schedule_interval)",
    "own-interval": "the same of an engine outside of lockstep",
}


def draw(version: str, mode: str, seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{mode}:{seed}")
    modes = [each for each in scheduling_cases.MODES if is_run(each, version)]
    drafting = [each for each in drafting_cases.MODES if is_run(each, version)]
    base = rng.choice(rng.choice([modes, modes, modes, drafting]))
    case: Case = (drafting_cases if base in drafting_cases.MODES else scheduling_cases).draw(version, base, seed)
    case.mode = mode
    if mode == "adaptive":
        case.threshold, case.adaptive = rng.choice([1, 4, 10, 30]) + _least(case), True
    elif mode.endswith("interval"):
        case.prefill_interval, case.is_lone = rng.choice([2, 3, 4, 8]), mode == "own-interval"
    elif case.chunked and not (case.speculation and case.speculation["slots_taken"]):
        # Where steps end with blocks, one that has no room for a block computes nothing.
        least = case.block_size if STATE in case.windows else 1
        case.scheduled_tokens = rng.choice([1, 2, 5, 15, 40, 200]) + max(least, _least(case), case.threshold)
        case.scheduled_tokens = min(case.scheduled_tokens, case.max_num_batched_tokens)
    return case


def _least(case: Case) -> int:
    """Drafts of a sequence, and what they read ahead: a step has room for these."""
    return 0 if case.speculation is None else case.speculation["num_drafts"] + case.speculation["read_ahead"]
