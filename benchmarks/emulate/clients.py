"""Load generators from packages, unchanged, against the emulator: what they report, beside the forecast of it.

    python benchmarks/emulate/clients.py TOKENIZER --guidellm PROGRAM --aiperf PROGRAM --locust PROGRAM --openai PYTHON
        --vllm PYTHON

Each option names the program, or the Python that has the package; those that are not named are left out. TOKENIZER is a
folder with any tokenizer of Hugging Face's, for clients that make up prompts.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MODEL, PORT = "llama-3.1-8b", 8766
URL = f"http://127.0.0.1:{PORT}"
RATE, COUNT, INPUT, OUTPUT = 8, 160, 400, 80
OPENAI = f"""
import asyncio, json, time, openai

async def ask(client, number):
    began, times = time.perf_counter(), []
    question = [{{"role": "user", "content": f"{{number}} " + "word " * {INPUT}}}]
    body = {{"ignore_eos": True}}
    async for event in await client.chat.completions.create(
        model="{MODEL}", messages=question, max_tokens={OUTPUT}, stream=True, extra_body=body
    ):
        if event.choices[0].delta.content:
            times.append(time.perf_counter())
    return times[0] - began, (times[-1] - times[0]) / (len(times) - 1)

async def main():
    client, tasks = openai.AsyncOpenAI(base_url="{URL}/v1", api_key="none"), []
    for number in range({COUNT}):
        tasks.append(asyncio.create_task(ask(client, number)))
        await asyncio.sleep(1 / {RATE})
    found = zip(*await asyncio.gather(*tasks))
    print(json.dumps([sorted(each) for each in found]))

asyncio.run(main())
"""


class Seen(NamedTuple):
    """What a client reports, in milliseconds."""

    answered: int
    ttft: float
    tpot: float


def guidellm(program: str, tokenizer: Path, out: Path) -> Seen:
    file = out / "guidellm.json"
    run(
        program, "run", "--backend", f"kind=openai_http,target={URL}", "--profile", f"kind=poisson,rate={RATE}",
        "--constraint", f"kind=max_requests,count={COUNT}", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}",
        "--output", f"kind=json,path={file}", "--disable-progress",
    )  # fmt: skip
    found = json.loads(file.read_text())["benchmarks"][0]["metrics"]
    first, gap = (found[each]["successful"]["median"] for each in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return Seen(found["request_totals"]["successful"], first, gap)


def aiperf(program: str, tokenizer: Path, out: Path) -> Seen:
    run(
        program, "profile", "--model", MODEL, "--url", URL, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer, "--request-rate", RATE, "--request-count", COUNT,
        "--synthetic-input-tokens-mean", INPUT, "--output-tokens-mean", OUTPUT, "--extra-inputs", "ignore_eos:true",
        "--use-server-token-count", "--ui", "none", "--output-artifact-dir", out,
    )  # fmt: skip
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    first, gap = (found[each]["p50"] for each in ("time_to_first_token", "inter_token_latency"))
    return Seen(int(found["request_count"]["avg"]), first, gap)


def locust(program: str, tokenizer: Path, out: Path) -> Seen:
    script = Path(__file__).parent / "locustfile.py"
    run(
        program, "-f", script, "--host", URL, "--headless", "--users", 4, "--spawn-rate", 4, "--run-time", "20s",
        "--stop-timeout", 5, "--csv", out / "locust", "--only-summary",
    )  # fmt: skip
    with (out / "locust_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    first, gap = (float(rows[each]["Median Response Time"]) / 1000 for each in ("TTFT", "TPOT"))
    return Seen(int(rows["TTFT"]["Request Count"]), first, gap)


def openai(program: str, tokenizer: Path, out: Path) -> Seen:
    first, gap = json.loads(run(program, "-c", OPENAI))
    return Seen(len(first), 1000 * first[len(first) // 2], 1000 * gap[len(gap) // 2])


def vllm(program: str, tokenizer: Path, out: Path) -> Seen:
    code = (
        "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
        "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
    )
    run(
        program, "-c", code, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", URL,
        "--model", MODEL, "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", INPUT,
        "--random-output-len", OUTPUT, "--ignore-eos", "--request-rate", RATE, "--num-prompts", COUNT,
        "--save-result", "--result-filename", out / "vllm.json", "--disable-tqdm",
    )  # fmt: skip
    found = json.loads((out / "vllm.json").read_text())
    return Seen(found["completed"], found["median_ttft_ms"], found["median_tpot_ms"])


CLIENTS: dict[str, Callable[[str, Path, Path], Seen]] = {
    each.__name__: each for each in (guidellm, aiperf, locust, openai, vllm)
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
    given = vars(parser.parse_args())
    print("client     answers   TTFT p50: seen, forecast   between tokens: seen, forecast")
    command = [sys.executable, "-m", "infercast", "emulate", MODEL, "--gpu", "h200-sxm", "--port", str(PORT)]
    for name, client in CLIENTS.items():
        if given[name] is None:
            continue
        with tempfile.TemporaryDirectory() as out, subprocess.Popen(command, stderr=subprocess.PIPE) as server:
            assert server.stderr is not None
            server.stderr.readline()
            try:
                seen = client(given[name], given["tokenizer"].absolute(), Path(out))
                told = json.loads(urllib.request.urlopen(f"{URL}/infercast", timeout=60).read())["forecast"]
            finally:
                server.terminate()
        first, gap = told["ttft_ms"]["p50"], told["tpot_ms"]["p50"]
        print(
            f"{name:<10} {seen.answered:>7} {seen.ttft:>12.1f} {first:>7.1f} ms {seen.tpot:>18.2f} {gap:>6.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
