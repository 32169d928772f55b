"""Random engines of any other mode, and clients who leave and send again, show images or want several answers."""

import random
from typing import Any

import drafting_cases
import scheduling_cases
from scheduling_cases import LONGEST, Case, is_run

MODES = {
    "returns": "clients who leave and send the same prompt again, up to three times",
    "images": "prompts with images, some of them in several prompts",
    "answers": "several answers to a prompt, whose requests come together, and end together where a client leaves",
}


def draw(version: str, mode: str, seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{mode}:{seed}")
    modes = [each for each in scheduling_cases.MODES if is_run(each, version) and "offload" not in each]
    drafting = [each for each in drafting_cases.MODES if is_run(each, version)]
    base = rng.choice(rng.choice([modes, modes, drafting]))
    cases: Any = drafting_cases if base in drafting_cases.MODES else scheduling_cases
    case: Case = cases.draw(version, base, seed)
    case.mode = mode
    for request in case.requests:
        request.pop("abort", None)
    leaves = mode == "returns" or rng.random() < 0.3
    for number, request in enumerate(case.requests):
        rest = request["input"] - sum(tokens for _, tokens in request["prefix"])
        if rest and (mode != "images" or leaves or rng.random() < 0.8):  # a name, so that it is the same again
            request["prefix"] = [*request["prefix"], (1_000_000 + number, rest)]
    if mode == "images":
        show_images(case, rng)
    if mode == "answers":
        case.requests = [each for request in case.requests for each in several(case, request, rng, leaves=leaves)]
    elif leaves:
        scheduling_cases.with_aborts(case, rng)
        case.requests += [again for index in range(len(case.requests)) for again in sent_again(case, index, rng)]
    longest = max(request["input"] + request["output"] for request in case.requests)
    case.max_model_len = max(case.max_model_len, longest)
    if case.speculation is not None:
        longest += case.speculation["num_drafts"] + case.speculation["lookahead"]
    most = scheduling_cases.most_blocks(case, longest)
    case.num_blocks = 1 + most + rng.choice([1, rng.randint(0, most), rng.randint(0, 6 * most), 5000])
    return case


def sent_again(case: Case, index: int, rng: random.Random) -> list[dict[str, Any]]:
    """The requests of a client who has left, at once or later, the last of which may be waited for."""
    last, found = case.requests[index], []
    while "abort" in last and len(found) < 3 and rng.random() < 0.7:
        again = {**last, "turn": last["abort"] + rng.choice([0, 0, 1, rng.randint(0, 20)]), "again": index}
        del again["abort"]
        if rng.random() < 0.5:
            again["abort"] = again["turn"] + 1 + rng.choice([0, 1, rng.randint(0, last["output"] + 3)])
        found.append(again)
        last = again
    return found


def several(case: Case, request: dict[str, Any], rng: random.Random, *, leaves: bool) -> list[dict[str, Any]]:
    """The requests of as many answers as a client wants, as vLLM's ``ParentRequest`` has them."""
    if leaves and rng.random() < 0.4:
        request["abort"] = request["turn"] + rng.choice([0, 1, rng.randint(0, request["output"] + 3)])
    longest = min(case.max_model_len - request["input"], request.get("most", 2 * request["output"]))
    count = rng.choice([1, 2, 2, 3, 4, 8])
    others = [{**request, "output": rng.randint(1, longest), "answer": None} for _ in range(count - 1)]
    return [request, *others]


def show_images(case: Case, rng: random.Random) -> None:
    """Images between the parts of prompts; what a step may encode is what it may compute, or little more than one."""
    sizes = {3000 + number: rng.choice([4, 9, 16, rng.randint(1, 90)]) for number in range(rng.randint(1, 12))}
    marks = {content: rng.choice([0, 0, 0, 2]) for content in sizes}
    largest = max(sizes.values())
    case.encoder = max(largest, rng.choice([case.max_num_batched_tokens, largest, 2 * largest, 4 * largest]))
    for request in case.requests:
        if rng.random() < 0.25:
            continue
        parts, images, start = [], [], 0
        for content, tokens in request["prefix"]:
            while rng.random() < 0.4 and request["input"] + request["output"] + 100 < LONGEST:
                image = rng.choice([*sizes])
                length = sizes[image] + marks[image]
                images.append((start, length, sizes[image], image))
                parts.append((image, length))
                start += length
                request["input"] += length
            parts.append((content, tokens))
            start += tokens
        request["prefix"], request["images"] = parts, images
