"""What stands before the application: names, origins, sizes, rates and headers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs infercast[web]")

from starlette.types import Message, Receive, Scope, Send

from infercast.web.limits import HEADERS, LARGEST_BODY, Guard, Problem, Rates, read_document
from infercast.web.server import STATIC, read_files

Headers = dict[str, str]


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers everything."""
    if scope["path"] == "/bug":
        raise ZeroDivisionError("a secret")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": b"ok"})


def ask(guard: Guard, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, Headers, bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    named = {"host": "localhost", **headers}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": pairs, "client": ("1.2.3.4", 5)}
    asyncio.run(guard(scope, receive, send))
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def test_every_reply_has_strict_headers() -> None:
    for path in ("/", "/bug"):
        _, headers, _ = ask(Guard(plain), path)
        assert headers.items() >= HEADERS.items()
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_bug_says_nothing_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, body = ask(Guard(plain), "/bug")
    assert status == 500
    assert b"secret" not in body
    assert "a secret" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]:80", "[::1]", "LOCALHOST:1"])
def test_names_of_this_machine(host: str) -> None:
    assert ask(Guard(plain), host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil", "", "127.0.0.1.evil:1"])
def test_a_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    assert ask(Guard(plain), host=host)[0] == 403
    assert ask(Guard(plain, hosts=()), host=host)[0] == 200


def test_pages_of_other_sites_may_not_ask() -> None:
    assert ask(Guard(plain), method="POST", sec_fetch_site="cross-site")[0] == 403
    assert ask(Guard(plain), method="DELETE", sec_fetch_site="same-site")[0] == 403
    assert ask(Guard(plain), method="POST", sec_fetch_site="same-origin")[0] == 200
    assert ask(Guard(plain), sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0] == 403
    assert ask(Guard(plain), sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200  # a link


def test_who_asks_too_often_waits() -> None:
    rates = Rates(burst=3, per_second=2)
    assert [rates.take("a", 0.0) > 0 for _ in range(5)] == [False, False, False, True, True]
    assert rates.take("b", 0.0) == 0
    assert rates.take("a", 0.5) == 0
    guard = Guard(plain, rates=Rates(burst=1, per_second=0.1))
    assert ask(guard)[0] == 200
    status, headers, body = ask(guard)
    assert (status, headers["retry-after"]) == (429, "10")
    assert json.loads(body)["error"]["type"] == "TooManyRequestsError"


def test_clients_are_forgotten_before_they_fill_the_memory() -> None:
    rates = Rates()
    for number in range(10_000):
        rates.take(f"{number}", 0.0)
    assert len(rates._buckets) <= 4096


def sending(*parts: bytes, then: Callable[[], Awaitable[Message]] | None = None) -> Receive:
    queue = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Any:
        if queue:
            return queue.pop(0)
        return await then() if then else {"type": "http.request", "body": b"", "more_body": False}

    return receive


def status_of(receive: Receive, **headers: str) -> int:
    named = {"content-type": "application/json", **{name.replace("_", "-"): each for name, each in headers.items()}}
    with pytest.raises(Problem) as problem:
        asyncio.run(read_document(receive, named))
    assert json.loads(problem.value.body())["error"]["message"]
    return problem.value.status


def test_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(
        read_document(sending(b'{"a"', b": 1}"), {"content-type": "application/json; charset=utf-8"})
    ) == {"a": 1}
    assert status_of(sending(b"{}"), content_type="text/plain") == 415
    assert status_of(sending(b"{}"), content_length=str(10**9)) == 413
    assert status_of(sending(*[b" " * 100_000] * (LARGEST_BODY // 100_000 + 1))) == 413
    for text in (b"", b"{", b"[1]", b"1", b'{"a": NaN}', b"\xff\xfe", b'{"a": 1e999e}', b"[" * 100_000, b"1" * 5000):
        assert status_of(sending(text)) == 400

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def never() -> Message:
        await asyncio.sleep(60)
        return {}

    assert status_of(sending(b"{", then=gone)) == 400
    monkeypatch.setattr("infercast.web.limits.BODY_SECONDS", 0.05)
    assert status_of(sending(b"{", then=never)) == 408


def test_files_are_those_of_the_folder_and_no_links(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "index.html").write_text("page")
    (tmp_path / "inner" / "a.js").write_text("code")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    found = read_files(tmp_path)
    assert sorted(found) == ["", "index.html", "inner/a.js"]
    assert found[""] == found["index.html"]
    assert found["inner/a.js"].media_type.startswith("text/javascript")
    assert "index.html" in read_files(STATIC)
