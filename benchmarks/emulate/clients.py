"""Load generators and clients from packages, unchanged, against the emulator: what they report, beside the forecast.

    python benchmarks/emulate/clients.py TOKENIZER --rate 20 --speed 0.2 --guidellm PROGRAM --aiperf PROGRAM
        --locust PROGRAM --openai PYTHON --litellm PYTHON --langchain PYTHON --vllm PYTHON

Each option names the program, or the Python that has the package; those that are not named are left out. TOKENIZER is a
folder with any tokenizer of Hugging Face's, for clients that make up prompts. Times are the deployment's: clients of a
machine that is busy see them longer, by `--speed`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MODEL, PORT = "llama-3.1-8b", 8766
URL = f"http://127.0.0.1:{PORT}"
INPUT, OUTPUT = 400, 80
LOAD = {"rate": 8.0, "count": 160}  # By the wall's clock
ASKING = f"""
import asyncio, json, sys, time
RATE, COUNT = float(sys.argv[1]), int(sys.argv[2])

async def ask(number):
    began, times = time.perf_counter(), []
    async for text in answer(f"{{number}} " + "word " * {INPUT}):
        if text:
            times.append(time.perf_counter())
    return times[0] - began, (times[-1] - times[0]) / ({OUTPUT} - 1)

async def main():
    await ask(-1)  # what a client loads with its first question
    tasks, begin = [], time.perf_counter()
    for number in range(COUNT):
        await asyncio.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(number)))
    print(json.dumps([sorted(each) for each in zip(*await asyncio.gather(*tasks))]))
"""
OPENAI = f"""
import openai
client = openai.AsyncOpenAI(base_url="{URL}/v1", api_key="none", timeout=600)

async def answer(question):
    async for event in await client.chat.completions.create(
        model="{MODEL}", messages=[{{"role": "user", "content": question}}], max_tokens={OUTPUT}, stream=True,
        extra_body={{"ignore_eos": True}},
    ):
        yield event.choices[0].delta.content
"""
LITELLM = f"""
import litellm

async def answer(question):
    async for event in await litellm.acompletion(
        model="hosted_vllm/{MODEL}", api_base="{URL}/v1", messages=[{{"role": "user", "content": question}}],
        max_tokens={OUTPUT}, stream=True, timeout=600, extra_body={{"ignore_eos": True}},
    ):
        yield event.choices[0].delta.content
"""
LANGCHAIN = f"""
import langchain_openai
client = langchain_openai.ChatOpenAI(
    model="{MODEL}", base_url="{URL}/v1", api_key="none", max_tokens={OUTPUT}, timeout=600,
    extra_body={{"ignore_eos": True}},
)

async def answer(question):
    async for event in client.astream(question):
        yield event.content
