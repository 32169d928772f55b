"""Any result: whose format it is told by what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from infercast.calibrate.readers.aiperf import is_aiperf, read_aiperf
from infercast.calibrate.readers.bench_serve import documents_in, is_bench_serve, read_bench_serve
from infercast.calibrate.readers.guidellm import is_guidellm, read_guidellm
from infercast.calibrate.readers.inference_perf import is_inference_perf, read_inference_perf
from infercast.calibrate.readers.load import Asked
from infercast.calibrate.readers.metrics_text import is_metrics_text, read_metrics_text
from infercast.calibrate.readers.sglang_serving import is_sglang_serving, read_sglang_serving
from infercast.calibrate.readers.values import parse_json, read_text
from infercast.calibrate.result import Result
from infercast.errors import FileFormatError

KNOWN = (
    "vllm bench serve --save-result, vllm bench sweep, SGLang's bench_serving, GuideLLM, AIPerf, GenAI-Perf, "
    "inference-perf, and a snapshot of vLLM's /metrics"
)
MOST_FILES = 200
"""In a folder."""


def read_results(paths: Iterable[Path], asked: Asked | None = None) -> list[Result]:
    """All results of files and of folders of `vllm bench sweep`."""
    asked = asked or Asked()
    found = []
    for path in paths:
        for file in _files(path):
            text = read_text(file)
            digest = hashlib.sha256(text.encode()).hexdigest()
            found += [replace(each, sha256=digest) for each in _read(file, text, asked)]
    return found


def _files(path: Path) -> list[Path]:
    """A file itself; of a sweep's folder every run, wherever it is."""
    if not path.is_dir():
        return [path]
    runs = sorted(path.rglob("run=*.json"))
    others = [each for each in sorted(path.glob("*.json*")) if not each.name.endswith(".pytorch.json")]
    found = runs or [each for each in others if each.name != "summary.json"]
    if not found:
        raise FileFormatError(path, f"is a folder without a result; known: {KNOWN}")
    if len(found) > MOST_FILES:
        raise FileFormatError(path, f"holds {len(found):,} results; give at most {MOST_FILES} of them")
    return found


def _read(path: Path, text: str, asked: Asked) -> list[Result]:
    if is_metrics_text(text):
        return [read_metrics_text(path, text, asked)]
    documents = documents_in(text) or [parse_json(path, text)]
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]  # a sweep's summary.json is a list of runs
    found: list[Result] = []
    for place, document in enumerate(documents, 1):
        name = path.name if len(documents) == 1 else f"{path.name} line {place}"
        found += _of_document(path, document, asked, name)
    if not found:
        raise FileFormatError(path, "holds no result")
    return found


def _of_document(path: Path, document: Any, asked: Asked, name: str) -> list[Result]:
    if is_sglang_serving(document):
        return [read_sglang_serving(path, document, asked, name)]
    if is_bench_serve(document):
        return [read_bench_serve(path, document, asked, name)]
    if is_guidellm(document):
        return read_guidellm(path, document, asked)
    if is_inference_perf(document):
        return [read_inference_perf(path, document, asked)]
    if is_aiperf(document):
        return [read_aiperf(path, document, asked)]
    raise FileFormatError(path, f"is not a result that is known: {KNOWN}")
