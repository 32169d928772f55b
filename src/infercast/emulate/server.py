"""The endpoint over HTTP: OpenAI's API as vLLM and SGLang speak it, metrics, and what the forecast says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing.connection
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from infercast import __version__
from infercast.emulate import requests
from infercast.emulate.answers import RULE, Wanted
from infercast.emulate.emulator import Call, Emulator
from infercast.emulate.faults import Fault, Faults
from infercast.emulate.forms import Completions, Form, Generated, Messaged, Responded, error
from infercast.emulate.prompts import HuggingFace, token_id
from infercast.errors import InputError, need
from infercast.forecast.deploy import GpuSource, ModelSource, deploy
from infercast.forecast.system import PROXY_ROUTER, system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.units import json_text
from infercast.web.limits import ANY_ADDRESS, LOCAL_HOSTS, Problem, check_host, read_document

if TYPE_CHECKING:
    import uvicorn

DROPPED = "dropped"
PAGES = (
    *("/v1/models", "/version", "/get_model_info", "/metrics", "/health", "/health_generate", "/ping"),
    *("/load", "/is_sleeping"),
)
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
HEADER_SECONDS = 10.0  # in which the head of a request must have come
IDLE_SECONDS = 5  # for which a connection stays open after an answer, as in vLLM
DRAIN_SECONDS = 30  # in which answers may end after SIGTERM
Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]
Receive = Callable[[], Awaitable[Any]]
Prompts = Sequence[tuple[Sequence[int], Wanted]]


class Writer:
    """Writes a call's answers as tokens come, or at the end: by the emulator's clock, since a task wakes too slowly."""

    def __init__(
        self, call: Call, form: Form, send: Send, *, is_stream: bool, fault: Fault | None = None,
        drop: Callable[[], object] = lambda: None, every: int = 1,
    ) -> None:  # fmt: skip
        """``drop`` breaks the connection, if a ``fault`` wants that; ``every``: how many tokens an event has at least,
        after the first.
        """
        self._every = every
        self._call, self._form, self._send, self._is_stream = call, form, send, is_stream
        self._fault, self._drop, self._is_held = fault, drop, False
        self._waiting: Coroutine[Any, Any, None] | None = None  # What a client that reads slowly keeps waiting

    def write(self) -> None:
        """Send what is new; a client that keeps us waiting gets the rest later, at once."""
        call, form = self._call, self._form
        if self._waiting is not None or self._is_held or not call.fresh or (call.num_open and not self._is_stream):
            return
        if self._fault is not None and self._is_struck(self._fault):
            return
        few = (each.num_taken and each.num_sent - each.num_taken < self._every for each in call.fresh)
        if self._every > 1 and call.num_open and all(few):
            return
        if self._is_stream:
            text, is_done = "".join(map(form.chunk, call.fresh)), not call.num_open
            text += form.last(call) if is_done else ""
            self._waiting = self._send({"type": "http.response.body", "body": text.encode(), "more_body": not is_done})
        else:
            self._waiting = _reply(self._send, form.whole(call))
        call.fresh.clear()
        self._go_on()

    def begin(self) -> None:
        """What a stream has before its first token."""
        if self._is_stream and (text := self._form.begin(self._call)):
            self._waiting = self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            self._go_on()
        self.write()

    def fail(self, message: str) -> None:
        """End the answer with an error: an event of a stream, or a reply."""
        self._call.write = lambda: None
        if self._is_stream:
            text = self._form.failed(message).encode()
            self._waiting = self._send({"type": "http.response.body", "body": text, "more_body": False})
        else:
            self._waiting = _reply(self._send, error(message, "InternalServerError", 500), 500)
        self._go_on()

    def _is_struck(self, fault: Fault) -> bool:
        """Whether a fault keeps this answer back, or has broken its connection."""
        if sum(each.num_sent for each in self._call.streams.values()) <= fault.after:
            return False
        self._fault = None
        if fault.kind == "drop":
            self._drop()
            return True
        self._is_held = True
        asyncio.get_running_loop().call_later(30.0 if fault.seconds is None else fault.seconds, self._let_go)
        return True

    def _let_go(self) -> None:
        self._is_held = False
        self.write()

    def _go_on(self, _: Any = None) -> None:
        if self._waiting is not None:
            try:
                self._waiting.send(None).add_done_callback(self._go_on)
            except StopIteration:
                self._waiting = None
                if self._call.fresh:
                    self.write()
            except Exception:  # a broken connection must not stop the clock of the others
                self._call.write = lambda: None


class Server:
    """An ASGI application; every request is answered here, for there may be thousands of open streams."""

    def __init__(
        self, emulator: Emulator, names: Sequence[str], host: str = "127.0.0.1", *, origins: Sequence[str] = (),
        faults: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """``host``: the address to which it will listen; ``faults``: what is planned to go wrong."""
        self.emulator, self.names, self.adapters = emulator, tuple(names), emulator.adapters
        self.faults, self._kinds = Faults(emulator), requests.kinds_of(is_lenient=emulator.metrics.is_lenient)
        hosts = () if host in ANY_ADDRESS else (*LOCAL_HOSTS, host)
        self._hosts, self._origins = {each.lower() for each in hosts}, frozenset(origins)
        for fault in faults:
            self.faults.add(fault)
        self._number, self._open = 0, set[Writer]()
        self._forecast: asyncio.Task[Any] | None = None
        self._routes: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions, ("POST", "/v1/chat/completions"): self._chat,
            **{("POST", path): self._as_chat for path in ("/v1/responses", "/v1/messages")},
            ("POST", "/v1/messages/count_tokens"): self._count_tokens, ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/generate"): self._generate, ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            **{("POST", path): self._act for path in ("/reset_prefix_cache", "/flush_cache", "/sleep", "/wake_up")},
            **{(method, "/faults"): self._set_faults for method in ("GET", "POST", "DELETE")},
            **{("GET", path): self._page for path in PAGES}, ("GET", "/infercast"): self._infercast,
        }  # fmt: skip

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if extra := self._headers(scope):
            plain = send

            async def send(message: Mapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], *extra]}
                await plain(message)

        try:
            await self._route(scope)(scope, receive, send)
        except Problem as problem:
            headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
            await _reply(send, error(problem.message, problem.kind, problem.status), problem.status, headers=headers)
        except InputError as problem:
            await _reply(send, error(str(problem), "BadRequestError", 400), 400)

    def _headers(self, scope: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
        """What every reply to a request has: its own number, and leave for pages of other origins."""
        found = []
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                found.append((name, value))
            elif name == b"origin" and ("*" in self._origins or value.decode("latin-1") in self._origins):
                found += [(b"access-control-allow-origin", value), (b"vary", b"origin")]
                found += [(b"access-control-allow-headers", b"*"), (b"access-control-allow-methods", b"*")]
        return found

    def _route(self, scope: Mapping[str, Any]) -> Callable[..., Awaitable[None]]:
        check_host(dict(scope["headers"]).get(b"host", b"").decode("latin-1"), self._hosts, "--listen")
        found = self._routes.get((scope["method"], scope["path"].rstrip("/") or "/"))
        if found is None:
            if any(path == scope["path"] for _, path in self._routes):
                if scope["method"] == "OPTIONS" and self._origins:
                    return self._allow
                raise Problem(405, "MethodError", f"{scope['method'][:20]} is not for {scope['path'][:80]}")
            raise Problem(404, "NotFoundError", f"there is no {scope['path'][:80]}")
        return found

    @staticmethod
    async def _allow(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await _reply(send, b"")

    async def _document(self, scope: Mapping[str, Any], receive: Receive) -> dict[str, Any]:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        headers.setdefault("content-type", "application/json")
        largest_body = 32 * 1024 * 1024
        document = await read_document(receive, headers, largest_body)
        model, known = document.get("model"), (*self.names, *self.adapters)
        if isinstance(model, str) and model not in known:
            told = ", ".join(known)
            raise Problem(404, "NotFoundError", f"the model {model[:80]!r} does not exist; served: {told}")
        return document

    def end(self) -> None:
        """The server ends, and the time for answers is over."""
        for writer in [*self._open]:
            writer.fail("the server is shutting down")

    # Answers.

    async def _completions(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        came = self.emulator.now()
        asked = requests.read(self._kinds["Completion"], await self._document(scope, receive))
        form = Completions(self._id(scope, asked), self._name(asked.model), is_chat=False, **_usages(asked))
        told = {"logprobs": asked.logprobs, "is_silent": asked.is_echo_alone}
        prompts = [
            (ids, asked.wanted(echoes=text if asked.echo else "", **told))
            for ids, text in asked.prompts(self.emulator.vocabulary)
        ]
        most = 1 if asked.is_echo_alone else asked.most
        await self._answer(form, asked, prompts, most, came, receive, send)

    async def _chat(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        came = self.emulator.now()
        asked = requests.read(self._kinds["Chat"], await self._document(scope, receive))
        form = Completions(self._id(scope, asked), self._name(asked.model), is_chat=True, **_usages(asked))
        logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        await self._answer(form, asked, [self._prompt(asked, logprobs)], asked.most, came, receive, send)

    def _prompt(self, chat: requests.Chat, logprobs: int | None = None) -> tuple[list[int], Wanted]:
        ids = chat.ids(self.emulator.vocabulary)
        return ids, chat.wanted(logprobs=logprobs, tool=chat.tool(token_id(repr(ids[-64:]))), echoes=chat.echoed)

    async def _as_chat(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """OpenAI's responses and Anthropic's messages, which are chats in other words."""
        came, document = self.emulator.now(), await self._document(scope, receive)
        is_message = scope["path"].rstrip("/") == "/v1/messages"
        kind: Any = requests.Messages if is_message else requests.Responses
        asked = requests.read(kind, document)
        form = (Messaged if is_message else Responded)(self._id(scope), self._name(asked.model))
        chat = asked.chat()
        chat.stream = asked.stream
        await self._answer(form, chat, [self._prompt(chat)], chat.most, came, receive, send)

    async def _count_tokens(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        asked = requests.read(requests.Messages, {"max_tokens": 1, **await self._document(scope, receive)})
        await _reply(send, {"input_tokens": len(asked.chat().ids(self.emulator.vocabulary))})

    async def _generate(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """SGLang's own API."""
        came = self.emulator.now()
        asked = requests.read(requests.Generate, await self._document(scope, receive))
        most = (asked.sampling_params or requests.Sampled()).max_new_tokens
        prompts = [(ids, asked.wanted()) for ids in asked.prompts(self.emulator.vocabulary)]
        form = Generated(self._id(scope, asked), is_batch=asked.is_batch)
        await self._answer(form, asked, prompts, None if most is None else max(1, most), came, receive, send)

    def _id(self, scope: Mapping[str, Any], asked: Any = None) -> str:
        """What a request is called: as its client says in a header or a field, or by a number."""
        self._number += 1
        named = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        return named or getattr(asked, "request_id", "") or getattr(asked, "rid", "") or f"{self._number:012x}"

    def _name(self, asked: str | None) -> str:
        return asked or self.names[0]

    async def _answer(
        self, form: Form, asked: requests.Sampling | requests.Generate, prompts: Prompts, most: int | None,
        came: float, receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        self.faults.check()
        if self.emulator.is_asleep:
            raise Problem(503, "ServiceUnavailableError", "the engine sleeps; POST /wake_up ends that")
        choices, is_stream = getattr(asked, "n", 1) or 1, bool(asked.stream)
        if choices * len(prompts) > requests.MOST_SEQUENCES:
            raise InputError(f"n times the number of prompts must be at most {requests.MOST_SEQUENCES}")
        model = getattr(asked, "model", None)
        adapter = self.adapters.index(model) if model in self.adapters else None
        if isinstance(asked, requests.Sampling):
            prompts = self._checked(asked, prompts)
        call = Call(came=came, num_prompt=sum(len(ids) for ids, _ in prompts))
        try:
            for ids, wanted in prompts:
                for _ in range(choices):
                    self.emulator.start(
                        call, len(call.streams), ids, most, wanted, priority=getattr(asked, "priority", 0) or 0,
                        came=came, adapter=adapter,
                    )  # fmt: skip
        except InputError:
            self.emulator.leave(call)
            raise
        task, fault = asyncio.current_task(), self.faults.of_stream()
        drop = (lambda: None) if task is None else partial(task.cancel, DROPPED)
        every = getattr(asked, "stream_interval", None) or 1
        writer = Writer(call, form, send, is_stream=is_stream, fault=fault, drop=drop, every=every)
        self._open.add(writer)
        try:
            if is_stream:
                await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            call.write, call.fail = writer.write, writer.fail
            writer.begin()
            while (await receive())["type"] != "http.disconnect":  # the client has left, or has its answer
                pass
        except asyncio.CancelledError as reason:
            if reason.args != (DROPPED,):
                raise
        finally:
            self._open.discard(writer)
            if call.num_open:
                self.emulator.leave(call)
            call.streams.clear()  # they know it, too: what knows each other waits for the garbage collector
            call.write, call.fail = lambda: None, lambda _: None

    def _checked(self, asked: requests.Sampling, prompts: Prompts) -> Prompts:
        """Prompts as they are cut, and the words that answers may have; tokens that there are not are refused."""
        vocabulary, kept = self.emulator.vocabulary, asked.truncate_prompt_tokens or 0
        if kept:
            kept = self.emulator.max_model_len - 1 if kept < 0 else kept
            sides = slice(kept) if asked.truncation_side == "right" else slice(-kept, None)
            prompts = [(ids[sides], wanted) for ids, wanted in prompts]
        asked.check(self.emulator.vocabulary_size, [max(ids, default=0) for ids, _ in prompts])
        bias = {int(key): value for key, value in (asked.logit_bias or {}).items()}
        only = asked.allowed_token_ids or [each for each, value in bias.items() if value >= 100]
        banned = {*asked.bad_words, *(f" {each}" for each in asked.bad_words)}
        banned |= {vocabulary.decode([each]) for each, value in bias.items() if value <= -100}
        words, tells = tuple(vocabulary.decode([each]) for each in only), prompts[0][1].tells_of_prompt
        if not (words or banned or tells):
            return prompts
        found: dict[str, Any] = {"words": words, "banned": frozenset(banned)}
        return [(ids, replace(wanted, prompt=ids if tells else (), **found)) for ids, wanted in prompts]

    # The rest.

    async def _embeddings(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self._document(scope, receive)
        raise InputError("the model does not support embeddings; it generates text")

    async def _tokenize(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        document = await self._document(scope, receive)
        if "messages" in document:
            ids = requests.read(requests.Chat, document).ids(self.emulator.vocabulary)
        elif not isinstance(document.get("prompt"), str):
            raise InputError("prompt must be a text, or messages a conversation")
        else:
            ids = self.emulator.vocabulary.encode(document["prompt"])
        await _reply(send, {"count": len(ids), "max_model_len": self.emulator.max_model_len, "tokens": ids})

    async def _detokenize(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        ids = (await self._document(scope, receive)).get("tokens")
        size = self.emulator.vocabulary_size
        if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < size for each in ids):
            raise InputError(f"tokens must be a list of whole numbers from 0 to {size - 1}, the vocabulary's last")
        await _reply(send, {"prompt": self.emulator.vocabulary.decode(ids)})

    async def _act(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """What operators do with a running engine."""
        path = scope["path"].rstrip("/")
        if path in ("/sleep", "/wake_up"):
            self.emulator.is_asleep = path == "/sleep"
        if path != "/wake_up":
            self.emulator.reset_prefix_cache()
        await _reply(send, b"", kind=b"text/plain")

    async def _set_faults(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """What goes wrong on demand: told, added or ended."""
        if scope["method"] == "DELETE":
            self.faults.clear()
        elif scope["method"] == "POST":
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            document = await read_document(receive, {"content-type": "application/json"} | headers)
            for each in document.get("faults", [document]):
                self.faults.add(each)
        self.faults.move()
        await _reply(send, {"faults": self.faults.state(), "struck": dict(self.faults.struck)})

    async def _page(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """What an engine says of itself."""
        path, names, engine = scope["path"].rstrip("/"), self.names, self.emulator.system.pools[-1].deployment.engine
        self.faults.move()
        common = {"object": "model", "created": 0, "owned_by": "infercast"}
        models = [
            {"id": each, **common, "root": names[0], "parent": None if each in names else names[0],
             "max_model_len": self.emulator.max_model_len}
            for each in (*names, *self.adapters)
        ]  # fmt: skip
        told = {
            "/v1/models": {"object": "list", "data": models},
            "/version": {"version": _version(engine.name), "emulated_by": f"infercast {__version__}"},
            "/get_model_info": {"model_path": names[0], "tokenizer_path": names[0], "is_generation": True},
            "/load": {"server_load": len(self._open)},
            "/is_sleeping": {"is_sleeping": self.emulator.is_asleep},
        }
        if path in told:
            await _reply(send, told[path])
        elif path == "/metrics":
            struck = {
                f'infercast:faults_total{{kind="{kind}"}}': ("Faults that have struck.", float(count))
                for kind, count in self.faults.struck.items()
            }
            text = self.emulator.metrics_text(struck)
            await _reply(send, text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")
        else:
            is_up = len(self.emulator.down) < len(self.emulator.metrics.engines)
            await _reply(send, b"", 200 if is_up else 503, kind=b"text/plain")

    async def _infercast(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """The load so far, and the forecast of it; one is computed at a time, in a thread."""
        found = self.emulator.state()
        if self._forecast is None or self._forecast.done():
            ask = self.emulator.forecast()
            self._forecast = None if ask is None else asyncio.ensure_future(asyncio.to_thread(ask))
        forecast = None
        if self._forecast is not None:
            try:
                forecast = await self._forecast
            except InputError as problem:
                forecast = {"error": str(problem)}
        await _reply(send, {**found, "forecast": forecast})


def _usages(asked: requests.Sampling) -> dict[str, bool]:
    options = asked.stream_options or requests.StreamOptions()
    always = bool(options.include_usage and options.continuous_usage_stats)
    return {"with_usage": bool(options.include_usage), "always_usage": always}


async def _reply(
    send: Send, body: Any, status: int = 200, kind: bytes = b"application/json", headers: Sequence[Any] = ()
) -> None:
    text = body if isinstance(body, bytes) else json_text(body).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(text)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def _version(name: str) -> str:
    """As the engine tells it: three numbers."""
    release = name.partition("@")[2]
    return f"{release}.0" if release.count(".") == 1 else release


def _impatient(protocol: Any) -> Any:
    """The protocol of uvicorn, which has no limit of its own for requests that do not come, with one."""

    class Impatient(protocol):  # type: ignore[misc]
        waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def connection_lost(self, reason: Exception | None) -> None:
            super().connection_lost(reason)
            if self.waiting is not None:
                self.waiting.cancel()

        def _look(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                if self.waiting is not None:
                    self.waiting.cancel()
                    self.waiting = None
            elif self.waiting is None:
                self.waiting = self.loop.call_later(HEADER_SECONDS, self._close)

        def _close(self) -> None:
            self.waiting = None
            if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
                self.transport.close()

    return Impatient


def make_server(application: Server, *, drain_seconds: int = DRAIN_SECONDS) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415 - the names of this module are public, and these packages optional
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing response" not in record.getMessage()
    )
    config = uvicorn.Config(
        application, http=_impatient(AutoHTTPProtocol), ws="none", lifespan="off", log_level="warning",
        access_log=False, backlog=8192, server_header=False, date_header=False, proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=drain_seconds,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(
    applications: Sequence[Server], host: str, port: int, tell: Callable[[list[str]], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> None:  # fmt: skip
    """Serve until it is interrupted, several of them in a process each, at ports that follow each other.

    ``tell`` hears the addresses, ``warn`` that this machine is too slow or that a process has ended.
    """
    from infercast.web.server import listen_on  # noqa: PLC0415 - the names of this module are public

    sockets = [listen_on(host, port + place if port else 0, "--listen") for place in range(len(applications))]
    shown = f"[{host}]" if ":" in host else host
    addresses = [f"http://{shown}:{each.getsockname()[1]}" for each in sockets]
    tell(addresses)
    if len(applications) == 1:
        _serve_one(applications[0], sockets[0], warn)
        return
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=_serve_one, args=(each, listening, warn))
        for each, listening in zip(applications, sockets, strict=True)
    ]
    for process, listening in zip(processes, sockets, strict=True):
        process.start()
        listening.close()  # so that nobody waits at the port of a process that has ended
    running = {process.sentinel: address for process, address in zip(processes, addresses, strict=True)}

    def end(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(KeyboardInterrupt):
        while running:
            for ended in multiprocessing.connection.wait([*running]):
                warn(f"{running.pop(cast('int', ended))} has ended")
    for process in processes:
        process.join()


def _serve_one(application: Server, listening: socket.socket, warn: Callable[[str], None]) -> None:
    server = make_server(application)
    switch_seconds = 0.0005  # How long a forecast in a thread may keep tokens waiting at a time
    sys.setswitchinterval(switch_seconds)
    gc.collect()
    gc.freeze()  # what is loaded stays, and is not looked through again while clients wait
    gc.set_threshold(1000, 3, 3000)  # a millisecond at a time; everything that was ever asked once in many minutes

    async def run() -> None:
        watching = asyncio.ensure_future(_watch(application, server, warn))
        await server.serve([listening])
        watching.cancel()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


async def _watch(application: Server, server: uvicorn.Server, warn: Callable[[str], None]) -> None:
    """Measure how late this process wakes, which is how late it reads requests; a word where that changes answers.

    Answers that are open when the server is about to end are ended by an error.
    """
    every, told, left, emulator = 0.1, False, DRAIN_SECONDS - 1.0, application.emulator
    while True:
        left -= every if server.should_exit else 0.0
        if left < 0:
            application.end()
        began = time.monotonic()
        await asyncio.sleep(every)
        emulator.wake_lag = max(0.0, time.monotonic() - began - every)
        late = max(emulator.lag, emulator.wake_lag)
        much = 0.02
        if late > much and not told:
            told = True
            warn(f"this machine is busy: tokens leave {1000 * late:.0f} ms late; --speed 0.5 gives it twice the time")


@contextlib.contextmanager
def emulator(
    model: ModelSource, gpu: GpuSource, *, replicas: int = 1, answer_lengths: str = "lognormal:180:0.8:4:1000",
    speed: float = 1.0, port: int = 0, seed: int = 0, faults: Sequence[Mapping[str, Any]] = (),
    tokenizer: Path | None = None, **options: Any,
) -> Iterator[str]:  # fmt: skip
    """An endpoint in a thread, for notebooks and tests; its address, with ``/v1`` for clients of OpenAI's API.

    ``options`` are those of `deploy`. ``answer_lengths``: tokens after which answers end that may. ``faults``: what
    goes wrong, as ``--faults`` has it. ``tokenizer``: a folder with one, in place of the rule that counts text.

    >>> with emulator("qwen3-0.6b", "h200-sxm", speed=10) as url:  # doctest: +SKIP
    ...     client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    """
    need("emulator", "web")
    from infercast.web.server import listen_on  # noqa: PLC0415 - the names of this module are public

    deployment = deploy(model, gpu, **options)
    system = system_of(deployment, PROXY_ROUTER if replicas > 1 else None, instances=replicas)
    lengths, vocabulary = parse_lengths(answer_lengths, "answer_lengths"), HuggingFace(tokenizer) if tokenizer else RULE
    emulated = Emulator(system, lengths, speed=speed, seed=seed, vocabulary=vocabulary)
    names = [*dict.fromkeys(name for name in (model, deployment.model.name) if isinstance(name, str))]
    served = Server(emulated, names, faults=faults)
    server, listening = make_server(served, drain_seconds=1), listen_on("127.0.0.1", port, "port")
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)
