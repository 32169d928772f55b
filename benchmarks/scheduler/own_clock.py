"""The engines' own schedulers on our clock: they decide what is computed, and `StepPredictor` how long it takes.

    python benchmarks/scheduler/own_clock.py sglang [--tree FOLDER] [--workload steady]
    python benchmarks/scheduler/own_clock.py vllm [--version 0.32]

Prints how many steps of `simulate` of the same requests are equal, and by how much times differ at most. Needs what the
engine's scheduler imports; see benchmarks/results/schedulers.md.
"""

import argparse
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from infercast.engines.base import engine_named
from infercast.forecast.deploy import deploy
from infercast.forecast.kernels import StepPredictor
from infercast.serve.simulation import clients_of, simulate
from infercast.serve.workload.request import Workload
from infercast.serve.workload.synthetic import session_workload, synthetic_workload

CHAT = {"input_lengths": "lognormal:700:0.9:8:6000", "output_lengths": "lognormal:120:0.7:2:600"}
LONG = {"input_lengths": "uniform:8000:24000", "output_lengths": "uniform:50:200"}
TURNS = {"input_lengths": "uniform:200:900", "turn_lengths": "uniform:30:200", "output_lengths": "uniform:40:200"}


@dataclass(frozen=True)
class Load:
    """Requests, and settings of either engine."""

    workload: Workload
    sglang: dict[str, Any] = field(default_factory=dict)
    vllm: dict[str, Any] = field(default_factory=dict)
    model: str = "llama-3.1-8b"


def loads() -> dict[str, Load]:
    """Requests and settings, by name."""
    small = {"sglang": {"max_total_tokens": 24_000}, "vllm": {"num_gpu_blocks_override": 1_500, "max_model_len": 8192}}
    crowd = {"input_lengths": "uniform:100:400", "output_lengths": "uniform:200:500", "declared_length": 500}
    alone = {"sglang": {"disable_overlap_schedule": True}, "vllm": {"async_scheduling": False}}
    mixed = {"sglang": {"enable_mixed_chunk": True}, "vllm": {"max_num_batched_tokens": 1024}}
    apart = {"sglang": {"disable_radix_cache": True}, "vllm": {"enable_prefix_caching": False}}
    turns = session_workload(rate=6.0, count=300, turns="uniform:2:6", think="exponential:2", seed=5, **TURNS)
    prefixes = {"prefix_length": 400, "prefix_groups": 6}
    return {
        "steady": Load(synthetic_workload(rate=15.0, count=400, seed=1, **CHAT)),
        "crowded": Load(synthetic_workload(rate=60.0, count=600, seed=2, **CHAT)),
        "64 clients": Load(synthetic_workload(concurrency=64, count=400, seed=3, **CHAT)),
        "long prompts": Load(synthetic_workload(rate=1.5, count=60, seed=4, **LONG)),
        "conversations": Load(turns),
        "shared prefixes": Load(synthetic_workload(rate=30.0, count=400, seed=6, **prefixes, **CHAT)),
        "small cache": Load(synthetic_workload(rate=80.0, count=200, seed=7, ignore_eos=False, **crowd), **small),
        "one step at a time": Load(synthetic_workload(rate=15.0, count=300, seed=8, **CHAT), **alone),
        "mixed chunks": Load(synthetic_workload(rate=25.0, count=300, seed=9, **CHAT), **mixed),
        "without a cache": Load(synthetic_workload(rate=25.0, count=300, seed=10, **CHAT), **apart),
        "a small model": Load(synthetic_workload(rate=80.0, count=600, seed=11, **CHAT), model="qwen3-0.6b"),
    }


class Step(NamedTuple):
    """What a scheduler wants computed: [request, new, computed] of prompts and of sequences that decode."""

    prompts: list[list[int]]
    decodes: list[list[int]]
    unfinished: int  # Prompts that sample no token

    @property
    def decision(self) -> tuple[Any, ...]:
        """What `simulate` knows of it, too: every prompt, and the decode batch by its size and context."""
        return sorted(self.prompts), len(self.decodes), sum(each[2] for each in self.decodes)


class Engine(Protocol):
    """A scheduler in the order in which its engine calls it."""

    def add(self, index: int) -> None: ...

    def plan(self) -> Step | None: ...

    def finish(self) -> list[tuple[int, int]]:
        """Take in the oldest result; its requests, and how many tokens of an answer each has now."""

    def is_busy(self) -> bool: ...


def as_cases(workload: Workload) -> list[dict[str, Any]]:
    """Requests as the harnesses of the engines take them, with small numbers for the names of contents."""
    names: dict[int, int] = {}

    def number(content: int) -> int:
        return names.setdefault(content, len(names) + 1)

    return [
        {
            "turn": 0, "input": each.num_input, "output": each.num_output, "declared": each.num_declared,
            "most": each.num_declared, "prefix": [(number(name), count) for name, count in each.prefix],
            "answer": None if each.answer is None else number(each.answer), "priority": each.priority,
        }
        for each in workload.requests
    ]  # fmt: skip


