"""The page as static files: Python, numpy and infercast run in the browser (Pyodide), without a server."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import infercast
from infercast.bundled import read_data
from infercast.errors import InputError
from infercast.lazy_classes import NamedTuple
from infercast.units import json_text
from infercast.web.answers import answer

STATIC = Path(__file__).parent / "static"
REGISTRY = "https://registry.npmjs.org"
PIECE = 65_536  # bytes of the pieces that large archives of forests come in; a question needs a few of them
LEFT_OUT = (
    "lab", "calibrate", "calibration", "old_names", "cli", "data/lab", "data/runs", "web/static/", "web/static_site.py",
)  # fmt: skip
"""Parts of the package that answer nothing on the page."""
TRANSPORT = '<meta name="infercast-transport" content="http">'
BACKTRACE = bytes.fromhex(
    "0061736d01000000000f0864796c696e6b2e3001040000000001070160027f7f017f03020100070d01096261636b747261636500000a0601040041"
    "000b"
)  # ``int backtrace(void **, int)`` that returns 0: numpy asks it before it reuses temporaries, WebAssembly has none


class Package(NamedTuple):
    path: str
    integrity: str


MADE_OF = read_data("web/static_site.toml")
PYODIDE, NUMPY = (Package(**MADE_OF[name]) for name in ("pyodide", "numpy"))
FILES = MADE_OF["files"]
SITE = "lib/python3.12/site-packages/"
Tell = Callable[[str], None]


def fetch(package: Package, tell: Tell) -> dict[str, bytes]:
    tell(f"downloading {package.path.rsplit('/', 1)[1]}")
    try:
        with urllib.request.urlopen(f"{REGISTRY}/{package.path}", timeout=120) as answer:
            most_bytes = 64 * 2**20
            packed = answer.read(most_bytes)
    except OSError as problem:
        raise InputError(f"{REGISTRY}/{package.path} could not be downloaded: {problem}") from None
    found = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    if found != package.integrity:
        raise InputError(f"{package.path} is not the file that was expected: {found}, not {package.integrity}")
    return unpacked(packed, "package/")


def python_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """Pyodide as the page loads it: its large parts compressed, the standard library without what is not used."""
    kept = {name: files[name] for name in FILES["pyodide"]}
    kept["python_stdlib.zip"] = slim_library(kept["python_stdlib.zip"])
    # The list of packages that Pyodide could load from its own site: none is.
    listed = json.loads(kept["pyodide-lock.json"])
    kept["pyodide-lock.json"] = json_text({"info": listed["info"], "packages": {}}).encode()
    return {
        f"{name}.gz" if name.startswith("pyodide.asm") else name: (
            gzip.compress(content, 9, mtime=0) if name.startswith("pyodide.asm") else content
        )
        for name, content in kept.items()
    }


def slim_library(packed: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        used = [name for name in archive.namelist() if not name.startswith(FILES["unused_library"])]
        encodings = [f"encodings/{name}.py" for name in FILES["encodings"]]
        kept = [name for name in used if not name.startswith("encodings/") or name in encodings]
        return zipped({name: archive.read(name) for name in kept})


def numpy_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """Numpy as it is to be unpacked among Python's packages."""
    (inner,) = (content for name, content in files.items() if name.startswith("pkg/"))
    return {
        name.removeprefix(SITE): content
        for name, content in unpacked(inner, "").items()
        if name.startswith(f"{SITE}numpy/") and not any(part in name for part in FILES["unused_numpy"])
    }


def unpacked(packed: bytes, prefix: str) -> dict[str, bytes]:
    """Plain files of a compressed tar, read in memory: nothing of it is written anywhere by its own names."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                found[member.name.removeprefix(prefix)] = file.read()
    return found


def zipped(files: dict[str, bytes]) -> bytes:
    """Files as a zip, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def build_twin(folder: Path, tell: Tell) -> int:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--static {folder} exists already; name a new folder or an empty one")
    runtime = {f"python/{name}": content for name, content in python_files(fetch(PYODIDE, tell)).items()}
    runtime["python/numpy.zip"] = zipped(numpy_files(fetch(NUMPY, tell)))
    runtime["python/backtrace.so"] = BACKTRACE
    files = {**_page_files(), **runtime, **_package()}
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
    """The page, set up to ask a worker of the browser instead of a server."""
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in _plain_files(STATIC)}
    page = files["index.html"].decode()
    assert TRANSPORT in page, "the page does not say where its answers come from"
    api_link = '<a href="api/v1" class="quiet">API</a>'
    page = page.replace(TRANSPORT, TRANSPORT.replace("http", "worker")).replace(api_link, "")
    files["index.html"] = page.encode()
    files["catalog.json"] = json_text(answer("catalog", {})).encode()
    files["worker.js"] = Path(__file__).with_name("worker.js").read_bytes()
    return files


def _package() -> dict[str, bytes]:
    """infercast, with a note instead of each large archive, and the archives in pieces."""
    root = Path(infercast.__file__).parent
    inside: dict[str, bytes] = {}
    pieces: dict[str, bytes] = {}
    large = 200_000
    for path in _plain_files(root):
        name = path.relative_to(root).as_posix()
        if name.startswith(LEFT_OUT):
            continue
        content = path.read_bytes()
        if path.suffix == ".npz" and len(content) > large:
            cut = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
            pieces |= {f"fitted/{path.stem}-{number}.bin": piece for number, piece in enumerate(cut)}
            content = json_text({"pieces": f"fitted/{path.stem}", "size": len(content), "piece": PIECE}).encode()
        inside[f"infercast/{name}"] = content
    return {"python/infercast.zip": zipped(inside), **pieces}


def _plain_files(root: Path) -> Iterator[Path]:
    """Every file below a folder, in order, but for what Python has compiled."""
    return (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
