"""Published tables of recurrent layers, one file a kind; a group is one layout of heads, or one convolution's width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from infercast.bundled import read_data
from infercast.errors import FileFormatError
from infercast.lab.fit.tables import Rows, in_microseconds, read_parquet, rows_of
from infercast.ops import Scan, ShortConvolution, StateUpdate
from infercast.ops.mixers import GATED_DELTA, KIMI_DELTA, MAMBA2

RECURRENT_FILES = {kind: f"sparse-and-recurrent/{kind}.parquet" for kind in (GATED_DELTA, KIMI_DELTA, MAMBA2)}
ALL_GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "l40s")
CONVOLUTIONS = 3  # That a row of Kimi's prompts has: queries, keys and values


class Source(NamedTuple):
    rows: str
    engine: str
    version: str
    family: str
    library: str
    gpus: Sequence[str] = ALL_GPUS


TABLES = read_data(Path(__file__).with_name("tables.toml"))
SOURCES = {kind: [Source(*source) for source in sources] for kind, sources in TABLES["recurrent"].items()}
NAMES = {"num_v_heads": "heads", "num_k_heads": "key_heads", "head_k_dim": "key_dim", "head_v_dim": "value_dim"}
NAMES |= {"nheads": "heads", "n_groups": "key_heads", "d_state": "key_dim", "head_dim": "value_dim"}
NAMES |= {"chunk_size": "chunk", "batch_size": "batch", "seq_len": "q_len"}
LAYOUT = ["heads", "key_heads", "key_dim", "value_dim", "chunk"]
NEEDED = ("gpu", "engine", "engine_version", "kernel_source", "phase", "latency_ms", "batch", "q_len", *LAYOUT)


def read_recurrent(path: Path, kind: str) -> Iterator[Rows]:
    yield from in_microseconds(path, _recurrent(path, kind))


def _recurrent(path: Path, kind: str) -> Iterator[Rows]:
    table = read_parquet(path, ()).rename(columns=NAMES)
    if "chunk" not in table:
        table["chunk"] = 64
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise FileFormatError(path, f"lacks the column {missing[0]!r}")
    table = table[(table.phase != "verify") & (table.latency_ms > 0)]
    for source in SOURCES[kind]:
        named = (table.kernel_source == source.rows) & (table.engine_version == source.version)
        of_source = table[named & (table.engine == source.engine) & table.gpu.isin(source.gpus)]
        for _, part in of_source.groupby(["gpu", *LAYOUT]):
            yield _MAKERS[source.family](kind, source, part)


def _recurrent_rows(source: Source, part: pandas.DataFrame, op: Any, kernel: str, group: str) -> Rows:
    dtype = kernel.replace("/", " ")
    return rows_of(part, source.family, dtype, op, group, kernel, engine=source.engine, time=("latency_ms", 1e-3))


def _layout(part: pandas.DataFrame) -> dict[str, Any]:
    return {name: int(part[name].iloc[0]) for name in LAYOUT}


def _group(part: pandas.DataFrame) -> str:
    return "|".join(map(str, _layout(part).values()))


def _scan(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    lengths, batch = part.q_len.to_numpy()[:, None], part.batch.to_numpy()[:, None]
    op = Scan(lengths, batch, kind=kind, kernel=source.library, **_layout(part))
    return _recurrent_rows(source, part, op, f"{kind}/{source.library}", _group(part))


def _update(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    layout = _layout(part)
    del layout["chunk"]
    return _recurrent_rows(source, part, StateUpdate(part.batch.to_numpy(), kind=kind, **layout), kind, _group(part))


def _convolution(kind: str, source: Source, part: pandas.DataFrame) -> Rows:
    layout = _layout(part)
    keys, values = layout["key_heads"] * layout["key_dim"], layout["heads"] * layout["value_dim"]
    update = source.rows.endswith("update")
    each = kind == KIMI_DELTA and not update
    channels, tokens = values if each else 2 * keys + values, (part.batch * part.q_len).to_numpy()
    op = ShortConvolution(tokens, part.batch.to_numpy(), channels=channels, update=update, kernel=source.library)
    timed = part.assign(latency_ms=part.latency_ms / CONVOLUTIONS) if each else part
    variant = f"{'update' if update else 'prompts'}/{source.library}"
    return _recurrent_rows(source, timed, op, variant, str(op.channels))


_MAKERS: dict[str, Callable[[str, Source, pandas.DataFrame], Rows]] = {
    "scan": _scan,
    "state_update": _update,
    "convolution": _convolution,
}
