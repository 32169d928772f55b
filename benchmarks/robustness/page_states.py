"""Draw states of the page, ask its HTTP API, and hold each number against the command that the answer prints.

    python benchmarks/robustness/page_states.py [--count 100] [--seed 0]

The command runs as printed, with ``--json``; a forecast is asked for from Python, too. Every number that both have must
be equal in every digit, and what one side refuses the other must refuse. Exit code 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from printed import ask

import infercast
from infercast.engines.base import engine_named
from infercast.forecast.cost import tariff_of
from infercast.web import state as page

State = dict[str, Any]
Api = Callable[[str, State], dict[str, Any]]  # (question, state) -> answer
AT_ONCE = ("simulate", "memory")  # Questions of the API that are no jobs, unless they take too long
PYTHON_TRAFFIC = (
    *("rate", "arrival", "burstiness", "concurrency", "prefix_groups", "seed"),
    *("input_len", "output_len", "prefix_len", "num_requests"),
)
PYTHON_GROUPS = ("hardware", "layout", "engine", "model")


def drawn_state(rng: Random) -> tuple[str, State]:
    """A question of the page, and the fields that are not as by default."""
    model = rng.choice(["qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "phi-4", "gemma-3-4b"])
    state: State = {"model": model, "gpu": rng.choice(["h100-sxm", "h200-sxm", "a100-sxm", "l40s", "rtx-4090"])}
    question = rng.choices(["simulate", "memory", "energy", "curve", "plan", "capacity"], [84, 4, 4, 4, 2, 2])[0]
    state |= _load(rng, question) | _lengths(rng) | _promise(rng, question)
    state |= rng.choice([{}, {}, {"tensor_parallel_size": 2}, {"data_parallel_size": 2}, {"pipeline_parallel_size": 2}])
    state |= rng.choice([{}, {}, {"max_num_seqs": 16}, {"max_num_batched_tokens": 1024}, {"quantization": "fp8"}])
    state |= rng.choice([{}, {}, {}, {"engine": "sglang"}, {"enable_prefix_caching": False}, {"api_server": False}])
    state |= rng.choice([{}, {}, {"provider": "aws"}, {"price_per_gpu_hour": 1.7}, {"pue": 1.3, "grid_carbon": 400.0}])
    if question == "plan":
        state |= {"gpus": rng.sample(["l4", "l40s", "h100-sxm"], 2), "max_gpus": 2, "odds": rng.choice([0.0, 0.8])}
    if question == "energy":
        state["power_limits"] = rng.choice(["300,350", "260:340:2"])
    if question == "curve":
        state |= {"curve_requests": rng.choice([50, 120]), "rates": rng.choice(["2,6", "1:9:3"])}
    asked = {name for name, field in page.BY_NAME.items() if question in field.questions}
    return question, {name: value for name, value in state.items() if name in asked}


def _load(rng: Random, question: str) -> State:
    if question in ("simulate", "energy") and rng.random() < 0.2:
        return {"concurrency": rng.choice([1, 7, 40])}
    state: State = {"rate": rng.choice([0.5, 2.0, 3.0, 4.7, 9.0])}
    state |= rng.choice([{}, {}, {"num_requests": rng.choice([30, 200])}, {"seed": 3}])
    state |= rng.choice([{}, {}, {"arrival": "gamma", "burstiness": 0.5}, {"arrival": "constant"}])
    if question == "simulate" and rng.random() < 0.1:
        state |= {"turns": "uniform:2:4", "num_requests": 200}
    return state


def _lengths(rng: Random) -> State:
    return rng.choice(
        [
            {"input_len": "lognormal:700:1.0", "output_len": "100"},
            {"input_len": "uniform:50:900", "output_len": "normal:80:20"},
            {"input_len": "300", "output_len": "40"},
            {"prefix_len": 256, "prefix_groups": 3, "output_len": "50"},
        ]
    )


def _promise(rng: Random, question: str) -> State:
    slo = rng.choice(["ttft_p99<1s,tpot_p95<40ms", "ttft_p99<300ms", "tpot_mean<25ms,e2e_p90<6s", "ttft_p50<80ms"])
    needed = question in ("plan", "capacity")
    return {"slo": slo} if needed or rng.random() < 0.7 else {}


@contextmanager
def served() -> Iterator[Api]:
    """The HTTP API of a server of our own."""
    words = [sys.executable, "-m", "infercast", "web", "--port", "0", "--workers", "1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            if not (line := process.stdout.readline()):
                raise SystemExit("the server of the page did not start")
            text += line
        try:
            root = f"{json.loads(text)['page'].rstrip('/')}/api/v1"
            yield lambda question, state: _answer(root, question, state)
        finally:
            process.terminate()


def _answer(root: str, question: str, state: State) -> dict[str, Any]:
    if question in AT_ONCE:
        found = _send(f"{root}/{question}", {"state": state})
        if found.get("error", {}).get("type") != "TooLongError":
            return found
    said = _send(f"{root}/jobs", {"question": question, "state": state})
    while said["state"] in ("queued", "running"):
        time.sleep(0.2)
        said = _send(f"{root}/jobs/{said['id']}")
    return said.get("result", said)


def _send(address: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if document is None else json.dumps(document).encode()
    try:
        with urlopen(Request(address, body, {"content-type": "application/json"})) as reply:
            return json.load(reply)
    except HTTPError as problem:
        return json.load(problem)


def from_python(state: State) -> dict[str, Any] | None:
    """The forecast of `infercast.simulate` with the arguments of a state; None where it has no such argument."""
    engine = engine_named(state.get("engine"))
    deploying, traffic, settings, others = {}, {}, {}, {}
    for name, value in state.items():
        field = page.BY_NAME[name]
        if name in PYTHON_TRAFFIC:
            traffic[name] = value
        elif field.setting:
            settings[page.own_name(name, engine)] = value
        elif field.group in PYTHON_GROUPS and name not in ("model", "gpu", "engine", "router"):
            deploying[name] = value
        elif name == "slo":
            others[name] = value
        elif field.group not in ("model", "hardware", "engine", "money"):
            return None
    whole = page.read_state(state)
    traffic.setdefault("rate", whole["rate"])
    found = infercast.simulate(
        state["model"], gpu=state["gpu"], settings=engine.settings(settings), price=tariff_of(whole),
        **deploying, **traffic, **others,
    )  # fmt: skip
    return json.loads(json.dumps(found.to_dict()))


def numbers_in(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, switch and missing value of a document, with where it stands."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from numbers_in(value, f"{path}.{name}")
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from numbers_in(value, f"{path}[{place}]")
    elif not isinstance(document, str):
        yield path, document


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Numbers that only one of two documents has, or that are not the same in both."""
    mine, theirs = dict(numbers_in(one)), dict(numbers_in(other))
    return [
        f"{path}: {mine.get(path, 'absent')} and {theirs.get(path, 'absent')}"
        for path in mine | theirs
        if mine.get(path, "absent") != theirs.get(path, "absent")
    ]


