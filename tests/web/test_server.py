"""One real server: many at once, malformed ones, paths, leaks between users, jobs, and clients that say nothing."""

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs infercast[web]")
pytest.importorskip("httpx")

import httpx

from infercast.web.limits import HEADERS, LARGEST_BODY
from infercast.web.state import FIELDS

QUICK = {"num_requests": 12, "input_len": "100", "output_len": "8"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 32000,
    "num_key_value_heads": 2, "intermediate_size": 2048, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


class Server:
    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self.process = address, process
        self.port = int(address.rpartition(":")[2])
        self.client = httpx.Client(base_url=address, timeout=60.0, limits=httpx.Limits(max_connections=250))

    def post(self, path: str, document: Any) -> httpx.Response:
        while (reply := self.client.post(f"/api/v1/{path}", json=document)).status_code == 429:
            time.sleep(0.2)
        return reply

    def raw(self, data: bytes, seconds: float = 20.0) -> bytes:
        """What comes back for bytes as they are, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as link:
            link.sendall(data)
            found = b""
            try:
                while part := link.recv(65536):
                    found += part
            except ConnectionError:
                pass
            return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    words = [sys.executable, "-m", "infercast", "web", "--port", "0", "--workers", "1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, "the server did not start"
                text += line
            server = Server(json.loads(text)["page"].rstrip("/"), process)
            with server.client:
                yield server
        finally:
            process.terminate()
            process.wait(20)


def test_the_page_its_api_and_its_headers(server: Server) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/index.html", "text/html"),
        ("/api/v1", "text/html"),
        ("/api/v1/style.css", "text/css"),
        ("/api/v1/catalog", "application/json"),
        ("/api/v1/openapi.json", "application/json"),
    ):
        reply = server.client.get(path)
        assert reply.status_code == 200, path
        assert reply.headers["content-type"].startswith(kind)
        assert reply.headers.items() >= HEADERS.items()
        assert "server" not in reply.headers
    page = server.client.get("/")
    assert server.client.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    document = server.client.get("/api/v1/openapi.json").json()
    assert {*document["components"]["schemas"]["State"]["properties"]} == {field.name for field in FIELDS}
    told = server.client.get("/api/v1").text
    assert all(f"<code>{field.name}</code>" in told for field in FIELDS)


def test_a_question_by_its_body_and_by_its_url(server: Server) -> None:
    posted = server.post("simulate", {"state": QUICK}).json()
    got = server.client.get(f"/api/v1/simulate?{posted['query']}").json()
    assert got == posted
    export = server.post("export/csv", {"state": QUICK})
    assert export.headers["content-disposition"] == 'attachment; filename="llama-3.1-8b-h200-sxm.csv"'
    assert export.text.count("\n") == 13
    wrong = server.post("simulate", {"state": {"rate": -1}})
    assert wrong.status_code == 422
    assert wrong.json()["error"]["type"] == "InputError"
    assert server.post("simulate", {"state": {"model": "deepseek-v3"}}).json()["memory"]["fits"] is False


def test_two_hundred_at_once_are_all_answered(server: Server) -> None:
    """A hundred that differ, sixty alike, and forty for files; each gets the answer to its own question."""

    def ask(number: int) -> tuple[int, bool]:
        if number >= 160:
            reply = server.client.get("/api/v1/catalog" if number % 2 else "/")
            return reply.status_code, True
        rate = 1.0 + (number if number < 100 else 0.5)
        question = "simulate" if number % 5 == 0 else "memory"
        reply = server.post(question, {"state": {**QUICK, "rate": rate}, "intervals": False})
        return reply.status_code, reply.json()["state"]["rate"] == rate

    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(ask, range(200)))
    assert Counter(found) == {(200, True): 200}


def malformed(chance: random.Random) -> tuple[str, str, dict[str, str], bytes]:
    """A request that makes no sense: its method, path, headers and body."""
    junk = bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
    fields = [field.name for field in FIELDS] + ["__proto__", "config", "state", ""]
    value: Any = chance.choice(
        [None, True, -1, 0, 10**30, 1e308, "", "x", "\u0000", "../../etc/passwd", [], [[[]]], {}, {"a": 1}, "9" * 399]
    )
    state = {chance.choice(fields): value for _ in range(chance.randrange(1, 4))}
    document: Any = chance.choice([state, {"state": state}, {"query": value}, {"config": value}, [state], value])
    bodies = [junk, json.dumps(document).encode(), json.dumps({"state": state}).encode(), b"[" * 5000, b'{"state":']
    path = chance.choice(
        ["simulate", "memory", "memory", "jobs", "export/csv", "export/%00", "jobs/x", "nothing", "..%2f..%2fetc",
         f"simulate?{chance.choice(fields)}={value}"[:300].replace("\u0000", "%00").replace(" ", "")]
    )  # fmt: skip
    kinds = ["application/json", "application/json", "application/json", "text/plain", "multipart/form-data", "\x01"]
    headers = {"content-type": chance.choice(kinds)}
    return chance.choice(["POST", "POST", "POST", "PUT", "GET", "BREW"]), path, headers, chance.choice(bodies)


def test_hundreds_of_malformed_requests_are_survived(server: Server) -> None:
    chance, codes = random.Random(5), Counter[int]()
    for _ in range(250):
        method, path, headers, body = malformed(chance)
        words = [f"{method} /api/v1/{path} HTTP/1.1", "Host: localhost", "Connection: close"]
        words += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*words, f"Content-Length: {len(body)}", "", ""]).encode("latin-1", "replace")
        while (code := int((reply := server.raw(head + body))[9:12])) == 429:
            time.sleep(0.2)
        codes[code] += 1
        told = reply.partition(b"\r\n\r\n")[2]
        assert code != 500, (method, path, body, told)
        if code >= 400 and told[:1] == b"{":
            assert {"type", "message"} <= {*json.loads(told)["error"]}
        assert b"Traceback" not in told
        assert b"root:" not in told
    assert codes[422] + codes[400] + codes[415] + codes[404] + codes[405] > 200, codes
    assert server.post("memory", {"state": QUICK}).status_code == 200
    time.sleep(1.0)  # the client may ask again


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000,
        b"\x00" * 1000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_closed(server: Server, data: bytes) -> None:
    found = server.raw(data)
    assert found == b"" or found.startswith(b"HTTP/1.1 4")


def test_who_says_nothing_is_disconnected(server: Server) -> None:
    """Also who sends the beginning of a request and then a byte now and then."""
    start = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(lambda data: server.raw(data, 40.0), [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
        )
    assert found == [b"", b"", b""]
    assert time.monotonic() - start < 35


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd", "/..%2f..%2f..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd", "/static/../app.py", "/../app.py", "/..%5capp.py", "/app.py", "/__init__.py", "/./../server.py",
        "/index.html%00.js", "/%252e%252e/app.py", "/api/v1/../../app.py", "/index.html/../../app.py",
        "/file:///etc/passwd", "/~/.ssh/id_rsa",
    ],
)  # fmt: skip
def test_no_path_outside_the_folder_is_read(server: Server, path: str) -> None:
    found = server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 404")
    assert b"root:" not in found
    assert b"import" not in found


def test_a_body_that_is_too_large_is_not_read(server: Server) -> None:
    assert server.client.post("/api/v1/simulate", content=b" " * (LARGEST_BODY + 1)).status_code == 415
    headers = {"content-type": "application/json"}
    assert server.client.post("/api/v1/simulate", content=b" " * (LARGEST_BODY + 1), headers=headers).status_code == 413


def test_nothing_leaks_between_users(server: Server) -> None:
    """Each gets the answer for its own config at the same time as others, and no list names anybody's job."""

    def ask(width: int) -> tuple[int, Any]:
        document = {"state": QUICK, "config": {**CONFIG, "hidden_size": width}, "intervals": False}
        return width, server.post("memory", document).json()["memory"]["parameters"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, [512, 1024, 2048, 4096] * 8))
    assert len(dict(found)) == len(set(dict(found).values())) == 4
    assert all(count == dict(found)[width] for width, count in found)
    assert server.post("memory", {"state": QUICK}).json()["memory"]["model"] == "llama-3.1-8b"
    assert server.client.get("/api/v1/jobs").status_code == 404
    assert server.client.get("/api/v1/jobs/0").status_code == 404


