"""Idle and slow connections beside clients that read: when each is closed, and what it does to the others' tokens.

    python benchmarks/emulate/connections.py --idle 2000 --slow 200

Idle connections send nothing, half-open ones stop in the middle of a head, slow ones send a byte of it a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time

import numpy as np
from drive import Stream, drive

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"


async def hold(port: int, sent: bytes, *, is_slow: bool) -> float:
    """Seconds until the server closes a connection that never comes to an end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(sent)
    closed = asyncio.ensure_future(reader.read())
    with contextlib.suppress(ConnectionError):
        for byte in HEAD if is_slow else b"":
            writer.write(bytes([byte]))
            if (await asyncio.wait([closed], timeout=1))[0]:
                break
        await closed
    writer.close()
    return time.perf_counter() - began


async def readers(port: int, count: int, tokens: int) -> tuple[float, float]:
    """The 50th and 99th percentile of the times between tokens of streams side by side, in milliseconds."""
    streams = [Stream([number] * 200, tokens) for number in range(count)]
    await drive(port, streams, [0.0] * count)
    gaps = np.concatenate([np.diff(each.times) for each in streams])
    p50, p99 = 1000 * np.percentile(gaps, [50, 99])
    return float(p50), float(p99)


async def main_(port: int, idle: int, slow: int) -> None:
    print("alone  p50 {:.2f} p99 {:.2f} ms between tokens".format(*await readers(port, 8, 3000)))
    kinds = {"idle": [(b"", False)] * idle, "half-open": [(HEAD, False)] * slow, "slow": [(b"", True)] * slow}
    held = {
        name: [asyncio.ensure_future(hold(port, sent, is_slow=is_slow)) for sent, is_slow in each]
        for name, each in kinds.items()
    }
    print("beside p50 {:.2f} p99 {:.2f} ms between tokens".format(*await readers(port, 8, 3000)))
    for name, each in held.items():
        seconds = await asyncio.wait_for(asyncio.gather(*each), 60)
        print(f"{len(seconds):,} {name}: closed after {min(seconds):.1f} to {max(seconds):.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--port", type=int, default=8770)
    given = parser.parse_args()
    command = [sys.executable, "-m", "infercast", "emulate", "llama-3.1-8b", "--gpu", "h200-sxm", "--port"]
    with subprocess.Popen([*command, str(given.port)], stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        server.stderr.readline()
        try:
            asyncio.run(main_(given.port, given.idle, given.slow))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
