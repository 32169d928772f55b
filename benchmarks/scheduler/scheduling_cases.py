"""Random engines and workloads, small enough that blocks run out, in each mode of the scheduler."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from infercast.engines.vllm.versions import rules_of
from infercast.serve.cache.shape import STATE_WINDOW, KvShape

MODES = {
    "async": "asynchronous scheduling, prefix caching, chunked prefill",
    "sync": "one step after the other",
    "no-cache": "without prefix caching",
    "no-chunking": "without chunked prefill",
    "threshold": "with a long_prefill_token_threshold",
    "window": "all layers with one window",
    "hybrid": "full attention and windows",
    "windows": "windows of two lengths, with and without full attention",
    "sync-hybrid": "full attention and windows, one step after the other",
    "retention": "windows and states that are kept at intervals, too, or everywhere",
    "conversation": "prompts that continue earlier answers",
    "states-off": "recurrent layers without prefix caching",
    "states-all": "recurrent layers that write a state at the end of every block",
    "states-align": "recurrent layers whose steps end with blocks",
    "sync-states": "the same two, one step after the other",
    "states-talk": "the same two, with prompts that continue earlier answers",
    "pipeline-v1": "a pipeline under the V1 model runner",
    "pipeline-v2": "a pipeline under the V2 model runner",
    "pipeline-sync": "a pipeline without asynchronous scheduling",
    "priority": "requests with priorities, full attention or windows, prompts of conversations among them",
    "sync-priority": "the same, one step after the other",
    "pipeline-priority": "the same in a pipeline under the V2 model runner",
    "lora": "requests for adapters, of which a step may have so many, in either order of scheduling",
    "offload": "a tier of the KV cache in the host's memory",
    "sync-offload": "the same, one step after the other",
    "offload-talk": "the same, with prompts that continue earlier answers",
    "offload-answers": "the same, where answers are stored, too",
}
PIPELINES = ("pipeline-v1", "pipeline-v2", "pipeline-sync")
LONGEST = 2048
STATE = -1
"""In place of a window: recurrent layers."""


def is_run(mode: str, version: str) -> bool:
    """Whether a version has the mode: the V1 model runner with asynchronous pipelines, all states, sparse windows."""
    rules = rules_of(version)
    needed = {"pipeline-v1": not rules.v2_for_all, "states-all": rules.writes_every_state}
    needed |= {name: version == "0.25" for name in MODES if "offload" in name}
    return needed.get(mode, True) and (mode != "retention" or rules.sparse_windows)


@dataclass
class Case:
    """One engine and its requests, as plain values that can be written down."""

    version: str
    mode: str
    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    windows: tuple[int, ...] = (0,)
    states: str = ""
    """``none``, ``align`` or ``all``: how recurrent layers, whose groups have a window of `STATE`, keep states."""
    checkpoints: int = 0
    """Of aligned states: blocks for one that a step leaves before its end (``num_prefill_checkpoint_blocks``)."""
    caching: bool = True
    chunked: bool = True
    threshold: int = 0
    is_async: bool = True
    pipeline: int = 1
    v2_runner: bool = True
    retention: int | None = 0
    """The retention interval of versions that have one."""
    watermark: float = 0.0
    reserves_prompts: bool = True
    by_priority: bool = False
    max_adapters: int | None = None
    max_model_len: int = LONGEST
    speculation: dict[str, Any] | None = None
    """The fields of `Speculation`, and ``method`` as vLLM calls it; None: no drafts."""
    tier_blocks: int = 0
    """Blocks of the host's tier; 0: there is none."""
    tier_factor: int = 1
    prompts_only: bool = True
    store_threshold: int = 0
    slowest_copy: int = 0
    """Steps that the slowest copies take."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """turn, input, output, prefix [(content, tokens)], and answer: the content of the output, if it has a name;
    and priority, adapter and most (the ``max_tokens`` of a request whose answer ends before), if it has one."""

    @property
    def steps_under_way(self) -> int:
        """As vLLM's ``max_concurrent_batches`` has it."""
        if self.is_async and self.v2_runner:
            return self.pipeline + 1
        return 2 if self.is_async and self.pipeline == 1 else self.pipeline

    @property
    def shape(self) -> KvShape:
        """The cache as our scheduler has it."""
        drafts = self.speculation["num_drafts"] if self.speculation else 0
        if self.states == "none":
            tokens = tuple(window for window in self.windows if window != STATE)
            return KvShape(self.block_size, tokens, state_blocks=(len(self.windows) - len(tokens)) * (1 + drafts))
        windows = tuple(STATE_WINDOW if window == STATE else window for window in self.windows)
        states = tuple(group for group, window in enumerate(self.windows) if window == STATE)
        extra = drafts * len(states)
        aligned = self.states == "align"
        exports = aligned and self.checkpoints > 0
        return KvShape(
            self.block_size, windows, state_blocks=extra, states=states, aligned=aligned, exports=exports
        )

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def draw(version: str, mode: str, seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"{mode}:{seed}")
    size, seqs = rng.choice([4, 16]), rng.choice([2, 4, 8, 64])
    case = Case(version, mode, max(seqs, rng.choice([16, 64, 256, 1024])), seqs, 0, size)
    window = rng.choice([size, 2 * size + 3, 5 * size, 37])
    if mode in ("sync", "sync-hybrid"):
        case.is_async = False
    elif mode == "no-cache":
        case.caching = False
    elif mode == "no-chunking":
        case.chunked, case.max_num_batched_tokens = False, LONGEST
    elif mode == "threshold":
        case.threshold = rng.choice([1, 7, 16, 50])
    elif mode == "window":
        case.windows = (window,)
    elif mode == "windows":
        case.windows = rng.choice([(window, 3 * window), (0, window, 3 * window), (window, 0, 3 * window, window)])
    elif mode in PIPELINES:
        case.pipeline = rng.choice([2, 3, 4])
        case.is_async, case.v2_runner = mode != "pipeline-sync", mode == "pipeline-v2"
    if mode in ("hybrid", "sync-hybrid") or (mode in PIPELINES and rng.random() < 0.3):
        case.windows = rng.choice([(0, window), (0, window, window), (window, window, window, 0)])
    if mode == "retention":
        case.windows = rng.choice([(0, window), (0, window, 3 * window), (0, STATE), (STATE, STATE, 0)])
        case.states = "align" if STATE in case.windows else ""
        case.max_num_batched_tokens = max(case.max_num_batched_tokens, size)
        case.retention = rng.choice([None, size, 2 * size, 8 * size, 16 * size])
    if "states" in mode:
        case.windows = rng.choice([(0, STATE), (STATE, STATE, STATE, 0), (STATE, 0), (STATE, 0, STATE)])
        case.states = {"states-off": "none", "states-all": "all", "states-align": "align"}.get(mode, "")
        case.states = case.states or rng.choice(["all", "align"] if rules_of(version).writes_every_state else ["align"])
        case.caching, case.is_async = mode != "states-off", mode != "sync-states"
        case.max_num_batched_tokens = max(case.max_num_batched_tokens, size)
    _schedule_by_priority(case, rng, window)
    talks = mode in ("conversation", "states-talk", "offload-talk", "offload-answers") or (
        case.by_priority and rng.random() < 0.3
    )
    case.requests = conversations(rng, size) if talks else short_requests(rng, size)
    _label(case, rng)
    most = max(most_blocks(case, request["input"] + request["output"]) for request in case.requests)
    case.num_blocks = 1 + most + rng.choice([1, rng.randint(0, most), rng.randint(0, 6 * most), 5000])
    if "offload" in mode:
        case.is_async, case.prompts_only = mode != "sync-offload", mode != "offload-answers"
        case.tier_factor, case.store_threshold = rng.choice([1, 1, 1, 3]), rng.choice([0, 0, 0, 2])
        case.tier_blocks = rng.choice([most, 3 * most, 2000])
        case.slowest_copy = rng.choice([0, 3, 20])
        case.num_blocks = 1 + most + rng.randint(0, 2 * most)
    return case


