"""Random engines and workloads, small enough that blocks run out, in each mode of the scheduler."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from infercast.engines.vllm.versions import Rule, rules_of
from infercast.serve.cache.blocks import STATE_WINDOW, KvShape, StateRules

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
    "states-export": "recurrent layers that leave a state before a step's end, too, in any order of scheduling",
    "chunks": "full attention and chunks, in any order of scheduling",
    "sizes": "full attention and windows in blocks of different sizes, in any order of scheduling",
    "pipeline-v1": "a pipeline under the V1 model runner",
    "pipeline-v2": "a pipeline under the V2 model runner",
    "pipeline-sync": "a pipeline without asynchronous scheduling",
    "priority": "requests with priorities, full attention or windows, prompts of conversations among them",
    "sync-priority": "the same, one step after the other",
    "pipeline-priority": "the same in a pipeline under the V2 model runner",
    "stops": "answers that end by EOS, with windows, chunks, pipelines or one step after the other",
    "stops-talk": "the same, with prompts that continue earlier answers",
    "watermark": "with a share of the blocks that is kept free",
    "unreserved": "without room for whole prompts, with a share of the blocks that is kept free or none",
    "storms": "many requests at once, whose answers grow far beyond the cache",
    "duplicates": "the same few prompts again and again",
    "sessions": "long sessions, with windows or a threshold",
    "aborts": "clients that leave, some with the last token under way",
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
    needed = {"pipeline-v1": not rules.has(Rule.V2_FOR_ALL), "states-all": rules.has(Rule.WRITES_EVERY_STATE)}
    needed["states-export"] = rules.has(Rule.EXPORTS_STATES)
    needed["own-interval"] = rules.has(Rule.OWN_INTERVAL)
    needed["drafts-groups"] = rules.has(Rule.KNOWS_DRAFTS) and not rules.has(Rule.HASHES_AHEAD)
    needed["adaptive"] = rules.has(Rule.THRESHOLD_EXEMPTS_SINGLE_REQUEST)  # came with the same release
    return needed.get(mode, True) and (mode != "retention" or rules.has(Rule.SPARSE_WINDOWS))


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
    chunklocal: bool = False
    """Windows are chunks."""
    block_sizes: tuple[int, ...] = ()
    """Tokens in a block of each group, where groups differ."""
    states: str = ""
    """``none``, ``align`` or ``all``: how recurrent layers, whose groups have a window of `STATE`, keep states."""
    checkpoints: int = 0
    """Of aligned states: blocks for one that a step leaves before its end (``num_prefill_checkpoint_blocks``)."""
    caching: bool = True
    chunked: bool = True
    threshold: int = 0
    adaptive: bool = False
    scheduled_tokens: int = 0
    prefill_interval: int = 1
    is_lone: bool = False
    """The interval is that of an engine outside of lockstep, counted from its last step with prompts."""
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
    encoder: int = 0
    """Tokens of images that a step encodes at most, and that are kept; 0: prompts have no images."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """turn, input, output, prefix [(content, tokens)], and answer: the content of the output, if it has a name; and
    abort (the turn in which its client leaves), priority, adapter, most (the ``max_tokens`` of a request whose answer
    ends before), images [(first token, tokens, those encoded, content)] and again (the request whose client had left
    and sends it again), if it has one."""

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
        retained = max(0, self.speculation.get("read_ahead", 0) - 1) if self.speculation else 0
        release, method = rules_of(self.version), self.speculation and self.speculation["method"]
        last = max((number for number, window in enumerate(self.windows) if window != STATE), default=0)
        drafting = last if method == "mtp" and release.has(Rule.KNOWS_DRAFTS) and len(self.windows) > 1 else None
        if self.block_sizes or self.chunklocal:
            size = min(self.block_sizes, default=self.block_size)
            kept = 0 if self.chunklocal else retained
            sizes = tuple(self.block_sizes)
            rules = StateRules(matches_all=release.has(Rule.SPARSE_WINDOWS))
            kinds = {"block_sizes": sizes, "chunked": self.chunklocal, "retained": kept, "drafting": drafting}
            kinds |= {"rules": rules}
            return KvShape(size, self.windows, **kinds)
        if self.states == "none":
            tokens = tuple(window for window in self.windows if window != STATE)
            held = (len(self.windows) - len(tokens)) * (1 + drafts)
            rules = StateRules(matches_all=release.has(Rule.SPARSE_WINDOWS))
            return KvShape(self.block_size, tokens, state_blocks=held, retained=retained, rules=rules)
        windows = tuple(STATE_WINDOW if window == STATE else window for window in self.windows)
        states = tuple(group for group, window in enumerate(self.windows) if window == STATE)
        extra = drafts * len(states)
        aligned = self.states == "align"
        rules = StateRules(
            exports=aligned and self.checkpoints > 0,
            renews=release.has(Rule.RENEWS_STATES),
            past_attention=release.has(Rule.PAST_ATTENTION),
            matches_all=release.has(Rule.SPARSE_WINDOWS),
        )
        kept = {"states": states, "aligned": aligned, "rules": rules, "retained": retained, "drafting": drafting}
        return KvShape(self.block_size, windows, state_blocks=extra, **kept)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def draw(version: str, mode: str, seed: int) -> Case:  # noqa: PLR0912, PLR0915 - a branch for each mode
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
    if mode in ("states-export", "chunks", "sizes"):
        _in_any_order(case, rng)
    elif "states" in mode:
        case.windows = rng.choice([(0, STATE), (STATE, STATE, STATE, 0), (STATE, 0), (STATE, 0, STATE)])
        case.states = {"states-off": "none", "states-all": "all", "states-align": "align"}.get(mode, "")
        case.states = case.states or rng.choice(
            ["all", "align"] if rules_of(version).has(Rule.WRITES_EVERY_STATE) else ["align"]
        )
        case.caching, case.is_async = mode != "states-off", mode != "sync-states"
        case.max_num_batched_tokens = max(case.max_num_batched_tokens, size)
    _schedule_by_priority(case, rng, window)
    _vary(case, rng, window)
    talks = mode in ("conversation", "states-talk", "offload-talk", "offload-answers", "stops-talk") or (
        (case.by_priority or mode in ("states-export", "chunks", "sizes")) and rng.random() < 0.3
    )
    make = {"storms": storm, "duplicates": duplicates, "sessions": sessions}.get(
        mode, conversations if talks else short_requests
    )
    case.requests = make(rng, size)
    if mode.startswith("stops"):
        with_stops(case, rng)
    if mode == "aborts":
        with_aborts(case, rng)
    label(case, rng)
    most = max(most_blocks(case, request["input"] + request["output"]) for request in case.requests)
    case.num_blocks = 1 + most + rng.choice([1, rng.randint(0, most), rng.randint(0, 6 * most), 5000])
    if mode == "storms":
        case.num_blocks = 1 + most + rng.choice([0, 1, 3, most // 2])
    if "offload" in mode:
        case.is_async, case.prompts_only = mode != "sync-offload", mode != "offload-answers"
        offload(case, rng, most)
    return case


def offload(case: Case, rng: random.Random, most: int) -> None:
    """A tier in the host's memory, and a cache that the longest request nearly fills with its ``most`` blocks."""
    case.tier_factor, case.store_threshold = rng.choice([1, 1, 1, 3]), rng.choice([0, 0, 0, 2])
    case.tier_blocks = rng.choice([most, 3 * most, 2000])
    case.slowest_copy = rng.choice([0, 3, 20])
    case.num_blocks = 1 + most + rng.randint(0, 2 * most)


