"""Draw commands, and hold every number that they print against the command that stands for it, to the last digit.

    python benchmarks/robustness/printed.py [--count 200] [--seed 0]

Rows of plans and the plan asked again, points of sweeps, layouts, power limits and speculation against `simulate`;
`explain-command` and the command with its advice against `simulate`; Python against the command line. Exit code 1 if
one number differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import infercast
from infercast.cli.main import run
from infercast.report.forecast import forecast_dict

MODELS = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b")
GPUS = ("h100-sxm", "h200-sxm", "a100-sxm", "l40s")
TIMES = ("ttft_ms", "tpot_ms")
RATES = ("output_tokens_per_s", "slo_headroom", "usd_per_hour", "joules_per_output_token")
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'


class Claim(NamedTuple):
    """What was printed, beside what the command that stands for it prints."""

    kind: str
    command: str
    printed: dict[str, Any]
    found: dict[str, Any]

    @property
    def differing(self) -> list[str]:
        """Numbers that both have and that differ."""
        both = [name for name in self.printed if name in self.found]
        assert both, self
        return [name for name in both if self.printed[name] != self.found[name]]


def ask(words: list[str]) -> Any:
    """What a command prints as JSON; an error is an answer, too."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["infercast", *words, "--json"]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.suppress(SystemExit),
        ):
            run()
    finally:
        sys.argv = before
    return json.loads(out.getvalue() or err.getvalue().splitlines()[-1])


def numbers(answer: dict[str, Any]) -> dict[str, Any]:
    """The numbers of an answer that are compared, as far as it has them."""
    found = {f"{name} {part}": value for name in TIMES for part, value in (answer.get(name) or {}).items()}
    return found | {name: answer[name] for name in RATES if answer.get(name) is not None}


def load(rng: Random) -> list[str]:
    """How many requests come, and how long they are."""
    words = ["--rate", f"{rng.choice([2, 5, 8.5])}"]
    words += ["-n", f"{rng.choice([30, 60])}"] if rng.random() < 0.9 else []
    words += ["--seed", f"{rng.randint(0, 9)}"] if rng.random() < 0.5 else []
    return words + (["--input-len", "uniform:50:900", "--output-len", "40"] if rng.random() < 0.5 else [])


def engine(rng: Random) -> list[str]:
    """Which engine, and how it is set."""
    name = rng.choice(["vllm", "vllm@0.25", "sglang"])
    return ["--engine", name, *(["--max-num-seqs", "64"] if name == "vllm" and rng.random() < 0.5 else [])]


def plans(rng: Random) -> Iterator[Claim]:
    """Rows of a plan, and the same plan by the file that asks again."""
    model, slo = rng.choice(MODELS[:4]), "ttft_p99<1s,tpot_p95<40ms"
    asked, which = [*load(rng), "--slo", slo], rng.choice([["vllm"], ["sglang"]])
    gpus, most = ",".join(rng.sample(GPUS, 2)), rng.choice(["2", "3"])
    with tempfile.TemporaryDirectory() as folder:
        words = ["plan", model, *asked, "--gpu", gpus, "--max-gpus", most, "--engine", *which, "--workers", "1"]
        found = ask([*words, "--out", f"{folder}/plan"])
        again = shlex.split((Path(folder) / "plan" / "again.sh").read_text().splitlines()[-1])[1:-1]
    yield Claim("again.sh", shlex.join(again), {"plan": found}, {"plan": ask(again)})
    rows = [row for row in (found["winner"], *found["simulated"]) if row and row.get("ttft_ms")]
    # Several replicas of SGLang have a server each, and data parallelism has one for all: no command stands for them.
    rows = [row for row in rows if which == ["vllm"] or row["replicas"] == 1]
    for row in rng.sample(rows, min(4, len(rows))):
        options = [word for name, value in row["options"].items() for word in option(name, value)]
        copies = row["replicas"] * row["data_parallel_size"]
        options += ["--data-parallel-size", f"{copies}"] if copies > 1 else []
        line = ["simulate", model, "--gpu", row["gpu"], "--engine", row["engine"], *asked, *options, "--allow-overload"]
        printed = {**numbers(row), "usd_per_hour": row["cost_per_hour"]}
        yield Claim("plan", shlex.join(line), printed, numbers(ask(line)))