def _label(case: Case, rng: random.Random) -> None:
    """Priorities and adapters of requests."""
    if case.by_priority:
        classes = rng.choice([2, 3, 10])
        case.requests = [{**request, "priority": rng.randrange(classes) - 1} for request in case.requests]
    if case.max_adapters is not None:
        kinds = [None, *range(1, rng.choice([2, 4, 9]) + 1)]
        case.requests = [{**request, "adapter": rng.choice(kinds)} for request in case.requests]


def _schedule_by_priority(case: Case, rng: random.Random, window: int) -> None:
    if case.mode == "lora":
        case.max_adapters, case.by_priority, case.is_async = rng.randint(1, 3), rng.random() < 0.3, rng.random() < 0.7
        return
    if "priority" not in case.mode:
        return
    case.by_priority, case.is_async = True, case.mode != "sync-priority"
    case.pipeline = rng.choice([2, 3, 4]) if case.mode.startswith("pipeline") else 1
    case.windows = rng.choice([(0,), (0,), (0,), (window,), (0, window), (0, window, 3 * window)])
    case.threshold = rng.choice([0, 0, 0, 7, 50])


def most_blocks(case: Case, tokens: int) -> int:
    """What the longest request needs at least, or it would never start."""
    factor = case.steps_under_way if case.version != "0.25" else 1
    return case.shape.most_blocks(tokens, factor * case.max_num_batched_tokens)


def short_requests(rng: random.Random, size: int) -> list[dict[str, Any]]:
    longest_input, longest_output = rng.choice([20, 100, 400]), rng.choice([3, 20, 120])
    share, last_turn = rng.random() < 0.6, rng.choice([1, 20, 100])
    requests = []
    for _ in range(rng.randint(5, 40)):
        tokens, prefix = rng.randint(1, longest_input), []
        if share and rng.random() < 0.8:
            shared = rng.randint(1, tokens)
            if rng.random() < 0.5:
                shared = max(1, shared // size * size)
            first = rng.randint(1, shared)
            prefix = [(rng.randint(1, 3), first)] + ([(rng.randint(4, 6), shared - first)] if shared > first else [])
        output = rng.randint(1, longest_output)
        turn = rng.randint(0, last_turn)
        requests.append({"turn": turn, "input": tokens, "output": output, "prefix": prefix, "answer": None})
    return requests


def conversations(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Users who go on with what was answered; some do not wait for the answer, some ask what others asked."""
    requests = []
    for user in range(rng.randint(2, 8)):
        prefix, turn = [(rng.randint(1, 2), rng.randint(1, 8 * size))], rng.randint(0, 30)
        for exchange in range(rng.randint(1, 5)):
            asked = 100 + 10 * (user if rng.random() < 0.7 else 0) + exchange
            prefix.append((asked, rng.randint(1, 4 * size)))
            answer, output = 1000 + asked, rng.randint(1, 8 * size)
            tokens = sum(count for _, count in prefix)
            request = {"turn": turn, "input": tokens, "output": output, "prefix": [*prefix], "answer": answer}
            requests.append(request)
            prefix.append((answer, output))
            turn += rng.randint(0, 2 * output)
    return requests