def _in_any_order(case: Case, rng: random.Random) -> None:
    """Caches of kinds that fewer models have, under any of the ways to schedule."""
    size, window = case.block_size, rng.choice([1, 4, 5, 16]) * case.block_size
    if case.mode == "states-export":
        case.windows = rng.choice([(0, STATE), (STATE, STATE, STATE, 0), (STATE, 0), (STATE, 0, STATE)])
        case.states, case.checkpoints = "align", 1
        case.max_num_batched_tokens = max(case.max_num_batched_tokens, 2 * size)
    elif case.mode == "chunks":
        case.chunklocal = True
        case.windows = rng.choice([(window, 0), (window, window, window, 0), (0, window)])
    else:
        # The window of some is shorter than a block of full attention.
        factor = rng.choice([2, 2, 4])
        window = rng.choice([size, 2 * size + 3, 4 * size, 8 * size, 37])
        narrow = (window,) * rng.choice([1, 5])
        is_first = rng.random() < 0.5
        case.windows = (0, *narrow) if is_first else (*narrow, 0)
        case.block_sizes = tuple(size if each else factor * size for each in case.windows)
    case.is_async, case.by_priority = rng.random() < 0.7, rng.random() < 0.2
    case.caching = case.states != "" or rng.random() < 0.9
    case.threshold = rng.choice([0, 0, 0, 7, 50]) if case.states == "" else 0
    if rng.random() < 0.2 and rules_of(case.version).has(Rule.SPARSE_WINDOWS) and case.mode != "chunks":
        case.retention = rng.choice([None, 4 * size, 16 * size])
    if rng.random() < 0.2:
        case.pipeline = rng.choice([2, 3, 4])
        case.v2_runner = rules_of(case.version).has(Rule.V2_FOR_ALL) or rng.random() < 0.5


