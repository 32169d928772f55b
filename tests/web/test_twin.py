"""The page without a server: what of it can be checked without a browser."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.npyio import NpzFile

from infercast.bundled import DATA
from infercast.errors import InputError
from infercast.predict.fitted import contents_hash, open_arrays
from infercast.web import pyodide as bootstrap
from infercast.web import static_site as build
from infercast.web.static_site import Package, fetch, slim_library, unpacked, zipped

KERNELS = DATA / "fitted" / "kernels.npz"


def test_pieces_are_the_archive_and_few_are_fetched() -> None:
    content, fetched = KERNELS.read_bytes(), []

    def cut(name: str) -> bytes:
        fetched.append(name)
        start = int(name.rsplit("-", 1)[1].removesuffix(".bin")) * build.PIECE
        return content[start : start + build.PIECE]

    note = {"pieces": "fitted/kernels", "size": len(content), "piece": build.PIECE}
    pieces, whole = NpzFile(bootstrap.PiecedFile(note, cut)), open_arrays(KERNELS)
    assert contents_hash(pieces) == contents_hash(whole)
    for name in ("header", "0/leaves", "13/borders"):
        assert np.array_equal(pieces[name], whole[name])
    assert len(set(fetched)) == len(fetched) < 10


def test_the_package_has_notes_for_large_archives() -> None:
    files = build._package()
    names = zipfile.ZipFile(io.BytesIO(files["python/infercast.zip"])).namelist()
    assert "infercast/web/answers.py" in names
    assert not [name for name in names if "__pycache__" in name or "data/runs" in name]
    together = b"".join(
        files[f"fitted/kernels-{number}.bin"] for number in range(-(-KERNELS.stat().st_size // build.PIECE))
    )
    assert together == KERNELS.read_bytes()


def test_the_page_asks_a_worker() -> None:
    files = build._page_files()
    assert b'content="worker"' in files["index.html"]
    assert b"api/v1" not in files["index.html"]
    assert json.loads(files["catalog.json"])["models"]


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(InputError, match="exists already"):
        build.build_twin(tmp_path, lambda _: None)


def test_a_package_that_is_not_the_expected_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(b"another file"))
    with pytest.raises(InputError, match="not the file that was expected"):
        fetch(Package("p/-/p-1.tgz", "sha512-AAAA"), lambda _: None)


def test_the_library_keeps_what_is_used() -> None:
    files = {"json/__init__.py": b"1", "unittest/mock.py": b"2", "encodings/utf_8.py": b"3", "encodings/cp037.py": b"4"}
    slim = zipfile.ZipFile(io.BytesIO(slim_library(zipped(files))))
    assert slim.namelist() == ["encodings/utf_8.py", "json/__init__.py"]
    assert zipped(files) == zipped(dict(reversed(files.items())))


def test_unpacking_reads_plain_files_only() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind in (("package/a", tarfile.REGTYPE), ("package/link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO(b""))
    assert unpacked(buffer.getvalue(), "package/") == {"a": b""}


def test_python_answers_the_page() -> None:
    said = json.loads(bootstrap.respond("ask", "memory", json.dumps({"state": {}}), lambda _: None))
    assert said["result"]["question"] == "memory"
    said = json.loads(bootstrap.respond("ask", "memory", json.dumps({"state": {"model": "nothing"}}), lambda _: None))
    assert said["error"]["type"] == "UnknownNameError"


def test_integers_of_32_bits_are_widened_but_for_indices() -> None:
    narrow = bootstrap._widened(lambda values, dtype=None: np.asarray(values, dtype=np.int32))
    assert narrow([1]).dtype == np.int64
    assert narrow(np.array([1], dtype=np.int32)).dtype == np.int32
    assert narrow([1], dtype=np.int32).dtype == np.int32