def option(name: str, value: Any) -> list[str]:
    """As it stands on a command line."""
    return [f"--{name}"] if value is True else [f"--{name}", f"{value}"]


def sweeps(rng: Random) -> Iterator[Claim]:
    """Points along rates, clients or a setting."""
    model, gpu, asked = rng.choice(MODELS), rng.choice(GPUS[:2]), load(rng)[2:]
    rest, axis = [model, "--gpu", gpu, *engine(rng), *asked], rng.choice(["rate", "concurrency", "setting"])
    if axis == "setting":
        rest[rest.index("--engine") + 1] = "vllm"
        rest += ["--rate", "5"]
    values = {"rate": ["2", "7"], "concurrency": ["2", "9"], "setting": ["512", "4096"]}[axis]
    along = {"rate": "--rates", "concurrency": "--concurrencies"}.get(axis)
    given = [along, ",".join(values)] if along else ["--setting", f"max_num_batched_tokens={','.join(values)}"]
    found = ask(["sweep", *rest, *given])
    for value, point in zip(values, found["points"], strict=True):
        own = [f"--{axis}", value] if along else ["--max-num-batched-tokens", value]
        line = ["simulate", *rest, *own, "--allow-overload"]
        yield Claim("sweep", shlex.join(line), numbers(point), numbers(ask(line)))


def layouts(rng: Random) -> Iterator[Claim]:
    """Layouts of a number of GPUs."""
    model, gpu, lengths = rng.choice(MODELS), rng.choice(GPUS), ["--input-len", "300", "--output-len", "50"]
    asked = [*load(rng)[:2], *rng.choice([[], ["-n", "40"]]), *lengths]
    for row in ask(["layouts", model, "--gpu", gpu, "--gpus", "2", *asked]):
        if not row["fits"]:
            continue
        sizes = [word for kind in ("tensor", "pipeline", "data")
                 for word in (f"--{kind}-parallel-size", f"{row[f'{kind}_parallel_size']}")]  # fmt: skip
        sizes += ["--enable-expert-parallel"] if row["enable_expert_parallel"] else []
        line = ["simulate", model, "--gpu", gpu, *asked, *sizes, "--allow-overload"]
        interval, found = "output_tokens_per_s_interval", ask(line)
        yield Claim(
            "layouts", shlex.join(line), *({**numbers(each), interval: each[interval]} for each in (row, found))
        )


def energy(rng: Random) -> Iterator[Claim]:
    """Points of power limits."""
    rest = [rng.choice(MODELS), "--gpu", "h100-sxm", *engine(rng), *load(rng)]
    for point in ask(["energy", *rest, "--power-limits", "400,600"])["points"]:
        line = ["simulate", *rest, "--power-limit", f"{point['value']:g}", "--allow-overload"]
        yield Claim("energy", shlex.join(line), numbers(point), numbers(ask(line)))


def speculation(rng: Random) -> Iterator[Claim]:
    """Clients with and without drafts."""
    lengths = ["--input-len", f"{rng.choice([100, 300])}", "--output-len", "30", "-n", "24"]
    rest, drafts = (
        [rng.choice(MODELS[:4]), "--gpu", "h200-sxm"],
        ["--acceptance", "0.6", "--speculative-config", DRAFTS],
    )
    for point in ask(["speculate", *rest, *lengths, *drafts, "--concurrencies", "1,6"])["points"]:
        for name, more in (("with", drafts), ("without", [])):
            line = ["simulate", *rest, *lengths, "--concurrency", f"{point['clients']}", *more]
            found = ask(line)
            seen = {f"{each}_p50_ms": found[f"{each}_ms"]["p50"] for each in ("ttft", "tpot")}
            seen["output_tokens_per_s"] = found["output_tokens_per_s"]
            yield Claim("speculate", shlex.join(line), point[name], seen)