def test_a_job_runs_tells_and_is_cancelled(server: Server) -> None:
    state = {"slo": "ttft_p99<1s,tpot_p95<40ms", "rate": 50, "max_gpus": 64, "quantizations": ["any"]}
    started = server.post("jobs", {"question": "plan", "state": state})
    assert started.status_code == 202
    place, begin = started.headers["location"], time.monotonic()
    while not server.client.get(place).json()["says"]:
        assert time.monotonic() - begin < 60
        time.sleep(0.1)
    assert server.client.delete(place).json()["state"] == "cancelled"
    quick = server.post("jobs", {"question": "curve", "state": {"rates": "4,8", "curve_requests": 50}}).json()
    while (found := server.client.get(f"/api/v1/jobs/{quick['id']}").json())["state"] in ("queued", "running"):
        assert time.monotonic() - begin < 120
        time.sleep(0.1)
    assert found["state"] == "done"
    assert [point["value"] for point in found["result"]["curve"]["points"]] == [4, 8]
    failed = server.post("jobs", {"question": "plan", "state": {}}).json()
    while (found := server.client.get(f"/api/v1/jobs/{failed['id']}").json())["state"] in ("queued", "running"):
        assert time.monotonic() - begin < 180
        time.sleep(0.1)
    assert (found["state"], found["error"]["type"]) == ("failed", "InputError")
    assert server.post("jobs", {"question": "everything", "state": {}}).status_code == 422


def test_the_server_ends_with_its_workers(server: Server) -> None:
    assert server.process.poll() is None
