"""``infercast web``: what it refuses before it listens."""

import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

Run = Callable[..., Any]


def test_what_must_be_installed_is_named(infercast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    install = f"{sys.executable} -m pip install starlette uvicorn pydantic"
    assert infercast("web").sentence == f"infercast web needs starlette, uvicorn and pydantic: {install}"


@pytest.mark.skipif(find_spec("uvicorn") is None, reason="needs infercast[web]")
def test_numbers_and_ports_are_checked(infercast: Run) -> None:
    assert infercast("web", "--port", 70000).sentence == "--port must be from 0 to 65535, not 70000"
    assert infercast("web", "--workers", 0).sentence == "--workers must be from 1 to 64, not 0"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = infercast("web", "--port", port, "--workers", 1).sentence
    assert told == f"127.0.0.1 port {port} cannot be used: Address already in use; choose --host and --port"
