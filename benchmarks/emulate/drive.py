"""Drive the emulator with streams over sockets, and hold what clients see against `simulate` of the same requests.

`python benchmarks/emulate/drive.py --rate 40 --requests 1000` starts an emulator, sends requests at Poisson times with
given lengths, and prints TTFT and inter-token times of both. `--clients N` opens N streams at once instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from infercast.forecast.deploy import deploy
from infercast.forecast.system import replicas_of, system_of
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests


class Stream:
    """One request: when it was sent, and when each token came."""

    def __init__(self, tokens: list[int], count: int) -> None:
        body = json.dumps({"prompt": tokens, "max_tokens": count, "ignore_eos": True, "stream": True}).encode()
        lines = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
        self.bytes = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        self.sent, self.times = 0.0, list[float]()


class Connection(asyncio.Protocol):
    """A connection that is used again when it is free, as clients keep them."""

    def __init__(self, stream: Stream, idle: list[Connection], ended: Callable[[], None]) -> None:
        self._stream, self._idle, self._ended = stream, idle, ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.ask(self._stream)

    def ask(self, stream: Stream) -> None:
        self._stream = stream
        stream.sent = time.perf_counter()
        self._transport.write(stream.bytes)

    def connection_lost(self, reason: Exception | None) -> None:
        if self in self._idle:  # the server closes what is idle for five seconds
            self._idle.remove(self)

    def data_received(self, data: bytes) -> None:
        self._stream.times += [time.perf_counter()] * data.count(b'"text":"')
        if data.endswith(b"0\r\n\r\n"):
            self._idle.append(self)
            self._ended()


async def drive(port: int, streams: list[Stream], arrivals: list[float]) -> None:
    """Send requests at their times, and wait for all answers."""
    loop, idle, left, opening = asyncio.get_running_loop(), list[Connection](), [len(streams)], set[Any]()
    is_over = asyncio.Event()

    def ended() -> None:
        left[0] -= 1
        if not left[0]:
            is_over.set()

    begin = time.perf_counter() + 0.2
    for stream, arrival in zip(streams, arrivals, strict=True):
        if (wait := begin + arrival - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        if idle:
            idle.pop().ask(stream)
        else:
            made = partial(Connection, stream, idle, ended)
            opened = loop.create_task(loop.create_connection(made, "127.0.0.1", port))
            opening.add(opened)
            opened.add_done_callback(opening.discard)
    await is_over.wait()


def processor_seconds(pid: int) -> float:
    """What a process has taken so far, on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(ttft: np.ndarray, gaps: np.ndarray) -> str:
    values = [*np.percentile(ttft, [50, 99]), *np.percentile(gaps, [50, 99])]
    return "TTFT p50 {:.1f} p99 {:.1f} ms, inter-token p50 {:.2f} p99 {:.2f} ms".format(
        *(1000 * each for each in values)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=40)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=0, help="all at once, in place of a rate")
    parser.add_argument("--input-len", default="lognormal:500:0.8:16:4000")
    parser.add_argument("--output-len", default="lognormal:100:0.7:4:500")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("emulate", nargs="*", help="further options of `infercast emulate`")
    args = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "infercast",
        "emulate",
        "llama-3.1-8b",
        "--gpu",
        "h200-sxm",
        "--port",
        str(args.port),
    ]
    command += ["--speed", str(args.speed), "--replicas", str(args.replicas), *args.emulate]
    workload = synthetic_workload(
        rate=args.rate, count=args.clients or args.requests, input_lengths=args.input_len,
        output_lengths=args.output_len, seed=1,
    )  # fmt: skip
    if args.clients:
        workload = workload_from_requests([replace(each, arrival=0.0) for each in workload.requests])
    rng = np.random.default_rng(0)
    streams = [Stream(rng.integers(1, 50_000, each.num_input).tolist(), each.num_output) for each in workload.requests]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        print(server.stderr.readline().strip())
        began = time.perf_counter()
        before = processor_seconds(server.pid)
        asyncio.run(drive(args.port, streams, [each.arrival / args.speed for each in workload.requests]))
        lasted, taken = time.perf_counter() - began, processor_seconds(server.pid) - before
        seen = [(each.sent, each.times) for each in streams]
    finally:
        server.terminate()
        server.wait()
    tokens = sum(len(times) for _, times in seen)
    ttft = np.array([times[0] - sent for sent, times in seen]) * args.speed
    gaps = np.concatenate([np.diff(times) for _, times in seen if len(times) > 1]) * args.speed
    first = min(sent for sent, _ in seen)
    requests = [
        replace(each, arrival=(sent - first) * args.speed)
        for each, (sent, _) in zip(workload.requests, seen, strict=True)
    ]
    deployment = deploy("llama-3.1-8b", "h200-sxm")
    system = system_of(deployment) if args.replicas == 1 else replicas_of(deployment, args.replicas)
    run = system.serve(workload_from_requests(sorted(requests, key=lambda each: each.arrival)))
    expected_gaps = np.repeat(*run.clients.gaps)
    asked = sum(each.num_output for each in workload.requests)
    print(
        f"{len(seen)} requests, {asked:,} tokens in {lasted:.1f} s ({asked / lasted:,.0f} tokens/s), "
        f"{tokens:,} events; the server took {taken:.1f} s of a processor"
    )
    print("emulated ", summary(ttft, gaps))
    print("simulated", summary(run.clients.ttft, expected_gaps))


if __name__ == "__main__":
    main()