def advice(rng: Random) -> Iterator[Claim]:
    """A command's forecast, and that of the command with the advice."""
    model, seqs = rng.choice(["meta-llama/Llama-3.2-1B", "Qwen/Qwen3-8B"]), rng.choice(["8", "16"])
    serve, rest = (
        f"vllm serve {model} --max-num-seqs {seqs}",
        ["--gpu", "h100-sxm", "--rate", "15", "-n", "60", "--output-len", "40"],
    )
    found = ask(["explain-command", serve, *rest])
    base = found["loads"][0]["forecast"]
    line = ["simulate", model, "--max-num-seqs", seqs, *rest, "--allow-overload"]
    yield Claim("explain-command", shlex.join(line), numbers(base), numbers(ask(line)))
    if found["recommended"] is None:
        return
    flags = shlex.split(found["recommended"])[3:]
    line = ["simulate", model, *flags, *rest, "--allow-overload"]
    advised = ask(["explain-command", found["recommended"], *rest, "--no-advice"])["loads"][0]["forecast"]
    yield Claim("advice", shlex.join(line), numbers(advised), numbers(ask(line)))


def python(rng: Random) -> Iterator[Claim]:
    """The same from Python."""
    model, gpu, rate, count = rng.choice(MODELS), rng.choice(GPUS[:2]), rng.choice([2, 9]), rng.choice([30, 80])
    copies, seed = rng.choice([1, 1, 2]), rng.randint(0, 9)
    deployment = infercast.deploy(model, gpu, data_parallel_size=copies)
    found = forecast_dict(infercast.simulate(deployment, rate=rate, num_requests=count, seed=seed))
    line = ["simulate", model, "--gpu", gpu, "--rate", f"{rate}", "-n", f"{count}", "--seed", f"{seed}"]
    line += ["-dp", f"{copies}"] if copies > 1 else []
    yield Claim("Python", shlex.join(line), numbers(found), numbers(ask(line)))


def pools(rng: Random) -> Iterator[Claim]:
    """A prefill pool and a decode pool, from Python and by the command."""
    model, rate, engines = rng.choice(MODELS[:4]), rng.choice([2, 9]), rng.choice([1, 2])
    found = infercast.simulate(
        model, gpu="h200-sxm", prefill_gpu="h100-sxm", prefill_instances=engines, rate=rate, num_requests=40
    )
    line = ["disaggregate", model, "--prefill-gpu", "h100-sxm", "--decode-gpu", "h200-sxm", "--prefill-engines"]
    line += [f"{engines}", "--rate", f"{rate}", "-n", "40"]
    yield Claim("disaggregate", shlex.join(line), numbers(forecast_dict(found)), numbers(ask(line)))


KINDS: tuple[Callable[[Random], Iterator[Claim]], ...] = (
    plans, sweeps, layouts, energy, speculation, advice, python, pools
)  # fmt: skip


def claims(count: int, seed: int) -> Iterator[Claim]:
    """So many, of every kind in turn."""
    rng, told = Random(seed), 0
    while True:
        for kind in KINDS:
            for claim in kind(rng):
                yield claim
                told += 1
                if told == count:
                    return


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Hold printed numbers against the commands that stand for them.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = 0
    for number, claim in enumerate(claims(asked.count, asked.seed), start=1):
        if claim.differing:
            wrong += 1
            pairs = [(name, claim.printed[name], claim.found[name]) for name in claim.differing[:3]]
            print(f"{claim.kind}: infercast {claim.command}\n  {str(pairs)[:400]}", flush=True)
        if number % 20 == 0:
            print(f"{number} drawn, {wrong} differ", flush=True)
    print(f"{asked.count} drawn, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
