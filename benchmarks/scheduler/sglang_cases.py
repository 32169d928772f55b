"""Random SGLang engines and workloads, small enough that the cache overflows, in each mode of its scheduler."""

import random
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Any

MODES = {
    "overlap": "the defaults: overlapped steps, radix cache, chunked prompts",
    "no-overlap": "one step after the other",
    "no-chunking": "prompts are not cut",
    "mixed": "decoding goes on beside prompts",
    "mixed-no-overlap": "the same, one step after the other",
    "no-cache": "without the radix cache",
    "ignore-eos": "without the radix cache, answers as long as declared",
    "page": "pages of several tokens",
    "page-no-overlap": "the same, one step after the other",
    "longest-match": "the longest match goes first",
    "conversation": "prompts that continue earlier answers",
    "declared": "answers that are declared longer than anything is promised, or than the model allows",
    "pipeline": "micro-batches of a pipeline that take turns",
    "tier": "a tier of the KV cache in the host's memory",
    "tier-talk": "the same, with prompts that continue earlier answers",
    "priority": "requests with priorities, which may make others give way",
    "drafts": "EAGLE: chains and trees of drafts, in all modes that it may be used with",
    "drafts-alone": "the same with a draft model of its own, whose prefixes are not known by pairs of tokens",
    "adapters": "LoRA adapters, more than may be in a step, and requests without one",
    "any": "all of these at random",
}
APART = ("tier", "tier-talk", "priority", "drafts", "drafts-alone", "adapters")
"""Modes that are not mixed with others."""
MOST_WAITING = 128
"""Requests up to which the queue is sorted by the longest match."""


