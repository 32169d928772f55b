"""Published serving results, read from a table: one row a run, with the settings that its source states.

Columns: ``run_id``, ``source``, ``engine_version``, ``gpu``, ``model``, ``dtype``, ``tp``, ``ep``, ``replicas``,
``isl`` and ``osl`` (or ``mean_isl`` and ``mean_osl``), ``len_dist``, ``load``, ``concurrency``, ``rate``,
``n_requests``, ``max_model_len``, ``server_flags`` (words, see `read_flags`), ``flags``, and what was measured:
``ttft_mean_ms``, ``tpot_mean_ms``, ``e2e_mean_ms`` and ``out_tok_s``, any of which may be empty.
"""

from __future__ import annotations

from pathlib import Path

from infercast.forecast.csv_rows import read_rows
from infercast.validate.published.collected import read_collected
from infercast.validate.published.flags import read_flags, with_arguments
from infercast.validate.published.load import RowReader, read_arguments, read_workload
from infercast.validate.published.run import GPUS, PublishedRun
from infercast.validate.published.servers import COMMAND

CACHE_UNKNOWN = "prefix_cache_on"
"""In the column ``flags``: prompts may have been found in the prefix cache, and nobody knows how many."""


def read_published(path: Path) -> list[PublishedRun]:
    """Every run of a table; files of single requests are looked for beside it.

    A table with a column of commands is read as `infercast.validate.published.collected` says.
    """
    rows = read_rows(path)
    read = read_collected if COMMAND in rows[0] else _read_row
    return [read(RowReader(path, line, row)) for line, row in enumerate(rows, start=2)]


def _read_row(row: RowReader) -> PublishedRun:
    """One line of the table."""
    version = _version(row.text("engine_version"))
    flags = read_flags(row.text("server_flags"), row.whole("concurrency"), row.whole("isl"), version)
    stated = read_arguments(row)
    flags = with_arguments(flags, stated)
    is_known = CACHE_UNKNOWN not in row.text("flags")
    gpu = row.required("gpu")
    return PublishedRun(
        run_id=row.required("run_id"),
        source=row.text("source"),
        gpu=GPUS.get(gpu, gpu),
        model=row.required("model"),
        dtype=row.text("dtype"),
        tensor=row.whole("tp") or 1,
        data=stated.get("data_parallel_size") or row.whole("replicas") or 1,
        expert_parallel=flags.expert_parallel or (row.whole("ep") or 1) > 1,
        version=version,
        flags=flags,
        workload=read_workload(row, cached=not is_known),
        max_model_len=row.whole("max_model_len") or flags.settings["max_model_len"],
        ttft=row.milliseconds("ttft_mean_ms") if is_known else None,
        tpot=row.milliseconds("tpot_mean_ms"),
        end_to_end=row.milliseconds("e2e_mean_ms"),
        output_tokens_per_second=row.number("out_tok_s"),
    )


def _version(text: str) -> tuple[int, ...]:
    """``0.10.2*`` as (0, 10, 2); what cannot be read counts as new."""
    parts = text.strip("*? ").split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (1,)
