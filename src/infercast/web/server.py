"""``infercast web`` as a running server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from infercast.errors import InputError
from infercast.web.app import make_app
from infercast.web.limits import ANY_ADDRESS, LOCAL_HOSTS

MOST_CONNECTIONS = 1024
HEAD_SECONDS = 5.0
"""In which the head of a request must have come; who is silent for as long is disconnected."""
LARGEST_HEAD = 32 * 1024


class PatientForAWhile(H11Protocol):
    """HTTP as uvicorn speaks it, less connections over which no whole request comes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch a connection."""
        super().connection_made(transport)
        self._look(None)

    def _look(self, last: Any) -> None:
        """Look again after a while: the same request as before, or none, and still no whole head, is too long."""
        if self.transport.is_closing():
            return
        if last is not None and self.conn.their_state is h11.IDLE and last == (self.cycle,):
            self.transport.close()
            return
        self.loop.call_later(HEAD_SECONDS, self._look, (self.cycle,))


def serve(host: str, port: int, *, workers: int, allowed: tuple[str, ...] = (), tell: Callable[[str], None]) -> None:
    """Serve until it is interrupted; ``allowed``: further names that it goes by; ``tell`` hears its address."""
    hosts = () if host in ANY_ADDRESS and not allowed else (*LOCAL_HOSTS, host, *allowed)
    listening = _listen(host, port)
    config = uvicorn.Config(
        make_app(workers, jobs=workers, hosts=hosts),
        http=PatientForAWhile,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listening]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.02)
        if server.started:
            address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
            tell(address)
        await serving

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as problem:
        why = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
        raise InputError(f"{host} port {port} cannot be used: {why}; choose --host and --port") from None
