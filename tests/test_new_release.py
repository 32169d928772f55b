"""What a new release of an engine changes, on two tiny trees; and the page of all releases."""

import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "releases"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)

needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Python")


def metadata(*packages: str) -> str:
    return "".join(f"Requires-Dist: {each}\n" for each in packages)


BEFORE = {
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    max_num_seqs: int = 128

    def add_cli_args(parser):
        parser.add_argument("--max-num-seqs", type=int, default=128)
        parser.add_argument("--medusa", action="store_true")
        parser.add_argument("--backend", choices=["a", "b"])
""",
    "vllm/config/cache.py": "class CacheConfig:\n    size: int = 16\n    share: float = 0.9\n",
    "vllm/v1/core/sched/scheduler.py": '''
class Scheduler:
    def schedule(self, requests: list[int]) -> list[int]:
        """Old words."""
        logger.info("one")
        return [each for each in requests]

    def same(self):
        return 1
''',
    "vllm/v1/core/kv_cache_utils.py": "def moved(a):\n    return a\n\n\ndef changed(a):\n    return a + 1\n",
    "vllm/v1/engine/detokenizer.py": "def text_of(token):\n    return token\n",
    "vllm-0.1.0.dist-info/METADATA": metadata("torch==2.13.0", "pillow", "x==1; extra == 'a'"),
}
AFTER = {
    "vllm/engine/arg_utils.py": '''
class EngineArgs:
    max_num_seqs: int = 128

    def add_cli_args(parser):
        parser.add_argument("--max-num-seqs", type=int, default=256)
        parser.add_argument("--backend", choices=["b", "a", "c"])
        parser.add_argument("--of-tomorrow", type=int, default=3)
''',
    "vllm/config/cache.py": "class CacheConfig:\n    size: int = 16\n    share: float = 0.92\n    ahead: bool = 1\n",
    "vllm/v1/core/sched/scheduler.py": '''
class Scheduler:
    def schedule(self, requests: "list[int] | None") -> "list[int]":
        """New words."""
        logger.info("two")
        found = [
            each for each in requests
        ]
        return found

    def same(self, ) :
        return (1)
''',
    "vllm/v1/core/kv_cache_planning.py": "def moved(a):\n    return a\n\n\ndef changed(a):\n    return a + 2\n",
    "vllm/v1/engine/detokenizer.py": "def text_of(token):\n    return token\n",
    "vllm-0.2.0.dist-info/METADATA": metadata("torch==2.14.0", "pillow", "orjson (>=3)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("new_release")


@pytest.fixture(scope="module")
def report(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sources = tmp_path_factory.mktemp("sources")
    for version, files in (("0.1.0", BEFORE), ("0.2.0", AFTER)):
        for name, text in files.items():
            path = sources / f"vllm-{version}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    asked = Namespace(
        engine="vllm", version="0.2.0", before="0.1.0", sources=sources, wheel=None, python=sys.executable
    )
    asked.runs, asked.mode = 0, "all"
    found: dict[str, Any] = tool.examine(asked)[0]
    return found


def test_flags_and_defaults(report: dict[str, Any]) -> None:
    assert report["flags"] == {
        "new flags": ["--of-tomorrow (value, int, default 3)"],
        "flags that are gone": ["--medusa"],
        "flags defined in another way": ["--backend: + c", "--max-num-seqs: default 128 -> 256"],
        "new fields of settings": ["CacheConfig.ahead = 1"],
        "fields of settings that are gone": [],
        "fields of settings with another default": ["CacheConfig.share: 0.9 -> 0.92"],
    }
    assert report["flags without a class"] == ["--of-tomorrow (value, int, default 3)"]


def test_a_change_is_one_of_the_syntax_tree(report: dict[str, Any]) -> None:
    changes = {each["what"]: each["changes"] for each in report["subjects"]}
    assert changes["the scheduler"] == [["changed", "v1/core/sched/scheduler.py", "Scheduler.schedule", 2, 1]]
    moved = ["changed", "v1/core/kv_cache_planning.py", "changed", 1, 1]
    assert changes["KV groups and block sizes"] == [moved]
    assert "the API server" in report["unchanged"]


@pytest.mark.parametrize(
    ("file", "is_left_out"),
    [
        ("v1/engine/output_processor.py", False), ("v1/engine/input_processor.py", False),
        ("v1/kv_offload/cpu/manager.py", False), ("platforms/tpu.py", True), ("v1/worker/cpu_worker.py", True),
        ("v1/attention/backends/mla/rocm_aiter_mla.py", True), ("layers/attention/dsv4/compress_hip.py", True),
    ],
)  # fmt: skip
def test_files_of_other_hardware_are_left_out(tool: ModuleType, file: str, is_left_out: bool) -> None:
    assert bool(importlib.import_module("changes").OTHERS.search(file)) == is_left_out


def test_what_has_to_be_measured_again(tool: ModuleType, report: dict[str, Any]) -> None:
    assert report["pins"] == [["torch", "==2.13.0", "==2.14.0", "kernels"], ["orjson", "-", ">=3", ""]]
    text = tool.told(report, 8)
    measured = text.partition("## To measure on a GPU again")[2]
    assert "KV blocks of a model with windows" in measured
    assert "torch ==2.13.0 -> ==2.14.0" in measured
    assert "server times" not in measured
    assert "Not run: not asked for (--runs 0)." in text
    assert json.loads(json.dumps(report)) == report


@needs_shell
def test_where_the_engine_cannot_be_imported_a_sentence_says_so(tool: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    found = tool.compare("vllm", "0.2.0", tmp_path, str(python), 1, "all")
    assert "cannot import torch" in found["problem"]


@needs_shell
def test_decisions_are_counted_from_what_the_script_prints(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    said = "vLLM 0.32\\nmode equal of steps\\nasync 2 2 1,000 0\\nsync 1 2 90 0\\nlora 0 2 9 0\\n"
    wrong = "sync, seed 1: tokens in step 3\\nlora, seed 0: Traceback\\n  File\\nKeyError: 3\\nnoise\\n"
    python.write_text(f"#!/bin/sh\n[ $1 = -c ] && exit 0\nprintf '{said}'\nprintf '{wrong}' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(tool, "COMPARED", tmp_path / "compared.json")
    found = tool.compare("vllm", "9.9.0", tmp_path, str(python), 2, "all")
    assert (found["equal"], found["of"]) == (3, 6)
    assert [row.get("first difference", row.get("raised")) for row in found["modes"]] == [
        None, "tokens in step 3", "KeyError: 3",
    ]  # fmt: skip
    tool.keep({"engine": "vllm", "version": "9.9.0", "compared": found})
    page = importlib.import_module("page_of_releases")
    assert page.compared(tmp_path / "compared.json") == {("vllm", "9.9"): (3, 6)}


def test_files_that_are_watched_have_files_of_ours_and_checks(tool: ModuleType) -> None:
    changes = importlib.import_module("changes")
    for subject in (each for found in changes.WATCHED.values() for each in found):
        missing = [name for name in subject["ours"] if not (ROOT / "src" / "infercast" / name).exists()]
        scripts = [each.split()[0] for each in subject["checks"] if not each.startswith("infercast ")]
        assert not missing + [name for name in scripts if not (ROOT / name).exists()], subject["what"]


def test_the_page_has_every_release_that_is_known(tool: ModuleType) -> None:
    page = importlib.import_module("page_of_releases")
    text = (ROOT / "benchmarks" / "results" / "releases.md").read_text("utf-8")
    for engine, title in tool.TITLES.items():
        rows = text.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
        told = {line.split("|")[1].strip() for line in rows if line.startswith("|")}
        missing = {*page.known(engine, [], [])} - told
        assert not missing, f"python benchmarks/releases/page_of_releases.py: {engine} {sorted(missing)}"
