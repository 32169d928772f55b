"""The endpoint over HTTP: OpenAI's API as vLLM and SGLang speak it, metrics, and what the forecast says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infercast import __version__
from infercast.emulate.emulator import Call, Emulator, Stream
from infercast.emulate.prompts import encode, encode_chat
from infercast.errors import InputError, need
from infercast.forecast.deploy import GpuSource, ModelSource, deploy
from infercast.forecast.system import PROXY_ROUTER, system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.units import json_text
from infercast.web.limits import ANY_ADDRESS, LOCAL_HOSTS, Problem, check_host, read_document

if TYPE_CHECKING:
    import uvicorn

MOST_CHOICES = 128
PAGES = ("/v1/models", "/version", "/get_model_info", "/metrics", "/health", "/health_generate", "/ping")
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]
Receive = Callable[[], Awaitable[Any]]


class Asked:
    """A request's fields, each checked as it is read."""

    def __init__(self, document: Mapping[str, Any], came: float | None = None) -> None:
        self.document, self.came = document, came

    def whole(self, name: str, default: int | None, least: int = 0) -> int | None:
        value = self.document.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise InputError(f"{name} must be a whole number of at least {least}, not {str(value)[:40]!r}")
        return value

    def truth(self, name: str) -> bool:
        value = self.document.get(name)
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {str(value)[:40]!r}")
        return bool(value)

    @property
    def prompts(self) -> list[list[int]]:
        """The prompt of a completion: a text, tokens, or a list of either."""
        given = self.document.get("prompt")
        if isinstance(given, str):
            return [encode(given)]
        if isinstance(given, list) and given:
            kinds = {*map(type, given)}
            if kinds == {int}:
                return [given]
            if kinds == {str}:
                return [encode(each) for each in given]
            if kinds == {list} and all({*map(type, each)} <= {int} for each in given):
                return given
        raise InputError("prompt must be a text, a list of tokens, or a list of texts or of lists of tokens")


class Form:
    """How the answers of one API are written: ``text``, ``chat``, or SGLang's ``generate``."""

    def __init__(self, kind: str, number: int, model: str) -> None:
        self.kind = kind
        name = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{number:012x}"
        self._common = {"id": name, "created": int(time.time()), "model": model}
        chunks = "chat.completion.chunk" if kind == "chat" else "text_completion"
        self._head = f'data: {json_text({**self._common, "object": chunks})[:-1]}, "choices":['

    def chunk(self, stream: Stream) -> str:
        """The next event of an answer; a chat begins with the role."""
        is_first, text = not stream.num_taken, stream.take()
        if self.kind == "generate":
            return f"data: {json_text(self._generated(stream))}\n\n"
        ended = f'"{reason}"' if (reason := stream.finish_reason) else "null"
        begin, end = f'{self._head}{{"index":{stream.choice},', f'"logprobs":null,"finish_reason":{ended}}}]}}\n\n'
        if self.kind == "text":
            return f'{begin}"text":"{text}",{end}'
        role = f'{begin}"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n' if is_first else ""
        return f'{role}{begin}"delta":{{"content":"{text}"}},{end}'

    def last(self, call: Call, *, with_usage: bool) -> str:
        usage = f'{self._head}],"usage":{json_text(_usage(call))}}}\n\n' if with_usage else ""
        return f"{usage}data: [DONE]\n\n"

    def whole(self, call: Call) -> dict[str, Any]:
        """All answers in one document."""
        choices = []
        for stream in call.streams.values():
            text = stream.take()
            if self.kind == "generate":
                return self._generated(stream)
            said = {"message": {"role": "assistant", "content": text}} if self.kind == "chat" else {"text": text}
            choices.append({"index": stream.choice, **said, "logprobs": None, "finish_reason": stream.finish_reason})
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return {**self._common, "object": name, "choices": choices, "usage": _usage(call)}

    def _generated(self, stream: Stream) -> dict[str, Any]:
        reason, counts = stream.finish_reason, {"prompt_tokens": stream.request.num_input}
        ended = {"completion_tokens": stream.num_taken, "finish_reason": reason and {"type": reason}}
        return {"text": "".join(stream.words[: stream.num_taken]), "meta_info": {**counts, **ended}}