@dataclass
class Case:
    """One engine and its requests, as plain values that can be written down."""

    mode: str
    chunked_prefill_size: int | None
    max_prefill_tokens: int
    max_running_requests: int
    num_tokens: int
    page_size: int = 1
    overlap: bool = True
    caching: bool = True
    mixed: bool = False
    longest_match: bool = False
    ignore_eos: bool = False
    conservativeness: float = 1.0
    max_model_len: int = 2048
    pipeline: int = 1
    host_tokens: int = 0
    """Tokens of the host's tier; 0: there is none."""
    copied_at: int = 1
    priorities: dict[str, Any] | None = None
    """sign, preempts and threshold; each request then has a priority."""
    max_adapters: int | None = None
    """Of a step; each request then may have one."""
    drafts: dict[str, Any] | None = None
    """algorithm, steps, top_k and tokens; each request then has the drafts accepted at each position of its answer."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """turn, input, declared, output, prefix [(content, tokens)], and answer: the content of the output, if named."""

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def draw(mode: str, seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"sglang:{mode}:{seed}")
    case = Case(mode, rng.choice([16, 64, 256, 1024]), rng.choice([32, 128, 4096]), rng.choice([2, 4, 8, 64]), 0)
    _set(rng, case, mode)
    if mode.startswith("drafts"):
        for each in rng.sample(["no-overlap", "no-chunking", "page", "longest-match", "no-cache", "ignore-eos"], 2):
            if rng.random() < 0.5:
                _set(rng, case, each)
    if mode == "any":
        for each in rng.sample([each for each in MODES if each not in APART][1:-2], 4):
            _set(rng, case, each)
    crowd = rng.random() < 0.4  # many answers of which little is promised, so that the cache overflows
    case.conservativeness = rng.choice([0.02, 0.1, 0.3]) if crowd else rng.choice([0.3, 1.0, 1.0, 1.4, 3.0])
    case.max_running_requests = 64 if crowd else case.max_running_requests
    talks = mode in ("conversation", "tier-talk") or (mode in ("any", "drafts") and rng.random() < 0.3)
    case.requests = _conversations(rng, case, crowd=crowd) if talks else _requests(rng, case, crowd=crowd)
    if mode == "priority":
        case.priorities = {
            "sign": rng.choice([-1, 1]),
            "preempts": rng.random() < 0.8,
            "threshold": rng.choice([0, 3, 10]),
        }
        case.max_running_requests = rng.choice([2, 3, 4, 8])
        for each in case.requests:
            each["priority"] = rng.choice([0, 1, 5, 20])
    if mode.startswith("drafts"):
        _draft(rng, case)
    if mode == "adapters":
        case.max_adapters = rng.choice([1, 2, 3])
        for each in case.requests:
            each["adapter"] = rng.choice([None, 0, 1, 2, 3])
    page = case.page_size
    longest = [min(each["declared"], case.max_model_len - each["input"]) for each in case.requests]
    prompts = [-(-each["input"] // page) * page for each in case.requests]
    most = max(map(add, prompts, longest)) + 2 * page + 2 + reserve(case)
    spare = rng.randint(0, 3 * most) if crowd else rng.choice([1, rng.randint(0, most), 6 * most, 100_000])
    case.num_tokens = -(-(most + spare) // page) * page
    if mode.startswith("tier"):
        case.host_tokens, case.copied_at = page * rng.choice([60, 600, 20_000]), rng.choice([1, 1, 2])
        case.num_tokens = -(-(most + rng.randint(0, most)) // page) * page
    return case


def reserve(case: Case) -> int:
    """Tokens that a sequence has slots for beyond its own (``mem_cache/allocation_sizing.py``)."""
    if case.drafts is None:
        return 0
    steps, top_k, page = case.drafts["steps"], case.drafts["top_k"], case.page_size
    branch = steps if page == 1 or top_k == 1 else (page - 1 + steps + page - 1) // page * page
    return 2 * max(branch * top_k, case.drafts["tokens"])


def _draft(rng: random.Random, case: Case) -> None:
    """Drafts, and how many of them are accepted."""
    steps, top_k = rng.choice([1, 2, 3, 5]), rng.choice([1, 1, 1, 4])
    tokens = steps + 1 if top_k == 1 else rng.choice([steps + 1, 2 * steps + 2])
    alone = case.mode == "drafts-alone"
    case.drafts = {"algorithm": "STANDALONE" if alone else "EAGLE", "steps": steps, "top_k": top_k, "tokens": tokens}
    for each in case.requests:
        each["accepted"] = [rng.randint(0, steps) for _ in range(each["output"])]


def _set(rng: random.Random, case: Case, mode: str) -> None:
    """What the mode is about."""
    if mode in ("page", "page-no-overlap"):
        case.page_size = rng.choice([4, 16, 64])
    if mode == "no-chunking" or (mode == "page" and rng.random() < 0.2):
        case.chunked_prefill_size = None
    if mode in ("no-cache", "ignore-eos"):
        case.caching, case.ignore_eos = False, mode == "ignore-eos"
        case.page_size = rng.choice([1, 1, 16])
        case.chunked_prefill_size = None if rng.random() < 0.2 else case.chunked_prefill_size
    if case.chunked_prefill_size is not None:
        case.chunked_prefill_size = max(case.chunked_prefill_size, case.page_size)
    case.overlap &= "no-overlap" not in mode
    case.mixed |= mode.startswith("mixed")
    case.longest_match |= mode == "longest-match"
    if mode == "pipeline":
        case.pipeline, case.overlap = rng.choice([2, 3, 4]), False
    if mode == "declared":
        case.max_model_len = rng.choice([500, 5000, 20_000])


def _requests(rng: random.Random, case: Case, *, crowd: bool) -> list[dict[str, Any]]:
    longest_input, longest_output = rng.choice([20, 100] if crowd else [20, 100, 400]), rng.choice([3, 20, 120])
    longest_output = 120 if crowd else longest_output
    share, last_turn = rng.random() < 0.6, rng.choice([1, 20, 100])
    extra = 0 if case.ignore_eos else rng.choice([0, 20] if crowd else [0, 20, 200])
    requests = []
    count = rng.randint(5, 40)
    if case.longest_match and rng.random() < 0.2:
        count, last_turn = MOST_WAITING + count, 5
    for _ in range(count):
        tokens, prefix = rng.randint(1, longest_input), []
        if share and rng.random() < 0.8:
            shared = rng.randint(1, tokens)
            first = rng.randint(1, shared)
            prefix = [(rng.randint(1, 3), first)] + ([(rng.randint(4, 6), shared - first)] if shared > first else [])
        output = min(rng.randint(1, longest_output), case.max_model_len - 2 - tokens)
        declared = output + rng.randint(0, extra)
        if case.max_model_len != Case.max_model_len and rng.random() < 0.7 and not case.ignore_eos:
            declared = rng.randint(output, 3 * case.max_model_len)
        request = {"turn": rng.randint(0, last_turn), "input": tokens, "declared": declared, "output": output}
        requests.append({**request, "prefix": prefix, "answer": None})
    return requests


def _conversations(rng: random.Random, case: Case, *, crowd: bool) -> list[dict[str, Any]]:
    """Users who go on with what was answered; some do not wait for the answer, some ask what others asked."""
    requests = []
    for user in range(rng.randint(8, 20) if crowd else rng.randint(2, 8)):
        prefix, turn = [(rng.randint(1, 2), rng.randint(1, 60))], rng.randint(0, 30)
        for exchange in range(rng.randint(1, 5)):
            asked = 100 + 10 * (user if rng.random() < 0.7 else 0) + exchange
            prefix.append((asked, rng.randint(1, 40)))
            answer, output = 1000 + asked, rng.randint(1, 60)
            tokens = sum(count for _, count in prefix)
            declared = output + (0 if case.ignore_eos else rng.choice([0, 50]))
            request = {"turn": turn, "input": tokens, "declared": declared, "output": output}
            requests.append({**request, "prefix": [*prefix], "answer": answer})
            prefix.append((answer, output))
            turn += rng.randint(0, 2 * output)
    return requests
