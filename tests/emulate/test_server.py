"""The endpoint over HTTP: what clients of OpenAI's API send and get, errors, aborts, metrics."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from infercast.calibration.learn import fetch
from infercast.calibration.readers import parse_metrics
from infercast.emulate.answers import Wanted
from infercast.emulate.emulator import Call, Emulator
from infercast.emulate.forms import Completions
from infercast.emulate.server import Writer, emulator
from infercast.forecast.deploy import deploy
from infercast.forecast.system import system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.web.server import listen_on


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with emulator("qwen3-0.6b", "h200-sxm", speed=20, answer_lengths="20") as url, httpx.Client(base_url=url) as found:
        yield found


def events(client: httpx.Client, path: str, document: dict[str, object]) -> list[str]:
    with client.stream("POST", path, json=document) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") for line in reply.iter_lines() if line]


def test_a_completion(client: httpx.Client) -> None:
    reply = client.post(
        "/v1/completions", json={"prompt": "one two three", "max_tokens": 12, "ignore_eos": True}
    ).json()
    assert reply["object"] == "text_completion"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


def test_answers_end_by_themselves(client: httpx.Client) -> None:
    reply = client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 500}).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 20


def test_several_prompts_and_choices(client: httpx.Client) -> None:
    reply = client.post(
        "/v1/completions", json={"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    ).json()
    assert [each["index"] for each in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 12


def test_a_chat_in_a_stream(client: httpx.Client) -> None:
    document = {
        "model": "qwen3-0.6b", "messages": [{"role": "user", "content": "hello"}], "stream": True,
        "max_completion_tokens": 5, "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    *chunks, usage, done = events(client, "/v1/chat/completions", document)
    assert done == "[DONE]"
    assert json.loads(usage)["usage"]["completion_tokens"] == 5
    read = [json.loads(each)["choices"][0] for each in chunks]
    assert read[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["delta"]["content"] for each in read).count(" ") == 5
    assert [each["finish_reason"] for each in read][-1] == "length"


def test_sglangs_own_api(client: httpx.Client) -> None:
    sampling = {"max_new_tokens": 4, "ignore_eos": True}
    whole = client.post("/generate", json={"text": "hello there", "sampling_params": sampling}).json()
    assert whole["meta_info"]["completion_tokens"] == 4
    *_, last, done = events(client, "/generate", {"input_ids": [1, 2], "sampling_params": sampling, "stream": True})
    assert done == "[DONE]"
    assert json.loads(last)["meta_info"]["finish_reason"] == {"type": "length"}


def test_what_it_serves_and_how_it_goes(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == "qwen3-0.6b"
    assert client.post("/tokenize", json={"prompt": "one two"}).json()["count"] == 2
    client.post("/v1/completions", json={"prompt": "one", "max_tokens": 2})
    told = client.get("/infercast", timeout=60).json()
    assert told["requests"] > 0
    assert told["forecast"]["ttft_ms"]["p50"] > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", b"{", 400, "JSON"),
        ("/v1/completions", b"[]", 400, "object"),
        ("/v1/completions", b'{"prompt": ""}', 400, "empty"),
        ("/v1/completions", b'{"prompt": {"a": 1}}', 400, "prompt must be"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 1e9}', 400, "maximum context length"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 999999}', 400, "maximum context length"),
        ("/v1/completions", b'{"prompt": "a", "n": 20000}', 400, "16384"),
        ("/v1/completions", b'{"prompt": "a", "stream": "maybe"}', 400, "stream"),
        ("/v1/completions", b'{"model": "gpt-5", "prompt": "a"}', 404, "does not exist"),
        ("/v1/chat/completions", b'{"messages": "hi"}', 400, "messages"),
        ("/generate", b"{}", 400, "text or input_ids"),
        ("/v1/nothing", b"{}", 404, "there is no"),
        ("/metrics", b"{}", 405, "POST"),
    ],
)
def test_errors_are_those_of_openais_api(client: httpx.Client, path: str, body: bytes, status: int, words: str) -> None:
    reply = client.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]


def test_other_hosts_are_refused(client: httpx.Client) -> None:
    assert client.get("/health", headers={"host": "example.com"}).status_code == 403


def test_a_client_that_leaves_frees_its_blocks(client: httpx.Client) -> None:
    document = {"prompt": "a b c", "max_tokens": 20000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=document) as reply:
        next(reply.iter_lines())
    for _ in range(100):
        values = parse_metrics(fetch(str(client.base_url)))
        running = sum(value for (name, _), value in values.items() if name == "vllm:num_requests_running")
        if running == 0:
            break
        time.sleep(0.05)
    usage = [value for (name, _), value in values.items() if name == "vllm:kv_cache_usage_perc"]
    assert running == 0
    assert usage == [0.0]


def test_prefixes_are_found_by_the_text(client: httpx.Client) -> None:
    def hits() -> float:
        return sum(
            value
            for (name, _), value in parse_metrics(fetch(str(client.base_url))).items()
            if name == "vllm:prefix_cache_hits_total"
        )

    text, before = "a prompt that two clients share " * 40, hits()
    for end in ("first", "second"):
        client.post("/v1/completions", json={"prompt": text + end, "max_tokens": 1})
    assert hits() - before > 150


def test_a_client_that_reads_slowly_gets_everything_later() -> None:
    now, sent = [0.0], list[bytes]()
    system = system_of(deploy("qwen3-0.6b", "h200-sxm"))
    emulated = Emulator(system, parse_lengths("20", ""), clock=lambda: now[0])

    async def serve() -> None:
        is_free = asyncio.Event()

        async def send(message: Any) -> None:
            if sent:
                await is_free.wait()  # its buffer is full after the first event
            sent.append(message["body"])

        call = Call()
        emulated.start(call, 0, [1, 2, 3], 50, Wanted(ignore_eos=True))
        call.write = Writer(call, Completions("1", "m", is_chat=False), send, is_stream=True).write
        for number in range(100):
            now[0] = 0.01 * number
            emulated.catch_up()
            await asyncio.sleep(0)
        assert not call.num_open
        assert len(sent) == 1
        is_free.set()
        await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert len(sent) == 3  # the first, the one that waited, and all that came meanwhile
    assert b"".join(sent).count(b'"text":" ') == 3
    assert sum(text.count(b" ") for text in re.findall(rb'"text":"([^"]*)"', b"".join(sent))) == 50
    assert sent[-1].endswith(b"data: [DONE]\n\n")


def test_events_hold_as_many_tokens_as_asked() -> None:
    now, sent = [0.0], list[bytes]()
    emulated = Emulator(system_of(deploy("qwen3-0.6b", "h200-sxm")), parse_lengths("20", ""), clock=lambda: now[0])

    async def send(message: Any) -> None:
        sent.append(message["body"])

    call = Call()
    emulated.start(call, 0, [1, 2, 3], 22, Wanted(ignore_eos=True))
    call.write = Writer(call, Completions("1", "m", is_chat=False), send, is_stream=True, every=10).write
    for number in range(1000):
        now[0] = 0.001 * number
        emulated.catch_up()
    texts = re.findall(rb'"text":"([^"]*)"', b"".join(sent))
    counts = [text.count(b" ") for text in texts]
    assert (counts[0], sum(counts)) == (1, 22)
    assert min(counts[1:-1]) >= 10


def test_a_broken_connection_does_not_stop_the_clock() -> None:
    now, sent = [0.0], list[bytes]()
    emulated = Emulator(system_of(deploy("qwen3-0.6b", "h200-sxm")), parse_lengths("20", ""), clock=lambda: now[0])

    async def broken(_: Any) -> None:
        raise RuntimeError("the connection is broken")

    async def send(message: Any) -> None:
        sent.append(message["body"])

    for each in (broken, send):
        call = Call()
        emulated.start(call, 0, [1, 2, 3], 50, Wanted(ignore_eos=True))
        call.write = Writer(call, Completions("1", "m", is_chat=False), each, is_stream=True).write
    for number in range(100):
        now[0] = 0.01 * number
        emulated.catch_up()
    assert sent[-1].endswith(b"data: [DONE]\n\n")


def test_short_packets_are_sent_at_once() -> None:
    with listen_on("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
