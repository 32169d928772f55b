"""What a request may be: its host, its size, how often one client may ask; and the headers of every reply."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from infercast.bundled import read_data
from infercast.units import json_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 512 * 1024
BODY_SECONDS = 10.0  # in which the whole body must have come
LONGEST_SECONDS = 180.0  # a request and its reply, whatever they are
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")
BURST, PER_SECOND = 400.0, 40.0  # requests that one client may send at once, and how many per second in the long run
HEADERS: dict[str, str] = read_data("web/headers.toml")


class Problem(Exception):  # noqa: N818 - most are what a client did
    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def body(self) -> bytes:
        return json_text({"error": {"type": self.kind, "message": self.message}}).encode()


class Rates:
    """How often each client may ask; the longest silent are forgotten first."""

    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self.burst, self.per_second = burst, per_second
        # Requests that a client has left, and the time of that count.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> float:
        """Take one of what a client has left; the seconds that it has to wait, 0 for none."""
        now = time.monotonic() if now is None else now
        left, at = self._buckets.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - at) * self.per_second)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self.per_second
        self._buckets[client] = left - (0.0 if wait else 1.0), now
        while len(self._buckets) > 4096:
            self._buckets.popitem(last=False)
        return wait


class Guard:
    """Middleware: refuses invalid requests, and adds headers to every reply."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = LOCAL_HOSTS, rates: Rates | None = None) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}  # Names that the server goes by; none: any
        self.rates = rates or Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks over web sockets
        has_begun = False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                given = message.get("headers", ())
                named = {name.lower().decode("latin-1") for name, _ in given}
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name not in named]
                message = {**message, "headers": [*given, *ours]}
            await send(message)

        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                self._check(scope)
                await self.app(scope, receive, sent)
        except Problem as problem:
            await _send(sent, problem)
        except TimeoutError:
            if not has_begun:
                await _send(sent, Problem(504, "TooLongError", f"no reply within {LONGEST_SECONDS:g} s"))
        except Exception:
            traceback.print_exc()
            if not has_begun:
                await _send(sent, Problem(500, "InternalError", "this is a bug; the server's log has the details"))

    def _check(self, scope: Scope) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        check_host(headers.get(b"host", ""), self.hosts, "--allow-host")
        is_visit = scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == "navigate"
        if headers.get(b"sec-fetch-site", "none") not in ("same-origin", "none") and not is_visit:
            raise Problem(403, "OriginError", "requests from pages of other sites are refused")
        wait = self.rates.take(client_of(scope))
        if wait:
            seconds = f"{max(1, round(wait))}"
            raise Problem(
                429, "TooManyRequestsError", f"too many requests; try again in {seconds} s", retry_after=seconds
            )


def check_host(host: str, known: Collection[str], option: str) -> None:
    """Refuse a request by a name that the server does not go by: a page elsewhere must not read answers."""
    name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
    if known and name not in known:
        raise Problem(403, "HostError", f"this server does not go by the name {name[:80]!r}; see {option}")


def client_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _send(send: Send, problem: Problem) -> None:
    headers = {"content-type": "application/json", "cache-control": "no-store", **problem.headers}
    body = problem.body()
    headers["content-length"] = str(len(body))
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def read_document(receive: Receive, headers: Any, largest: int = LARGEST_BODY) -> dict[str, Any]:
    """The JSON object in a request's body, within its size and its time."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "MediaTypeError", f"the body must be application/json, not {kind[:60] or 'of no type'!r}")
    text = await _read_body(receive, headers.get("content-length", "0"), largest)
    try:
        document = json.loads(text, parse_constant=_no_constant)
        if b"\\ud" in text.lower():  # half of a surrogate pair is no text
            json_text(document, ensure_ascii=False).encode()
    except RecursionError:
        raise Problem(400, "JsonError", "the body is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as problem:
        raise Problem(400, "JsonError", f"the body is not valid JSON: {str(problem)[:120]}") from None
    if not isinstance(document, dict):
        raise Problem(400, "JsonError", f"the body must be a JSON object, not a {type(document).__name__}")
    return document


async def _read_body(receive: Receive, length: str, largest: int) -> bytes:
    too_large = Problem(413, "TooLargeError", f"the body may have {largest:,} bytes at most")
    if length.isdigit() and int(length[:20]) > largest:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "JsonError", "the body ended early")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > largest:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "TooSlowError", f"the body did not come within {BODY_SECONDS:g} s") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
