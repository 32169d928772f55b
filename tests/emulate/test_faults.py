"""What goes wrong on demand, when it is asked for and as often."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infercast.emulate.faults import read_faults
from infercast.emulate.server import emulator
from infercast.errors import InputError

LONG = {"prompt": "a", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with emulator("qwen3-0.6b", "h200-sxm", speed=20, replicas=2) as url, httpx.Client(base_url=url) as found:
        yield found


def status(client: httpx.Client) -> int:
    return client.post("/v1/completions", json=LONG).status_code


def seconds(client: httpx.Client) -> float:
    """What one answer takes on the deployment's clock."""

    def total() -> float:
        metrics = client.get("/metrics").text
        return sum(map(float, re.findall(r"^vllm:e2e_request_latency_seconds_sum\S* (.*)$", metrics, re.MULTILINE)))

    before = total()
    assert status(client) == 200
    return total() - before


def test_refusals_come_as_often_as_asked(client: httpx.Client) -> None:
    client.post("/faults", json={"kind": "refuse", "status": 429, "count": 2})
    replies = [client.post("/v1/completions", json=LONG) for _ in range(3)]
    assert [each.status_code for each in replies] == [429, 429, 200]
    assert replies[0].headers["retry-after"] == "1"
    assert client.get("/faults").json()["struck"] == {"refuse": 2}
    assert 'infercast:faults_total{kind="refuse"} 2' in client.get("/metrics").text


def test_a_connection_breaks_in_the_middle(client: httpx.Client) -> None:
    client.post("/faults", json={"kind": "drop", "count": 1, "after": 5})
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/v1/completions", json={**LONG, "stream": True})
    assert client.post("/v1/completions", json={**LONG, "stream": True}).text.endswith("[DONE]\n\n")


def test_a_stream_stalls_and_goes_on(client: httpx.Client) -> None:
    client.post("/faults", json={"kind": "stall", "count": 1, "seconds": 0.3})
    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
        text = "".join(reply.iter_text())
    assert reply.elapsed.total_seconds() > 0.3
    assert text.count(" ") > 40


@pytest.mark.parametrize("kind", ["slow_gpu", "slow_host"])
def test_a_slow_engine_takes_longer_until_it_is_over(client: httpx.Client, kind: str) -> None:
    seconds(client)
    usual = min(seconds(client) for _ in range(3))
    client.post("/faults", json={"kind": kind, "factor": 30})
    assert seconds(client) > 2 * usual
    client.delete("/faults")
    assert min(seconds(client) for _ in range(3)) < 2 * usual


def test_a_crashed_replica_gets_nothing_and_all_of_them_refuse(client: httpx.Client) -> None:
    client.post("/faults", json={"kind": "crash", "replica": 0, "seconds": 600})
    assert [status(client) for _ in range(4)] == [200] * 4
    assert client.get("/health").status_code == 200
    client.post("/faults", json={"kind": "crash", "seconds": 600})
    assert status(client) == client.get("/health").status_code == 503
    client.delete("/faults")
    assert status(client) == 200


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"kind": "fire"}, "kind must be"), ({"kind": "crash", "replica": 7}, "replica must be below 2"),
     ({"kind": "refuse", "share": 2}, "share must be"), ({"kind": "refuse", "sahre": 1}, "sahre")],
)  # fmt: skip
def test_faults_that_are_none(client: httpx.Client, fault: dict[str, object], words: str) -> None:
    reply = client.post("/faults", json=fault)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]


def test_a_file_of_faults(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text('[[fault]]\nkind = "crash"\nat = 60\n', "utf-8")
    assert read_faults(path) == [{"kind": "crash", "at": 60}]
    path.write_text("[fault", "utf-8")
    with pytest.raises(InputError, match="is not TOML"):
        read_faults(path)
