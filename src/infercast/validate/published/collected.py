"""Published results as collected from many sources: one row a run, with the commands of server and benchmark.

Columns: ``engine``, ``version``, ``date``, ``gpu``, ``num_gpus``, ``model``, ``infercast_gpu`` and ``infercast_model``
(our names, where they match), ``precision``, ``tp``, ``pp``, ``dp``, ``ep``, ``load_kind``, ``concurrency_or_rate``,
``num_requests``, ``mean_in``, ``mean_out``, ``len_dist``, ``prefix_note``, ``server_cmd``, ``bench_cmd``, ``notes``,
``quality`` and what was measured: ``ttft_p50`` and ``tpot_p50`` or ``ttft_mean_ms`` and ``tpot_mean_ms``, ``itl_p50``,
``e2e_mean_ms``, ``output_tok_s``. What a row does not say is assumed and listed with the run.
"""

from __future__ import annotations

from typing import Any

from infercast.errors import InfercastError
from infercast.serve.workload.request import Request, Workload
from infercast.validate.published.flags import NO_FLAGS
from infercast.validate.published.load import RowReader
from infercast.validate.published.loads import OPEN, read_load
from infercast.validate.published.names import gpu_of, model_of
from infercast.validate.published.run import PublishedRun
from infercast.validate.published.servers import check_drafts, noted_cache, noted_settings, read_server
from infercast.validate.published.traps import read_measured

NOBODY = Workload((Request(0.0, 1, 1),))
"""In place of a load that is not known."""


def read_collected(row: RowReader) -> PublishedRun:
    """One line of the table; one that says too little, or what is not modelled, is kept with the reason."""
    try:
        return _read(row)
    except InfercastError as problem:
        return _named(row, problem=str(problem))


def _named(row: RowReader, **values: Any) -> PublishedRun:
    """A run with what every row has."""
    unknown: dict[str, Any] = {
        "run_id": f"line {row.line}", "source": row.text("source_repo"), "gpu": gpu_of(row), "model": row.text("model"),
        "dtype": "", "tensor": 1, "data": 1, "expert_parallel": False, "version": (), "flags": NO_FLAGS,
        "workload": NOBODY, "max_model_len": None, "ttft": None, "tpot": None, "end_to_end": None,
        "output_tokens_per_second": None, "engine": row.text("engine"), "grade": row.text("quality"),
        "load": row.text("load_kind"), "precision": row.text("precision"), "assumptions": tuple(row.assumptions),
    }  # fmt: skip
    return PublishedRun(**{**unknown, **values})


def _read(row: RowReader) -> PublishedRun:
    if "s" in row.text("quality"):
        check_drafts(row)
    model, dtype = model_of(row)
    server = read_server(row, row.text("model") or model)
    load = read_load(row)
    measured = read_measured(row, server.gpus)
    settings: dict[str, Any] = {**noted_settings(row, server)}
    if load.cap is not None:
        settings["max_num_seqs" if server.engine.family == "vllm" else "max_running_requests"] = load.cap
    if "prefix caching off" in row.text("prefix_note"):
        settings["enable_prefix_caching" if server.engine.family == "vllm" else "disable_radix_cache"] = (
            server.engine.family != "vllm"
        )
    return _named(
        row,
        model=model,
        dtype=dtype,
        tensor=server.tensor,
        pipeline=server.pipeline,
        data=server.data,
        instances=server.instances,
        expert_parallel=server.expert_parallel,
        gpus=server.gpus,
        cache_tokens=noted_cache(row, server),
        layout_stated=server.layout_stated,
        version=server.version,
        workload=load.workload,
        load=load.kind,
        steady=load.steady,
        ttft=None if load.steady and load.kind not in OPEN else measured.ttft,
        tpot=measured.tpot,
        end_to_end=measured.end_to_end,
        output_tokens_per_second=measured.output_tokens_per_second,
        engine=server.engine.name,
        chat="chat" in row.text("bench_cmd"),
        top_p="top-p" in row.text("bench_cmd"),
        reading=server.reading,
        settings=settings,
        median=measured.median,
        gaps=measured.gaps,
        assumptions=tuple(row.assumptions),
    )
