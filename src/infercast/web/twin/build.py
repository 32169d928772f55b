"""Writes the page as a folder that anyone can host: no server, no Python on the machine that hosts it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import infercast
from infercast.errors import InputError
from infercast.web.answers import answer
from infercast.web.files import FOLDER as STATIC
from infercast.web.twin.packages import NUMPY, PYODIDE, Tell, fetch, numpy_files, python_files, zipped

PIECE = 65_536
"""Large archives of forests come in pieces of so many bytes, of which a question needs a few."""
LARGE = 200_000
LEFT_OUT = ("measure", "fit", "validate", "calibrate", "cli", "data/runs", "web/static", "web/twin/build.py")
"""Parts of the package that answer nothing on the page."""
TRANSPORT = '<meta name="infercast-transport" content="http">'
API_LINK = '<a href="api/v1" class="quiet">API</a>'
BACKTRACE = bytes.fromhex(
    "0061736d01000000000f0864796c696e6b2e3001040000000001070160027f7f017f03020100070d01096261636b747261636500000a0601040041"
    "000b"
)
"""A library of one function, ``int backtrace(void **, int)`` that returns 0. numpy asks it who holds a temporary array
before it reuses one; Python for WebAssembly has none, and numpy would stop. With 0 it reuses nothing."""


def build_twin(folder: Path, tell: Tell) -> int:
    """Write the folder; returns its bytes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--static {folder} exists already; name a new folder or an empty one")
    files = {**_page_files(), **_python(tell), **_package()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        whole = Path(temporary, "whole")
        for name, content in files.items():
            path = whole / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            folder.rmdir()
        shutil.move(whole, folder)
    return sum(map(len, files.values()))


def _page_files() -> dict[str, bytes]:
    """The page, which is told to ask a worker of the browser instead of a server."""
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in _plain_files(STATIC)}
    page = files["index.html"].decode()
    assert TRANSPORT in page, "the page does not say where its answers come from"
    page = page.replace(TRANSPORT, TRANSPORT.replace("http", "worker")).replace(API_LINK, "")
    files["index.html"] = page.encode()
    files["catalog.json"] = json.dumps(answer("catalog", {})).encode()
    files["worker.js"] = Path(__file__).with_name("worker.js").read_bytes()
    return files


def _python(tell: Tell) -> dict[str, bytes]:
    """Python and numpy."""
    files = {f"python/{name}": content for name, content in python_files(fetch(PYODIDE, tell)).items()}
    files["python/numpy.zip"] = zipped(numpy_files(fetch(NUMPY, tell)))
    files["python/backtrace.so"] = BACKTRACE
    return files


def _package() -> dict[str, bytes]:
    """infercast, with a note instead of each large archive, and the archives in pieces."""
    root = Path(infercast.__file__).parent
    inside: dict[str, bytes] = {}
    pieces: dict[str, bytes] = {}
    for path in _plain_files(root):
        name = path.relative_to(root).as_posix()
        if name.startswith(LEFT_OUT):
            continue
        content = path.read_bytes()
        if path.suffix == ".npz" and len(content) > LARGE:
            cut = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
            pieces |= {f"fitted/{path.stem}-{number}.bin": piece for number, piece in enumerate(cut)}
            content = json.dumps({"pieces": f"fitted/{path.stem}", "size": len(content), "piece": PIECE}).encode()
        inside[f"infercast/{name}"] = content
    return {"python/infercast.zip": zipped(inside), **pieces}


def _plain_files(root: Path) -> Iterator[Path]:
    """Every file below a folder, in order, but for what Python has compiled."""
    return (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