def label(case: Case, rng: random.Random) -> None:
    """Priorities and adapters of requests."""
    if case.by_priority:
        classes = rng.choice([2, 3, 10])
        case.requests = [{**request, "priority": rng.randrange(classes) - 1} for request in case.requests]
    if case.max_adapters is not None:
        kinds = [None, *range(1, rng.choice([2, 4, 9]) + 1)]
        case.requests = [{**request, "adapter": rng.choice(kinds)} for request in case.requests]


def _vary(case: Case, rng: random.Random, window: int) -> None:
    """Engines of the modes that are about their requests, or about what a start has to leave free."""
    if case.mode not in (
        "stops",
        "stops-talk",
        "watermark",
        "unreserved",
        "storms",
        "duplicates",
        "sessions",
        "aborts",
    ):
        return
    case.is_async, case.caching = rng.random() < 0.75, rng.random() < 0.85
    case.windows = rng.choice([(0,), (0,), (0,), (window,), (0, window), (window, 0, 3 * window)])
    case.threshold = rng.choice([0, 0, 0, 7, 50])
    if case.mode.startswith("stops") and rng.random() < 0.3:
        case.pipeline, case.is_async = rng.choice([2, 3, 4]), True
        case.v2_runner = rules_of(case.version).has(Rule.V2_FOR_ALL) or rng.random() < 0.5
    if case.mode == "watermark" or (case.mode == "unreserved" and rng.random() < 0.3):
        case.watermark = rng.choice([0.01, 0.05, 0.1, 0.3])
    case.reserves_prompts = case.mode != "unreserved"
    if case.mode == "storms":
        case.max_num_seqs, case.max_num_batched_tokens = 64, rng.choice([64, 256, 1024])


def with_stops(case: Case, rng: random.Random) -> None:
    """Most answers end before what their requests ask for, some up to the longest length."""
    for request in case.requests:
        room = case.max_model_len - request["input"] - request["output"]
        more = min(rng.choice([0, 1, 2, rng.randint(1, 60), LONGEST]), room)
        if more > 0:
            request["most"] = request["output"] + more


def with_aborts(case: Case, rng: random.Random) -> None:
    """Half of the clients leave: at once, in the middle or about when the last token comes."""
    for request in [each for each in case.requests if rng.random() < 0.5]:
        later = rng.choice([0, 1, rng.randint(0, 30), rng.randint(0, request["output"] + 3)])
        request["abort"] = request["turn"] + later


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


def storm(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Short prompts, long answers, all at once."""
    share, last_turn = rng.random() < 0.5, rng.choice([0, 4])
    requests = []
    for _ in range(rng.randint(12, 40)):
        tokens = rng.randint(1, 4 * size)
        prefix = [(rng.randint(1, 3), rng.randint(1, tokens))] if share else []
        turn, output = rng.randint(0, last_turn), rng.randint(2 * size, 8 * size)
        requests.append({"turn": turn, "input": tokens, "output": output, "prefix": prefix, "answer": None})
    return requests


def duplicates(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """A few prompts, of whole blocks or nearly, that come many times, with the same answer or another."""
    prompts = [
        (max(1, rng.randint(1, 6) * size + rng.choice([-1, 0, 1])), rng.randint(1, 3 * size))
        for _ in range(rng.randint(1, 3))
    ]
    requests = []
    for _ in range(rng.randint(8, 50)):
        content = rng.randrange(len(prompts))
        tokens, output = prompts[content]
        answer = 1000 + content if rng.random() < 0.7 else None
        turn = rng.choice([0, rng.randint(0, 60)])
        prefix = [(1 + content, tokens)]
        requests.append({"turn": turn, "input": tokens, "output": output, "prefix": prefix, "answer": answer})
    return requests


def sessions(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Few users with many turns, whose prompts grow by every answer."""
    requests = []
    for user in range(rng.randint(1, 5)):
        prefix, turn = [(rng.randint(1, 2), rng.randint(1, 5 * size))], rng.randint(0, 20)
        for exchange in range(rng.randint(4, 10)):
            prefix.append((100 * user + exchange + 10, rng.randint(1, 2 * size)))
            answer, output = 10_000 + 100 * user + exchange, rng.randint(1, 3 * size)
            tokens = sum(count for _, count in prefix)
            if tokens + output >= LONGEST:
                break
            request = {"turn": turn, "input": tokens, "output": output, "prefix": [*prefix], "answer": answer}
            requests.append(request)
            prefix.append((answer, output))
            turn += output + rng.randint(0, 20)
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
