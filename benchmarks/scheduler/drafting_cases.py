"""Random engines that draft, and their workloads, in each mode of speculative decoding."""

import random
from typing import Any

import numpy as np
from scheduling_cases import LONGEST, STATE, Case, conversations, most_blocks, short_requests, with_stops

from infercast.engines.vllm.versions import Rule, rules_of
from infercast.serve.speculation import ACCEPTED, MATCHED, Draws, Speculation

MODES = {
    "drafts": "hidden states (EAGLE, MTP), asynchronous scheduling",
    "drafts-sync": "the same, one step after the other",
    "drafts-model": "a draft model, asynchronous scheduling or not",
    "drafts-lookup": "prompt lookup: from no draft to K, one step after the other",
    "drafts-by-batch": "drafts by the number of sequences",
    "drafts-short": "answers that reach the longest length",
    "drafts-starts": "requests that start with one token to compute",
    "drafts-talk": "prompts that continue earlier answers",
    "drafts-no-cache": "without prefix caching",
    "drafts-no-chunking": "without chunked prefill",
    "drafts-threshold": "with a long_prefill_token_threshold",
    "drafts-window": "all layers with one window",
    "drafts-hybrid": "full attention and windows",
    "drafts-states-off": "recurrent layers without prefix caching",
    "drafts-windows": "windows of two lengths, with and without full attention",
    "drafts-states": "recurrent layers with prefix caching, some of which leave a state before a step's end, too",
    "drafts-heads": "several prediction heads, which read ahead of a step, with windows or without",
    "drafts-stops": "answers that end by EOS",
    "drafts-groups": "MTP beside windows, chunks, and windows in blocks of another size",
}


class AnyDraws(Draws):
    """Plain coins; and where drafts are looked up there may be any number of them up to K."""

    def accepted(self, index: int, count: int) -> bytes:
        """For each token of a request's answer, how many drafts after it are right if there are K."""
        rising = np.array(self._speculation.acceptance[::-1])
        right = rising.size - np.searchsorted(rising, self._uniform(index, ACCEPTED, count), side="right")
        return right.astype(np.uint8).tobytes()

    def drafted(self, index: int, count: int) -> bytes:
        """For each token of a request's answer, how many drafts there are after it."""
        most = self._speculation.num_drafts
        return np.floor(self._uniform(index, MATCHED, count) * (1 + most)).astype(np.uint8).tobytes()


def drafts_of(case: Case) -> tuple[Speculation, Draws]:
    """How an engine drafts, and what comes of it."""
    assert case.speculation is not None
    fields = {key: value for key, value in case.speculation.items() if key != "method"}
    fields["by_batch"] = tuple(map(tuple, fields["by_batch"]))
    rules = rules_of(case.version)
    if rules.has(Rule.HASHES_AHEAD) and fields["drops_block"] and case.caching and not case.tier_blocks:
        fields |= {"drops_block": False, "hash_ahead": fields["read_ahead"] or 1}
    fields |= {"acceptance": tuple(fields["acceptance"]), "names_results": rules.has(Rule.NAMES_RESULTS)}
    speculation = Speculation(**fields)
    return speculation, AnyDraws(speculation)