def compared(question: str, state: State, api: Api) -> tuple[str, list[str]]:
    """The command that the page prints for a state, and what differs."""
    answer = api(question, state)
    if "error" in answer:
        command = page.to_command(page.read_state(state), question)
        printed = ask(shlex.split(command)[1:])
        refusals = [each.get("error", {}).get("message") for each in (answer, printed)]
        return command, [] if refusals[0] == refusals[1] else [f"{refusals[0]} and {refusals[1]}"]
    told = answer["forecast" if question == "simulate" else question]
    command = answer["command"]
    printed = ask(shlex.split(command)[1:])
    if question == "memory":  # the page has parts of its own beside what the command prints
        told = {name: value for name, value in told.items() if name in printed}
    found = differing(told, printed)
    if question == "simulate" and (own := from_python(state)) is not None:
        found += [f"Python {each}" for each in differing(told, own)]
    return command, found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Hold answers of the page against the commands that it prints.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, wrong, start = Random(asked.seed), 0, time.monotonic()
    with served() as api:
        for number in range(1, asked.count + 1):
            question, state = drawn_state(rng)
            command, found = compared(question, state, api)
            if found:
                wrong += 1
                print(f"{command}\n  {len(found)} differ: {'; '.join(found[:3])[:600]}", flush=True)
            if number % 10 == 0:
                print(f"{number} drawn, {wrong} differ, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{asked.count} states drawn, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