"""


class Seen(NamedTuple):
    """What a client reports, in milliseconds."""

    answered: int
    ttft: float
    tpot: float


def guidellm(program: str, tokenizer: Path, out: Path) -> Seen:
    file = out / "guidellm.json"
    run(
        program, "run", "--backend", f"kind=openai_http,target={URL}", "--profile", f"kind=poisson,rate={LOAD['rate']}",
        "--constraint", f"kind=max_requests,count={LOAD['count']}", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}",
        "--output", f"kind=json,path={file}", "--disable-progress",
    )  # fmt: skip
    found = json.loads(file.read_text())["benchmarks"][0]["metrics"]
    first, gap = (found[each]["successful"]["median"] for each in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return Seen(found["request_totals"]["successful"], first, gap)


def aiperf(program: str, tokenizer: Path, out: Path) -> Seen:
    run(
        program, "profile", "--model", MODEL, "--url", URL, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer, "--request-rate", LOAD["rate"], "--request-count", int(LOAD["count"]),
        "--synthetic-input-tokens-mean", INPUT, "--output-tokens-mean", OUTPUT, "--extra-inputs", "ignore_eos:true",
        "--use-server-token-count", "--ui", "none", "--output-artifact-dir", out,
    )  # fmt: skip
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    first, gap = (found[each]["p50"] for each in ("time_to_first_token", "inter_token_latency"))
    return Seen(int(found["request_count"]["avg"]), first, gap)


def locust(program: str, tokenizer: Path, out: Path) -> Seen:
    script = Path(__file__).parent / "locustfile.py"
    users, seconds = int(4 * LOAD["rate"]), int(LOAD["count"] / LOAD["rate"])
    run(
        program, "-f", script, "--host", URL, "--headless", "--users", users, "--spawn-rate", LOAD["rate"],
        "--run-time", f"{seconds}s", "--stop-timeout", 60, "--csv", out / "locust", "--only-summary",
    )  # fmt: skip
    with (out / "locust_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    first, gap = (float(rows[each]["Median Response Time"]) / 1000 for each in ("TTFT", "TPOT"))
    return Seen(int(rows["TTFT"]["Request Count"]), first, gap)


def _asking(code: str) -> Callable[[str, Path, Path], Seen]:
    def client(program: str, tokenizer: Path, out: Path) -> Seen:
        words = "\nasyncio.run(main())"
        first, gap = json.loads(run(program, "-c", ASKING + code + words, LOAD["rate"], LOAD["count"]).splitlines()[-1])
        return Seen(len(first), 1000 * first[len(first) // 2], 1000 * gap[len(gap) // 2])

    return client


def vllm(program: str, tokenizer: Path, out: Path) -> Seen:
    code = (
        "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
        "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
    )
    run(
        program, "-c", code, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", URL,
        "--model", MODEL, "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", INPUT,
        "--random-output-len", OUTPUT, "--ignore-eos", "--request-rate", LOAD["rate"], "--num-prompts", LOAD["count"],
        "--save-result", "--result-filename", out / "vllm.json", "--disable-tqdm",
    )  # fmt: skip
    found = json.loads((out / "vllm.json").read_text())
    return Seen(found["completed"], found["median_ttft_ms"], found["median_tpot_ms"])


CLIENTS: dict[str, Callable[[str, Path, Path], Seen]] = {
    **{each.__name__: each for each in (guidellm, aiperf, locust, vllm)},
    **{name: _asking(code) for name, code in (("openai", OPENAI), ("litellm", LITELLM), ("langchain", LANGCHAIN))},
}


def run(*words: Any) -> str:
    """A command's output; all of it is shown where it fails."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    for name in CLIENTS:
        parser.add_argument(f"--{name}")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second on the deployment's clock")
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1.0)
    given = vars(parser.parse_args())
    speed = given["speed"]
    LOAD.update(rate=given["rate"] * speed, count=given["count"])
    print(
        "client     answers   TTFT p50: seen, forecast   between tokens: seen, forecast   longest lag   machine's load"
    )
    command = [sys.executable, "-m", "infercast", "emulate", MODEL, "--gpu", "h200-sxm", "--port", str(PORT)]
    command += ["--speed", str(speed), "--replicas", str(given["replicas"])]
    for name, client in CLIENTS.items():
        if given[name] is None:
            continue
        with tempfile.TemporaryDirectory() as out, subprocess.Popen(command, stderr=subprocess.PIPE) as server:
            assert server.stderr is not None
            server.stderr.readline()
            try:
                seen = client(given[name], given["tokenizer"].absolute(), Path(out))
                told = json.loads(urllib.request.urlopen(f"{URL}/infercast", timeout=60).read())
            finally:
                server.terminate()
        first, gap = told["forecast"]["ttft_ms"]["p50"], told["forecast"]["tpot_ms"]["p50"]
        print(
            f"{name:<10} {seen.answered:>7} {seen.ttft * speed:>12.1f} {first:>7.1f} ms {seen.tpot * speed:>18.2f} "
            f"{gap:>6.2f} ms {1000 * told['longest_lag_seconds']:>16.0f} ms {os.getloadavg()[0]:>12.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