def draw(version: str, mode: str, seed: int) -> Case:  # noqa: PLR0912, PLR0915 - a branch for each mode
    """The case of a seed."""
    rng = random.Random(f"{mode}:{seed}")
    size, seqs = rng.choice([4, 16]), rng.choice([2, 4, 8, 64])
    case = Case(version, mode, max(seqs, rng.choice([16, 64, 256, 1024])), seqs, 0, size)
    method = {"drafts-model": "draft_model", "drafts-lookup": "ngram"}.get(mode, "eagle")
    if mode in ("drafts-starts", "drafts-talk", "drafts-window", "drafts-windows"):
        method = rng.choice(["eagle", "draft_model", "ngram"])
    if mode == "drafts-groups":
        method = "mtp"
    elif mode == "drafts-states":
        method = rng.choice(["mtp", "mtp", "eagle", "ngram"])
    case.is_async = mode not in ("drafts-sync", "drafts-lookup") and method != "ngram"
    if mode in ("drafts-model", "drafts-no-cache", "drafts-by-batch", "drafts-heads"):
        case.is_async = rng.random() < 0.5
    window = rng.choice([size, 2 * size + 3, 5 * size, 37])
    if mode == "drafts-no-cache":
        case.caching = False
    elif mode == "drafts-no-chunking":
        case.chunked, case.max_num_batched_tokens = False, LONGEST
    elif mode == "drafts-threshold":
        case.threshold = rng.choice([7, 16, 50])
    elif mode == "drafts-heads":
        case.windows = rng.choice([(0,), (0,), (window,), (0, window), (window, 0, 3 * window)])
        case.caching = rng.random() < 0.8
        case.threshold = rng.choice([0, 0, 16, 50])
    elif mode == "drafts-window":
        case.windows = (window,)
    elif mode == "drafts-hybrid":
        case.windows = rng.choice([(0, window), (0, window, window), (window, window, window, 0)])
    elif mode == "drafts-windows":
        case.windows = rng.choice([(window, 3 * window), (0, window, 3 * window), (window, 0, 3 * window, window)])
    elif mode == "drafts-groups":
        narrow, last = (window,) * rng.choice([1, 5]), rng.random() < 0.5
        case.windows = (*narrow, 0) if last else (0, *narrow)
        kind = rng.choice(["windows", "windows", "sizes", "sizes", "chunks"])
        if kind == "chunks":
            case.windows, case.chunklocal = (rng.choice([1, 4, 5]) * size, 0), True
        elif kind == "sizes":
            case.block_sizes = tuple(size if each else rng.choice([2, 4]) * size for each in case.windows)
        case.is_async = rng.random() < 0.7
        if rules_of(version).has(Rule.SPARSE_WINDOWS) and kind != "chunks":
            case.retention = rng.choice([0, 0, 0, None, 8 * size])
    elif mode == "drafts-states-off":
        case.windows = rng.choice([(0, STATE), (STATE, STATE, STATE, 0), (STATE, 0), (STATE, 0, STATE)])
        case.states, case.caching = "none", False
    elif mode == "drafts-states":
        case.windows = rng.choice([(0, STATE), (STATE, STATE, STATE, 0), (STATE, 0), (STATE, 0, STATE)])
        case.block_size = size = rng.choice([8, 16, 32])  # a state is no smaller than a step with all its drafts
        case.states, case.is_async = "align", method != "ngram" and rng.random() < 0.7
        case.checkpoints = int(rules_of(version).has(Rule.EXPORTS_STATES) and rng.random() < 0.4)
        case.max_num_batched_tokens = max(case.max_num_batched_tokens, 2 * size)
        if rules_of(version).has(Rule.SPARSE_WINDOWS) and rng.random() < 0.2:
            case.retention = rng.choice([None, size, 4 * size])
    case.speculation = _speculation(rng, version, mode, method, seqs)
    case.max_num_batched_tokens += case.speculation["slots_taken"] * seqs
    if mode == "drafts-starts":
        case.requests = _one_token_starts(rng, size)
    else:
        talks = mode == "drafts-talk" or (mode == "drafts-states" and rng.random() < 0.5)
        case.requests = conversations(rng, size) if talks else short_requests(rng, size)
    longest = max(request["input"] + request["output"] for request in case.requests)
    if mode == "drafts-short":
        case.max_model_len = longest + rng.choice([0, 0, 1, 3])
    if mode == "drafts-stops":
        with_stops(case, rng)
    most = most_blocks(case, longest + case.speculation["num_drafts"] + case.speculation["lookahead"])
    case.num_blocks = 1 + most + rng.choice([1, rng.randint(0, most), rng.randint(0, 6 * most), 5000])
    return case


def _speculation(rng: random.Random, version: str, mode: str, method: str, seqs: int) -> dict[str, Any]:
    count = rng.choice([1, 2, 3, 5, 7])
    if mode in ("drafts-threshold", "drafts-heads"):
        count = min(count, 5)
    # Blocks that hold fewer tokens than are read ahead are refused.
    read_ahead = min(max(count, 2), 4) if mode == "drafts-heads" and version != "0.25" else 0
    count = read_ahead or count
    by_batch: list[tuple[int, int]] = []
    if mode == "drafts-by-batch":
        starts = sorted({1, *(rng.randint(1, seqs) for _ in range(3))})
        by_batch = [(start, rng.randint(0, count)) for start in starts]
    rates = sorted((rng.choice([0.0, rng.random(), rng.random(), 1.0]) for _ in range(count)), reverse=True)
    return {
        "method": method,
        "num_drafts": count,
        "acceptance": rates,
        "match": 0.5 if method == "ngram" else 1.0,
        "lookahead": 0 if method == "ngram" else count,
        "drops_block": method in ("eagle", "mtp"),
        "slots_taken": int(method == "draft_model"),
        "slots_by_step": version != "0.25",
        "pads_new": True,
        "pads_first": version != "0.25",
        "read_ahead": read_ahead,
        "by_batch": by_batch,
        "seed": rng.randint(0, 1 << 30),
    }


def _one_token_starts(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Prompts of whole blocks and one token more, many of which others have computed."""
    requests = []
    for _ in range(rng.randint(5, 40)):
        blocks = rng.randint(1, 5)
        prefix = [(rng.randint(1, 2), blocks * size)]
        output, turn = rng.randint(1, 40), rng.randint(0, 60)
        extra = rng.choice([1, 1, 1, 2, 5])
        requests.append(
            {"turn": turn, "input": blocks * size + extra, "output": output, "prefix": prefix, "answer": None}
        )
    return requests
