"""``infercast web`` as a running server: the application with its routes, and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mimetypes
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from infercast.errors import InputError
from infercast.web.limits import ANY_ADDRESS, LOCAL_HOSTS, Guard, Problem, Rates, client_of, read_document
from infercast.web.workers import FIXED, KINDS, SECONDS, BusyError, Jobs, Reply, RequestCoalescer, TooLongError, Workers

API = "/api/v1"
STYLE = Path(__file__).parent / "api.css"
STATIC = Path(__file__).parent / "static"
ASKED = ("simulate", "memory", "curve")
EXPORTS = {"html": "text/html; charset=utf-8", "csv": "text/csv; charset=utf-8", "json": "application/json"}
NO_STORE = {"cache-control": "no-store"}

TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
    ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8", ".woff2": "font/woff2",
}  # fmt: skip


class File(NamedTuple):
    body: bytes
    media_type: str
    tag: str


def read_files(folder: Path = STATIC) -> dict[str, File]:
    """All files of a folder when the server starts, by their paths below it, and nothing else; links are left out."""
    found = {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    }
    if "index.html" in found:
        found[""] = found["index.html"]
    return found


def _read(path: Path) -> File:
    body = path.read_bytes()
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"')


class WebApp:
    def __init__(self, workers: int, jobs: int) -> None:
        self.workers = Workers(workers)
        self.coalescer = RequestCoalescer(self.workers)
        self.num_jobs = jobs
        self.jobs: Jobs | None = None
        self.files = read_files()

    @contextlib.asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        """Processes run as long as the server does; it answers when the first of them does."""
        await self.workers.start()
        self.jobs = Jobs(self.workers.folder.name, self.num_jobs)
        for name in FIXED:
            reply = await self.coalescer.ask(name, {})
            if not reply.ok:
                raise RuntimeError(f"workers do not answer: {reply.body.decode()}")
        warm = asyncio.create_task(self._warm())
        try:
            yield
        finally:
            warm.cancel()
            await self.jobs.close()
            await self.coalescer.close()
            await self.workers.close()

    async def _warm(self) -> None:
        with contextlib.suppress(BusyError, TooLongError):
            await self.coalescer.ask("simulate", {"state": {}, "intervals": True})  # the first of most

    async def file(self, request: Request) -> Response:
        found = self.files.get(request.path_params["path"])
        if found is None:
            raise Problem(404, "NotFoundError", "there is no such page")
        headers = {"etag": found.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

    async def fixed(self, request: Request) -> Response:
        name = {"catalog": "catalog", "openapi.json": "openapi"}[request.url.path.rpartition("/")[2]]
        return _json(await self._ask(request, name, {}), cache="max-age=300")

    async def api_page(self, request: Request) -> Response:
        found = json.loads((await self._ask(request, "api_page", {})).body)
        return Response(found["html"], media_type="text/html", headers={"cache-control": "no-cache"})

    async def style(self, _: Request) -> Response:
        return Response(STYLE.read_bytes(), media_type="text/css", headers={"cache-control": "no-cache"})

    async def question(self, request: Request) -> Response:
        """A question that is answered at once: its state as the body, or in the URL."""
        name = request.path_params["name"]
        if name not in ASKED:
            raise Problem(404, "NotFoundError", f"there is no question {name[:40]!r}; known: {', '.join(ASKED)}")
        return _json(await self._ask(request, name, await self._document(request)))

    async def export(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in EXPORTS:
            raise Problem(404, "NotFoundError", f"there is no export {kind[:40]!r}; known: {', '.join(EXPORTS)}")
        reply = await self._ask(request, "export", {**await self._document(request), "kind": kind})
        if not reply.ok:
            return _json(reply)
        found = json.loads(reply.body)
        headers = {**NO_STORE, "content-disposition": f'attachment; filename="{found["name"]}"'}
        return Response(found["text"], media_type=EXPORTS[kind], headers=headers)

    async def start_job(self, request: Request) -> Response:
        document = await self._document(request)
        kind = document.pop("question", document.pop("kind", None))
        if kind not in KINDS:
            raise Problem(422, "InputError", f"question must be one of {', '.join(KINDS)}, not {str(kind)[:40]!r}")
        assert self.jobs is not None
        try:
            job = self.jobs.start(kind, document)
        except BusyError:
            raise _busy() from None
        headers = {**NO_STORE, "location": f"{API}/jobs/{job.id}"}
        return Response(job.body(), 202, headers, "application/json")

    async def job(self, request: Request) -> Response:
        assert self.jobs is not None
        job = self.jobs.get(request.path_params["id"])
        if job is None:
            raise Problem(404, "NotFoundError", "there is no such job; jobs are forgotten 15 minutes after they end")
        if request.method == "DELETE":
            self.jobs.cancel(job)
        return Response(job.body(), 200, NO_STORE, "application/json")

    async def _document(self, request: Request) -> dict[str, Any]:
        if request.method in ("GET", "HEAD"):
            return {"query": request.url.query}
        return await read_document(request.receive, request.headers)

    async def _ask(self, request: Request, name: str, document: Mapping[str, Any]) -> Reply:
        """The reply to a question; a client that disconnects leaves the queue."""
        asked = asyncio.ensure_future(self.coalescer.ask(name, document, client_of(request.scope)))
        left = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((asked, left), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise Problem(499, "GoneError", "the client has gone")
            return asked.result()
        except BusyError:
            raise _busy() from None
        except TooLongError:
            problem = f"no answer within {SECONDS[name]:g} s; ask for fewer requests, or ask as a job"
            raise Problem(504, "TooLongError", problem) from None
        finally:
            for task in (asked, left):
                task.cancel()
            await asyncio.gather(asked, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _busy() -> Problem:
    return Problem(503, "BusyError", "too many questions wait already; try again in a moment", retry_after="2")


def _json(reply: Reply, cache: str = "no-store") -> Response:
    status = 200 if reply.ok else 500 if b'"InternalError"' in reply.body[:60] else 422
    return Response(reply.body, status, {"cache-control": cache if reply.ok else "no-store"}, "application/json")


async def _not_found(_: Request, __: Exception) -> Response:
    raise Problem(404, "NotFoundError", "there is no such page")


async def _not_allowed(request: Request, _: Exception) -> Response:
    raise Problem(405, "MethodError", f"{request.method[:20]} is not for this address")


def make_app(
    workers: int = 1, jobs: int = 1, hosts: Iterable[str] = LOCAL_HOSTS, rates: Rates | None = None
) -> Starlette:
    """The application; ``workers`` processes answer, and ``jobs`` questions that take long run at a time."""
    site = WebApp(workers, jobs)
    routes = [
        Route(API, site.api_page), Route(f"{API}/catalog", site.fixed), Route(f"{API}/openapi.json", site.fixed),
        Route(f"{API}/style.css", site.style), Route(f"{API}/jobs", site.start_job, methods=["POST"]),
        Route(f"{API}/jobs/{{id}}", site.job, methods=["GET", "DELETE"]),
        Route(f"{API}/export/{{kind}}", site.export, methods=["GET", "POST"]),
        Route(f"{API}/{{name}}", site.question, methods=["GET", "POST"]), Route("/{path:path}", site.file),
    ]  # fmt: skip
    return Starlette(
        routes=routes, middleware=[Middleware(Guard, hosts=tuple(hosts), rates=rates)],
        exception_handlers={404: _not_found, 405: _not_allowed}, lifespan=site.running,
    )  # fmt: skip


class HeadTimeoutProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, less connections over which no whole request comes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look(None)

    def _look(self, last: Any) -> None:
        """Look again after a while: the same request as before, or none, and still no whole head, is too long."""
        if self.transport.is_closing():
            return
        if last is not None and self.conn.their_state is h11.IDLE and last == (self.cycle,):
            self.transport.close()
            return
        head_seconds = 5.0  # in which the head of a request must have come; a connection silent for as long is closed
        self.loop.call_later(head_seconds, self._look, (self.cycle,))


def serve(host: str, port: int, *, workers: int, allowed: tuple[str, ...] = (), tell: Callable[[str], None]) -> None:
    """Serve until it is interrupted; ``allowed``: further names that it goes by; ``tell`` hears its address."""
    hosts = () if host in ANY_ADDRESS and not allowed else (*LOCAL_HOSTS, host, *allowed)
    listening = listen_on(host, port)
    config = uvicorn.Config(
        make_app(workers, jobs=workers, hosts=hosts), http=HeadTimeoutProtocol, ws="none", lifespan="on",
        log_level="warning", access_log=False, server_header=False, date_header=False,
        limit_concurrency=1024, timeout_keep_alive=5, timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32 * 1024,
    )  # fmt: skip
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listening]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.02)
        if server.started:
            tell(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        await serving

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def listen_on(host: str, port: int, option: str = "--host") -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.create_server((host, port), family=family, backlog=512)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a short answer waits 40 ms for an ACK
        return found
    except OSError as problem:
        why = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
        raise InputError(f"{host} port {port} cannot be used: {why}; choose {option} and --port") from None