class Writer:
    """Writes a call's answers as tokens come, or at the end: by the emulator's clock, since a task wakes too slowly."""

    def __init__(self, call: Call, form: Form, send: Send, *, is_stream: bool, with_usage: bool) -> None:
        self._call, self._form, self._send = call, form, send
        self._is_stream, self._with_usage = is_stream, with_usage
        self._waiting: Coroutine[Any, Any, None] | None = None  # What a client that reads slowly keeps waiting

    def write(self) -> None:
        """Send what is new; a client that keeps us waiting gets the rest later, at once."""
        call, form = self._call, self._form
        if self._waiting is not None or not call.fresh or (call.num_open and not self._is_stream):
            return
        if self._is_stream:
            text, is_done = "".join(map(form.chunk, call.fresh)), not call.num_open
            text += form.last(call, with_usage=self._with_usage) if is_done else ""
            self._waiting = self._send({"type": "http.response.body", "body": text.encode(), "more_body": not is_done})
        else:
            self._waiting = _reply(self._send, form.whole(call))
        call.fresh.clear()
        self._go_on()

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

    def __init__(self, emulator: Emulator, names: Sequence[str], hosts: Sequence[str] = LOCAL_HOSTS) -> None:
        self.emulator, self.names = emulator, tuple(names)
        self._hosts = {host.lower() for host in hosts}
        self._number = 0
        self._forecast: asyncio.Task[Any] | None = None
        self._routes: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/generate"): self._generate,
            ("POST", "/tokenize"): self._tokenize,
            **{("GET", path): self._page for path in PAGES},
            ("GET", "/infercast"): self._infercast,
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._route(scope)(scope, receive, send)
        except Problem as problem:
            await _reply(send, _error(problem.message, problem.kind, problem.status), problem.status)
        except InputError as problem:
            await _reply(send, _error(str(problem), "BadRequestError", 400), 400)

    def _route(self, scope: Mapping[str, Any]) -> Callable[..., Awaitable[None]]:
        check_host(dict(scope["headers"]).get(b"host", b"").decode("latin-1"), self._hosts, "--listen")
        found = self._routes.get((scope["method"], scope["path"].rstrip("/") or "/"))
        if found is None:
            if any(path == scope["path"] for _, path in self._routes):
                raise Problem(405, "MethodError", f"{scope['method'][:20]} is not for {scope['path'][:80]}")
            raise Problem(404, "NotFoundError", f"there is no {scope['path'][:80]}")
        return found

    async def _document(self, scope: Mapping[str, Any], receive: Receive) -> dict[str, Any]:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        headers.setdefault("content-type", "application/json")
        largest_body = 32 * 1024 * 1024
        document = await read_document(receive, headers, largest_body)
        model = document.get("model")
        if model is not None and model not in self.names:
            known = ", ".join(self.names)
            raise Problem(404, "NotFoundError", f"the model {str(model)[:80]!r} does not exist; served: {known}")
        return document

    # Answers.

    async def _completions(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        came = self.emulator.now()
        asked = Asked(await self._document(scope, receive), came)
        completion_tokens = 16  # What a completion without max_tokens has, as in vLLM
        await self._answer("text", asked, asked.prompts, asked.whole("max_tokens", completion_tokens, 1), receive, send)

    async def _chat(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        came = self.emulator.now()
        asked = Asked(await self._document(scope, receive), came)
        most = asked.whole("max_completion_tokens", asked.whole("max_tokens", None, 1), 1)
        await self._answer("chat", asked, [encode_chat(asked.document.get("messages"))], most, receive, send)

    async def _answer(
        self, kind: str, asked: Asked, prompts: list[list[int]], most: int | None, receive: Receive, send: Send
    ) -> None:
        choices = asked.whole("n", 1, 1) or 1
        if choices * len(prompts) > MOST_CHOICES:
            raise InputError(f"n times the number of prompts must be at most {MOST_CHOICES}")
        options = asked.document.get("stream_options")
        with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
        call, is_stream = Call(came=asked.came), asked.truth("stream")
        self._number += 1
        form = Form(kind, self._number, str(asked.document.get("model") or self.names[0]))
        for ids in prompts:
            for _ in range(choices):
                self._begin(call, asked, ids, most)
        writer = Writer(call, form, send, is_stream=is_stream, with_usage=with_usage)
        try:
            if is_stream:
                await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            call.write = writer.write
            writer.write()
            while (await receive())["type"] != "http.disconnect":  # the client has left, or has its answer
                pass
        finally:
            if call.num_open:
                self.emulator.leave(call)
            call.streams.clear()  # they know it, too: what knows each other waits for the garbage collector
            call.write = lambda: None

    def _begin(self, call: Call, asked: Asked, ids: Sequence[int], most: int | None) -> Stream:
        try:
            return self.emulator.start(
                call, len(call.streams), ids, most,
                ignore_eos=asked.truth("ignore_eos"), min_tokens=asked.whole("min_tokens", 0) or 0,
                priority=asked.whole("priority", 0, -(1 << 30)) or 0, came=call.came,
            )  # fmt: skip
        except InputError:
            self.emulator.leave(call)
            raise

    async def _generate(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """SGLang's own API."""
        came, document = self.emulator.now(), await self._document(scope, receive)
        sampling = document.get("sampling_params") or {}
        if not isinstance(sampling, Mapping):
            raise InputError("sampling_params must be an object")
        prompt = document.get("text", document.get("input_ids"))
        asked = Asked({**sampling, "prompt": prompt, "stream": document.get("stream")}, came)
        if len(prompts := asked.prompts) != 1:
            raise InputError("text and input_ids must be one prompt")
        await self._answer("generate", asked, prompts, asked.whole("max_new_tokens", 128, 1), receive, send)

    # The rest.

    async def _tokenize(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        document = await self._document(scope, receive)
        ids = encode_chat(document["messages"]) if "messages" in document else Asked(document).prompts[0]
        await _reply(send, {"count": len(ids), "max_model_len": self.emulator.max_model_len, "tokens": ids})

    async def _page(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """What an engine says of itself."""
        path, names, engine = scope["path"], self.names, self.emulator.system.pools[-1].deployment.engine
        if path == "/v1/models":
            common = {"object": "model", "created": 0, "owned_by": "infercast"}
            data = [{"id": each, **common, "max_model_len": self.emulator.max_model_len} for each in names]
            await _reply(send, {"object": "list", "data": data})
        elif path == "/version":
            await _reply(send, {"version": engine.name, "emulated_by": f"infercast {__version__}"})
        elif path == "/get_model_info":
            await _reply(send, {"model_path": names[0], "tokenizer_path": names[0], "is_generation": True})
        else:
            text = self.emulator.metrics_text() if path == "/metrics" else ""
            await _reply(send, text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

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


def _usage(call: Call) -> dict[str, Any]:
    streams = [*call.streams.values()]
    prompt = sum(each.request.num_input for each in streams)
    written = sum(each.num_sent for each in streams)
    return {"prompt_tokens": prompt, "total_tokens": prompt + written, "completion_tokens": written}


def _error(message: str, kind: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def _reply(send: Send, body: Any, status: int = 200, kind: bytes = b"application/json") -> None:
    text = body if isinstance(body, bytes) else json_text(body).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def make_server(emulator: Emulator, names: Sequence[str], host: str, port: int) -> tuple[uvicorn.Server, Any]:
    """The application in uvicorn, and the socket that it listens to."""
    import uvicorn  # noqa: PLC0415 - the names of this module are public, and these packages optional

    from infercast.web.server import listen_on  # noqa: PLC0415

    hosts = () if host in ANY_ADDRESS else (*LOCAL_HOSTS, host)
    config = uvicorn.Config(
        Server(emulator, names, hosts), ws="none", lifespan="off", log_level="warning", access_log=False, backlog=8192,
        server_header=False, date_header=False, proxy_headers=False, timeout_keep_alive=65, timeout_graceful_shutdown=1,
    )  # fmt: skip
    return uvicorn.Server(config), listen_on(host, port)


def serve(
    emulator: Emulator, names: Sequence[str], host: str, port: int, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Serve until it is interrupted; ``tell`` hears the address."""
    server, listening = make_server(emulator, names, host, port)
    switch_seconds = 0.0005  # How long a forecast in a thread may keep tokens waiting at a time
    sys.setswitchinterval(switch_seconds)
    gc.collect()
    gc.freeze()  # what is loaded stays, and is not looked through again while clients wait
    gc.set_threshold(1000, 3, 3000)  # a millisecond at a time; everything that was ever asked once in many minutes
    tell(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve([listening]))


@contextlib.contextmanager
def emulator(
    model: ModelSource, gpu: GpuSource, *, replicas: int = 1, answer_lengths: str = "lognormal:180:0.8:4:1000",
    speed: float = 1.0, port: int = 0, seed: int = 0, **options: Any,
) -> Iterator[str]:  # fmt: skip
    """An endpoint in a thread, for notebooks and tests; its address, with ``/v1`` for clients of OpenAI's API.

    ``options`` are those of `deploy`. ``answer_lengths``: tokens after which answers end that may.

    >>> with emulator("qwen3-0.6b", "h200-sxm", speed=10) as url:  # doctest: +SKIP
    ...     client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    """
    need("emulator", "web")
    deployment = deploy(model, gpu, **options)
    system = system_of(deployment, PROXY_ROUTER if replicas > 1 else None, instances=replicas)
    emulated = Emulator(system, parse_lengths(answer_lengths, "answer_lengths"), speed=speed, seed=seed)
    names = [name for name in (model, deployment.model.name) if isinstance(name, str)]
    server, listening = make_server(emulated, names, "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)
