"""Random engines with two features at once, drawn as with one of them and given the other."""

import random

import drafting_cases
import scheduling_cases
from scheduling_cases import Case

from infercast.engines.vllm.versions import Rule

MODES = {
    "priority-drafts": "priorities and speculative decoding",
    "lora-drafts": "a bound on adapters in a step and speculative decoding",
    "priority-offload": "priorities and a tier of the KV cache in the host's memory",
    "lora-offload": "a bound on adapters in a step and such a tier",
    "drafts-offload": "speculative decoding and such a tier",
    "pipeline-offload": "a pipeline and such a tier",
    "pipeline-lora": "a pipeline and a bound on adapters in a step",
    "pipeline-drafts": "a pipeline and speculative decoding",
}
DRAFTS = ("drafts", "drafts-sync", "drafts-model", "drafts-lookup", "drafts-starts", "drafts-talk", "drafts-stops")
STAGED_DRAFTS = ("drafts", "drafts-stops", "drafts-short", "drafts-hybrid")
"""Asynchronous, and from hidden states: otherwise vLLM plans less than no tokens where drafts are under way."""
OFFLOADS = ("offload", "sync-offload", "offload-talk", "offload-answers")


def draw(version: str, mode: str, seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{mode}:{seed}")
    first, second = mode.split("-")
    if "drafts" in (first, second):
        case = drafting_cases.draw(version, rng.choice(STAGED_DRAFTS if first == "pipeline" else DRAFTS), seed)
        longest = max(request["input"] + request["output"] for request in case.requests)
        longest += case.speculation["num_drafts"] + case.speculation["lookahead"]
    else:
        case = scheduling_cases.draw(version, rng.choice(OFFLOADS) if second == "offload" else "async", seed)
        longest = max(request["input"] + request["output"] for request in case.requests)
    case.mode = mode
    if first == "pipeline":
        case.pipeline = rng.choice([2, 3, 4])
        case.v2_runner = scheduling_cases.rules_of(version).has(Rule.V2_FOR_ALL) or rng.random() < 0.5
    if first == "priority":
        case.by_priority = True
    if "lora" in (first, second):
        case.max_adapters = rng.randint(1, 3)
    scheduling_cases.label(case, rng)
    most = scheduling_cases.most_blocks(case, longest)
    case.num_blocks = max(case.num_blocks, 1 + most)
    if mode == "drafts-offload":
        scheduling_cases.offload(case, rng, most)
        case.prompts_only = rng.random() < 0.7
    return case
