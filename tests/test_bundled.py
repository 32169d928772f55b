"""Data files are kept in compiled form, as modules are."""

import os
from pathlib import Path

import pytest

from infercast.bundled import read_data


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("sys.pycache_prefix", None)
    yield
    read_data.cache_clear()


def read(path: Path) -> dict:
    read_data.cache_clear()
    return read_data(path)


def test_what_was_compiled_is_read_until_the_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "facts.toml"
    path.write_text('names = ["a", "b"]\n[of]\nx = 1.5\n')
    assert read(path) == {"names": ("a", "b"), "of": {"x": 1.5}}
    assert len(list((tmp_path / "__pycache__").iterdir())) == 1
    with monkeypatch.context() as patched:
        patched.setattr("tomllib.loads", lambda _: pytest.fail("it is compiled"))
        assert read(path) == {"names": ("a", "b"), "of": {"x": 1.5}}
    path.write_text("x = 2\n")
    assert read(path) == {"x": 2}
    os.utime(path, ns=(1, 1))
    assert read(path) == {"x": 2}


def test_damaged_or_unwritable_it_is_read_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "facts.toml"
    path.write_text("x = 2026-01-02\n")
    assert str(read(path)["x"]) == "2026-01-02"
    assert not list(tmp_path.glob("__pycache__/*"))
    path.write_text("x = 3\n")
    read(path)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    for damage in (b"", b"\x00\x01", compiled.read_bytes()[:10]):
        compiled.write_bytes(damage)
        assert read(path) == {"x": 3}
    compiled.unlink()
    monkeypatch.setattr("os.makedirs", lambda *_, **__: (_ for _ in ()).throw(PermissionError()))
    assert read(path) == {"x": 3}