class Sglang:
    """SGLang's scheduler; a turn of its loop plans a step and takes in a result."""

    def __init__(self, predictor: StepPredictor, workload: Workload) -> None:
        from sglang_cases import Case  # noqa: PLC0415
        from sglang_scheduler import Real  # noqa: PLC0415 - imports SGLang, see `sglang_tree.use`

        settings: Any = predictor.deployment.settings
        case = Case(
            "own clock", settings.chunk, settings.max_prefill_tokens, settings.max_running_requests,
            predictor.num_blocks * predictor.block_size, predictor.block_size, not settings.disable_overlap_schedule,
            not settings.disable_radix_cache, settings.enable_mixed_chunk, settings.schedule_policy == "lpm",
            settings.disable_radix_cache, settings.schedule_conservativeness, settings.max_model_len,
            requests=as_cases(workload),
        )  # fmt: skip
        self.real, self.requests = Real(case), dict[int, Any]()
        self.written: dict[int, int] = {}
        self.results: deque[list[tuple[int, int]]] = deque()

    def add(self, index: int) -> None:
        self.real.add(index)
        self.requests[index] = self.real.scheduler.waiting_queue[-1]

    def plan(self) -> Step | None:
        rows, *_ = self.real.turn()
        now = {index: len(each.output_ids) for index, each in self.requests.items()}
        found = [(index, count) for index, count in now.items() if count > self.written.get(index, 0)]
        self.written |= now
        for index in [index for index, each in self.requests.items() if each.finished()]:
            del self.requests[index]
        self.results.append(found)
        if not rows:
            return None
        batch = self.real.scheduler.last_batch
        if batch.forward_mode.is_decode():
            return Step([], rows, 0)
        decoding = {int(each.rid) for each in batch.decoding_reqs or ()}
        prompts = [each for each in rows if each[0] not in decoding]
        return Step(prompts, [each for each in rows if each[0] in decoding], 0)

    def finish(self) -> list[tuple[int, int]]:
        found = [each for step in self.results for each in step]
        self.results.clear()
        return found

    def is_busy(self) -> bool:
        return self.real.is_busy()


class Vllm:
    """vLLM's scheduler."""

    def __init__(self, predictor: StepPredictor, workload: Workload) -> None:
        from scheduling_cases import Case  # noqa: PLC0415
        from vllm_scheduler import Real  # noqa: PLC0415 - imports vLLM, see `vllm_tree.use`

        settings: Any = predictor.deployment.settings
        case = Case(
            settings.engine.partition("@")[2] or "0.25", "own clock", settings.max_num_batched_tokens,
            settings.max_num_seqs, predictor.num_blocks + 1, predictor.block_size,
            caching=settings.enable_prefix_caching, is_async=settings.async_scheduling,
            max_model_len=settings.max_model_len, requests=as_cases(workload),
        )  # fmt: skip
        self.real, self.results, self.case = Real(case), deque[Any](), case

    def add(self, index: int) -> None:
        self.real.add(index)

    def plan(self) -> Step | None:
        if not self.real.is_busy():
            return None
        (rows, *_), handle = self.real.schedule()
        if not rows:
            return None
        self.results.append(handle)
        prompts = [each for each in rows if each[1] > 1 or each[2] < self.case.requests[each[0]]["input"]]
        cut = sum(str(each) not in handle[1] for each, *_ in prompts)
        return Step(prompts, [each for each in rows if each not in prompts], cut)

    def finish(self) -> list[tuple[int, int]]:
        handle = self.results.popleft()
        held = {key: self.real.scheduler.requests.get(key) for key in handle[0].num_scheduled_tokens}
        before = {key: each.num_output_tokens for key, each in held.items() if each is not None}
        self.real.complete(handle)
        counts = {key: each.num_output_tokens for key, each in held.items() if each is not None}
        return [(int(key), count) for key, count in counts.items() if count > before[key]]

    def is_busy(self) -> bool:
        return False


class Served(NamedTuple):
    """When requests were sent, when their first and last tokens reached the clients, and all decisions."""

    sent: np.ndarray
    first: np.ndarray
    last: np.ndarray
    decisions: list[Any]

    def times(self, workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """TTFT, TPOT and end."""
        counts = np.array([each.num_output - 1 for each in workload.requests])
        several = counts > 0
        return self.first - self.sent, ((self.last - self.first)[several] / counts[several]), self.last


def serve(engine: Engine, predictor: StepPredictor, workload: Workload) -> Served:
    """The loop of an engine around its scheduler, with a predictor in place of its model."""
    replica, clock, decisions = predictor.replica, predictor.clock, list[Any]()
    clients, under_way = clients_of(replica, workload), 0
    sent, first, last = np.full((3, len(workload.requests)), np.nan)

    def take_in() -> None:
        ready, tokens = predictor.take_in(), engine.finish()
        time = ready + replica.token_path_seconds + replica.token_turn_seconds * len(tokens)
        for index, count in tokens:
            if np.isnan(first[index]):
                first[index] = time
            if count == workload.requests[index].num_output:
                last[index] = time
                clients.answer(time, index)

    while True:
        clients.move_to(clock.clock)
        while (arrival := clients.next_arrival) is not None and arrival <= clock.clock:
            index, _, sent[index] = clients.pop()
            engine.add(index)
        step = engine.plan()
        if step is not None:
            decisions.append(step.decision)
            prompts, decodes = ([(new, done) for _, new, done in step.prompts], [each[2] for each in step.decodes])
            predictor.launch(prompts, decodes, unfinished=step.unfinished)
            under_way += 1
            if under_way == predictor.steps_under_way:
                take_in()
                under_way -= 1
        elif under_way:
            take_in()
            under_way -= 1
        elif not engine.is_busy():
            if clients.next_arrival is None:
                return Served(sent, first, last, decisions)
            clock.sleep_until(clients.next_arrival + replica.wake_up_seconds)


def simulated(predictor: StepPredictor, workload: Workload) -> Served:
    """The same of our own scheduler."""
    decisions: list[Any] = []

    def note(_: Any, plan: Any) -> None:
        rows = zip(plan.sequences, plan.new_tokens, plan.computed, strict=True)
        decisions.append((sorted([each.index, *counts] for each, *counts in rows), plan.decodes, plan.decode_context))

    record = simulate(predictor.replica, workload, jump=False, observe=note)
    return Served(record.sent_at, record.first_token, record.last_token, decisions)


def flat(decision: tuple[Any, ...]) -> tuple[Any, ...]:
    """A decision whatever a scheduler keeps apart: sequences that compute one token count as decoding."""
    rows, decodes, context = decision
    single = [each for each in rows if each[1] == 1]
    return [each for each in rows if each[1] > 1], decodes + len(single), context + sum(each[2] for each in single)


def compare(name: str, load: Load, engine: str) -> tuple[int, int, list[float]]:
    """Equal steps, all steps, and the largest relative differences of TTFT, TPOT and the end of any request."""
    is_sglang = engine.startswith("sglang")
    settings = engine_named(engine).settings(load.sglang if is_sglang else load.vllm)
    deployment = deploy(load.model, "h200-sxm", settings, engine=engine, api_server=False)
    predictor = StepPredictor(deployment)
    driven = (Sglang if is_sglang else Vllm)(predictor, load.workload)
    theirs, ours = serve(driven, predictor, load.workload), simulated(StepPredictor(deployment), load.workload)
    steps = [(flat(one), flat(other)) for one, other in zip(theirs.decisions, ours.decisions, strict=False)]
    equal, most = sum(one == other for one, other in steps), max(len(theirs.decisions), len(ours.decisions))
    if equal < most:
        at = next((number for number, (one, other) in enumerate(steps) if one != other), len(steps))
        print(f"{name}, step {at}: {theirs.decisions[at:][:1]}, simulated {ours.decisions[at:][:1]}", file=sys.stderr)
    pairs = zip(theirs.times(load.workload), ours.times(load.workload), strict=True)
    return equal, most, [float(np.max(np.abs(one / other - 1))) for one, other in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["sglang", "vllm"])
    parser.add_argument("--version")
    parser.add_argument("--tree", type=Path, help="a folder with the package; default: the wheel's, fetched once")
    parser.add_argument("--workload", choices=[*loads()])
    args = parser.parse_args()
    if args.family == "sglang":
        import sglang_tree  # noqa: PLC0415

        version = args.version or sglang_tree.VERSION
        sglang_tree.use(sglang_tree.find(args.tree, version), version)
    else:
        import vllm_tree  # noqa: PLC0415

        version = args.version or "0.25"
        vllm_tree.use(vllm_tree.find(version, args.tree))
    print(f"{args.family} {version}: steps equal to those of simulate; the largest difference of TTFT, TPOT, end")
    for name, load in loads().items():
        if args.workload in (None, name):
            equal, most, errors = compare(name, load, f"{args.family}@{version}")
            shown = "  ".join(f"{100 * each:.4f} %" for each in errors)
            print(f"{name:<20} {equal:>7,} of {most:>7,}  {shown}", flush=True)


if __name__ == "__main__":
    main()
