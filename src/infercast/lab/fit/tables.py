"""Measured kernel latencies as operators: one parquet file a family, one row a measured shape.

Common columns are ``gpu``, ``engine``, ``engine_version`` and ``latency_us``; the others say the shape. Rows that share
everything that is not an array in an operator are read as one operator, and a *group* names the rows that must never
be split between fitting and testing: one (n, k) pair, one head layout, one expert layout.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast import ops
from infercast.bundled import read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.hardware import Gpu, load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.op import BYTES, gated_activation, norm, quantise, rope, spread_lengths
from infercast.predict.families.attention import PrefillPhysics
from infercast.predict.families.attention_kernels import batch_of
from infercast.predict.families.gemm import quantiser_of
from infercast.predict.families.moe import SEEN, WHOLE
from infercast.predict.families.sparse import BLOCK_CHOICE, TOP_K, latent_attention
from infercast.predict.identity import SWEEP, expert_kernel_named, kernel_named, kernel_of
from infercast.predict.roofline import Roofline

Array = npt.NDArray[Any]
LEFT_OUT = ("trtllm",)  # Engines without estimates, except for families that no other engine has


@dataclass(frozen=True, slots=True)
class Rows:
    family: str
    gpu: str
    engine: str
    dtype: str
    kernel: str  # Name of the kernel where the table has one, else empty
    group: Array  # For each row, what must stay together in a split
    op: Op
    seconds: Array
    index: Array
    other_seconds: Array | None = None
    """Seconds of other kernels that were timed together with it, as they are estimated, less what physics counts to it
    and was not timed; None: of none."""

    @property
    def own(self) -> Array:
        """Seconds that are left for the kernel itself, never less than a small part of all."""
        others = 0.0 if self.other_seconds is None else self.other_seconds
        return np.maximum(self.seconds - others, LEAST * self.seconds)

    def whole(self, own: Array) -> Array:
        """Seconds of everything that was timed, where the kernel itself takes ``own``."""
        return own if self.other_seconds is None else own + self.other_seconds


def rows_of(
    part: Any, family: str, dtype: str, op: Op, group: Array | str | int, kernel: str = "", *, engine: str = "",
    time: tuple[str, float] = ("latency_us", 1e-6), other_seconds: Array | None = None,
) -> Rows:  # fmt: skip
    """Rows of a table that are one operator: ``time`` is a column and its unit, a ``group`` may be that of all rows."""
    seconds, gpu, index = np.asarray(part[time[0]]) * time[1], np.asarray(part["gpu"])[0], np.asarray(part["index"])
    engine = engine or np.asarray(part["engine"])[0]
    groups = np.full(len(seconds), group) if isinstance(group, str | int) else group
    return Rows(family, gpu, engine, dtype, kernel, groups, op, seconds, index, other_seconds)


LEAST = 0.05  # Of what was timed, that the kernel itself takes at least, whatever its neighbours are estimated to take


# What a table must be before anything is learned from it: each fault is named with its file, column and first row.

NAMES = ("gpu", "engine", "dtype", "kv_dtype", "kernel", "routing", "op")
LARGEST = 2**53  # Sizes up to here are the same number as integers and as floats
AT_MOST = {"kv_heads": "heads", "topk": "experts", "ep": "experts", "tp": "inter"}
ROUTINGS = re.compile(r"uniform|balanced|power_law_\d+(\.\d+)?")
TOO_FAST, TOO_SLOW = 30.0, 300.0
"""No kernel beats the roofline by this factor, and no GPU's median kernel is so much slower: the unit is another."""


def read_parquet(path: Path, columns: Iterable[str], hint: str = "") -> pandas.DataFrame:
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FileFormatError(path, f"cannot be read as parquet: {reason}") from None
    for name in columns:
        if name not in table:
            raise FileFormatError(path, f"lacks the column {name!r}{hint}")
    return table.assign(index=np.arange(len(table)))


def read_checked(path: Path, columns: tuple[str, ...], extra_dtypes: Iterable[str] = ()) -> pandas.DataFrame:
    """A parquet file as a table of known names and of numbers that can be sizes and latencies."""
    needed = ("gpu", "engine", "latency_us", *columns)
    table = read_parquet(path, needed, f"; it needs {', '.join(needed)}")
    if table.empty:
        raise FileFormatError(path, "has no rows")
    for name in NAMES:
        if name in table:
            table[name] = _names(path, table[name], needed=name in ("gpu", "engine", *columns))
    if "dtype" in columns:  # engines without estimates have formats of their own
        table = table[~table.engine.isin(LEFT_OUT)].reset_index(drop=True)
    may_be_zero = ("window", "kv_len")
    for name in columns:
        if name not in NAMES:
            column = table[name]
            values = _numbers(path, column)
            least = 0 if column.name in may_be_zero else 1
            wrong = ~((values >= least) & (values <= LARGEST) & (values == np.floor(values)))
            _refuse(path, str(column.name), values, wrong, f"must be a whole number of at least {least}")
            table[name] = column.astype(np.int64)
    for name, bound in AT_MOST.items():
        if name in columns:
            _refuse(path, name, table[name], (table[name] > table[bound]).to_numpy(), f"must be at most {bound!r}")
    latency = _numbers(path, table.latency_us)
    _refuse(path, "latency_us", latency, ~(np.isfinite(latency) & (latency > 0)), "must be above 0")
    _check_known(path, table, columns, {*BYTES, *extra_dtypes})
    return table


def _names(path: Path, column: pandas.Series, *, needed: bool) -> pandas.Series:
    if needed:
        _refuse(path, str(column.name), column.to_numpy(), column.isna().to_numpy(), "must be a name")
    return column.astype(object).where(column.notna(), "").astype(str)


def _numbers(path: Path, column: pandas.Series) -> Array:
    values: Array = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(path, str(column.name), column.to_numpy(), np.isnan(values), "must be a number")
    return values


def _check_known(path: Path, table: pandas.DataFrame, columns: tuple[str, ...], dtypes: set[str]) -> None:
    for name in table.gpu.unique():
        try:
            load_gpu(name)
        except UnknownNameError as problem:
            _refuse(path, "gpu", table.gpu.to_numpy(), (table.gpu == name).to_numpy(), str(problem), show=False)
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "all_to_all")
    known: Mapping[str, Any] = {"dtype": dtypes, "kv_dtype": BYTES, "op": collectives}
    for column, names in known.items():
        if column in columns:
            for name in sorted(set(table[column]) - set(names)):
                unknown = str(UnknownNameError(column, name, names))
                _refuse(path, column, table[column].to_numpy(), (table[column] == name).to_numpy(), unknown, show=False)
    if "routing" in columns:
        fits = table.routing.str.fullmatch(ROUTINGS.pattern).to_numpy(dtype=bool)
        _refuse(path, "routing", table.routing.to_numpy(), ~fits, "must be uniform, balanced or power_law_NUMBER")


def _refuse(path: Path, column: str, values: Any, wrong: Array, problem: str, *, show: bool = True) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        found = f", not {values[row]!s}" if show else ""
        raise FileFormatError(path, f"row {row}, column {column!r}: {problem}{found}")


def in_microseconds(path: Path, parts: Iterable[Rows]) -> Iterator[Rows]:
    roofline, first = Roofline(), dict[tuple[str, str], int]()
    ratios: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for rows in parts:
        ratio = rows.seconds / np.ravel(roofline.seconds(rows.op, load_gpu(rows.gpu)))
        if (ratio < 1 / TOO_FAST).any():
            at = int(np.argmin(np.where(ratio < 1 / TOO_FAST, rows.index, np.iinfo(np.int64).max)))
            raise FileFormatError(
                path,
                f"row {rows.index[at]}, column 'latency_us': {rows.seconds[at] * 1e6:.3g} us is {1 / ratio[at]:.0f} "
                f"times less than {rows.gpu} can do; is it in milliseconds or seconds?",
            )
        ratios[rows.gpu, rows.engine].append(ratio)
        first[rows.gpu, rows.engine] = min(first.get((rows.gpu, rows.engine), LARGEST), int(rows.index.min()))
        yield rows
    for (gpu, engine), found in ratios.items():
        middle = float(np.median(np.concatenate(found)))
        if middle > TOO_SLOW:
            raise FileFormatError(
                path,
                f"row {first[gpu, engine]}, column 'latency_us': the rows of {gpu} and {engine} are {middle:.0f} times "
                "slower than the GPU could be; are they in nanoseconds?",
            )


# What rows of routed experts that are spread over GPUs really measured, as far as the table itself shows.
#
# In some runs of SGLang's collector (0.5.10, and Marlin's on B200) long batches take as long on a quarter of them as
# on all: there a GPU multiplies all pairs of every token that has any of its experts. In its other runs of 0.5.10 it is
# given those tokens and multiplies its own pairs; later ones give it all tokens, as vLLM's do.

RUN = ["gpu", "engine", "engine_version", "kernel", "dtype"]
EXPERT_SHAPE = ["hidden", "inter", "experts", "topk", "tp", "routing", "tokens"]
MANY_TOKENS, MANY_EXPERTS, GPUS = 8192, 64, (4, 8)  # Batches, layers and numbers of GPUs large enough to show it
LONG = 0.62  # Share of the time with all experts from which on a GPU cannot have had a fourth or eighth of the pairs
ENOUGH = 5
OWN_TOKENS, WHOLE_TOKENS = ("sglang", "0.5.10"), "whole_tokens"


def takes_whole_tokens(table: pandas.DataFrame) -> Array:
    """Whether a row is of spread experts and its run multiplied all pairs of its tokens."""
    if WHOLE_TOKENS in table:
        return np.asarray(table[WHOLE_TOKENS])
    run = [name for name in RUN if name in table]
    even = ("balanced", "power_law_1.01")  # Routings that leave no GPU with most of the tokens
    large = (table.tokens >= MANY_TOKENS) & (table.experts >= MANY_EXPERTS) & table.routing.isin(even)
    long = table[large]
    alone = long[long.ep == 1].groupby([*run, *EXPERT_SHAPE]).latency_us.median()
    spread = long[long.ep.isin(GPUS)].set_index([*run, *EXPERT_SHAPE]).latency_us
    ratio = (spread / alone.reindex(spread.index)).dropna().groupby(level=run).agg(["median", "size"])
    whole = ratio.index[(ratio["median"] > LONG) & (ratio["size"] >= ENOUGH)]
    if whole.empty:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(pandas.MultiIndex.from_frame(table[run]).isin(whole) & (table.ep > 1).to_numpy())


# Collectives were measured again and again, by several versions and formats: one row a shape is made of them.

COLLECTIVE_SHAPE = ["op", "gpus", "bytes"]


def merge_repeats(table: pandas.DataFrame) -> pandas.DataFrame:
    """One row a shape: the median of the newest version and those that agree; no eager launches, no sums of int8."""
    if "dtype" in table:
        sums = ("all_reduce", "reduce_scatter")
        table = table[~((table.dtype == "int8") & table.op.isin(sums))]
    table = table[~table.kernel.str.endswith("_eager")]
    parts = []
    for names, rows in table.groupby(["gpu", "engine", "kernel"]):
        merged = _current(rows).groupby(COLLECTIVE_SHAPE, as_index=False).agg({"latency_us": "median", "index": "min"})
        parts.append(merged.assign(**dict(zip(("gpu", "engine", "kernel"), names, strict=True))))
    return pandas.concat(parts, ignore_index=True) if parts else table


def _current(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of the newest version of a kernel, and of versions with the same times."""
    if "engine_version" not in rows:
        return rows
    versions = {
        version: part.groupby(COLLECTIVE_SHAPE).latency_us.median() for version, part in rows.groupby("engine_version")
    }
    newest = versions[max(versions, key=_version_order)]
    apart = {version: np.log(latency / newest).abs().mean() for version, latency in versions.items()}
    same_version = 0.05  # Mean difference of latencies below which two versions of a kernel count as repeats of one
    return rows[rows.engine_version.isin([version for version, off in apart.items() if off < same_version])]


def _version_order(version: object) -> list[int]:
    """Numbers in a version, so that 0.10 comes after 0.9."""
    return [int(number) for number in re.findall(r"\d+", str(version))]


TABLES = read_data("lab/fit.toml")
Part = dict[str, Array]
COLLECTIVES = {"alltoall": "all_to_all"}
MOE_FORMATS: dict[str, tuple[str, ...]] = TABLES["moe"]["formats"]
UNGATED = {tuple(layout) for layout in TABLES["moe"]["ungated"]}
COLUMNS: dict[str, tuple[str, ...]] = TABLES["columns"]


def read_table(path: Path, family: str) -> Iterator[Rows]:
    table = read_checked(path, COLUMNS[family], MOE_FORMATS if family == "moe" else ())
    if "kernel" not in table:
        table["kernel"] = ""
    table["index"] = np.arange(len(table))
    checked = in_microseconds(path, _READERS[family](table))
    if family == "collective":
        # Each row is looked at before it disappears in a median.
        for _ in checked:
            pass
        checked = _collective(merge_repeats(table))
    yield from checked


def _parts(table: pandas.DataFrame, *columns: str) -> Iterator[Part]:
    """Rows that share GPU, engine and the values of these columns, in the order of those values."""
    number = table.groupby(["gpu", "engine", *columns]).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    arrays = {name: table[name].to_numpy()[order] for name in table}
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        yield {name: values[start:stop] for name, values in arrays.items()}


def _gemm(table: pandas.DataFrame) -> Iterator[Rows]:
    if "engine_version" not in table:
        table["engine_version"] = ""
    for part in _parts(table, "dtype", "kernel", "engine_version"):
        m, n, k = (part[name] for name in "mnk")
        dtype = part["dtype"][0]
        op = Gemm(m, n, k, dtype, quantiser=quantiser_of(part["engine"][0], str(part["engine_version"][0])))
        named = kernel_named("gemm", part["kernel"][0])
        kernel = named or kernel_of(op, load_gpu(part["gpu"][0]), part["engine"][0])
        yield rows_of(part, "gemm", dtype, op, n * 1_000_000 + k, kernel)


def _attention(family: str) -> Callable[[pandas.DataFrame], Iterator[Rows]]:
    layout = ("heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype")
    prefill = family == "attention_prefill"

    def read(table: pandas.DataFrame) -> Iterator[Rows]:
        # A prompt of one token is run by the kernel that decodes, so that it is an operator of its own.
        table["decodes"] = table.q_len == 1 if prefill else True
        for part in _parts(table, *layout, "kernel", "decodes"):
            values = [part[name][0] for name in layout]
            (heads, kv_heads, head_dim, window), (dtype, kv_dtype) = map(int, values[:4]), values[4:]
            queries = part["q_len"] if prefill else np.ones(len(part["batch"]), dtype=np.int64)
            keys = queries if prefill else part["kv_len"] + 1
            lengths, sizes = (queries[:, None], keys[:, None]), (heads, kv_heads, head_dim, head_dim)
            named = {"dtype": dtype, "kv_dtype": kv_dtype, "kernel": kernel_named("attention", part["kernel"][0])}
            op = Attention(*lengths, *sizes, part["batch"][:, None], window, **named)
            group = "|".join(map(str, values))
            version = str(part["engine_version"][0]) if "engine_version" in part else ""
            gpu, engine = load_gpu(part["gpu"][0]), part["engine"][0]
            kernel = kernel_of(op, gpu, engine, version)
            op = replace(op, kernel=kernel)
            others = _sglang_prompts(op, gpu) if prefill and engine == "sglang" and kernel == "trtllm" else None
            yield rows_of(part, family, f"{dtype}/{kv_dtype}", op, group, kernel, other_seconds=others)

    return read


def _sglang_prompts(op: Attention, gpu: Gpu) -> Array:
    """Seconds in which SGLang's prompts by TensorRT-LLM's kernels differ from physics: timed without writing the cache
    (with it they would be 5 to 20 % shorter than vLLM's), and prompts of one token have a thread block for each head.
    """
    physics, blocks = PrefillPhysics(op, gpu), np.ravel(op.sequences) * op.heads
    if int(op.queries.max()) > 1:
        return np.asarray(-physics.write_seconds(batch_of(op)))
    return np.asarray(physics.chain * np.maximum(blocks / gpu.sms - 1.0, 0.0))


def _moe(table: pandas.DataFrame) -> Iterator[Rows]:
    layout = ("hidden", "inter", "experts", "topk", "tp", "ep")
    versions = table.engine_version if "engine_version" in table else ""
    own = (table.engine == OWN_TOKENS[0]) & (versions == OWN_TOKENS[1]) & (table.ep > 1)
    table["spread"] = np.select([takes_whole_tokens(table), own], [WHOLE, SEEN], "")
    for part in _parts(table, "kernel", "dtype", "routing", *layout, "spread"):
        hidden, inter, experts, topk, tp, ep = (int(part[name][0]) for name in layout)
        dtype, routing = part["dtype"][0], part["routing"][0]
        compute, weight = MOE_FORMATS.get(dtype, (dtype, dtype))
        sizes = (hidden, inter // tp, experts, topk, experts // ep)
        kernel, gated = expert_kernel_named(part["kernel"][0]), not _runs_without_gate(part)
        op = MoE(part["tokens"], *sizes, compute, weight, gated, routing=routing + part["spread"][0], kernel=kernel)
        group = f"{hidden}|{inter}|{experts}|{topk}"
        yield rows_of(part, "moe", f"{dtype}/{routing}", op, group, part["kernel"][0])


def _runs_without_gate(part: Part) -> bool:
    """Nemotron's experts: vLLM 0.24 measured them so; its 0.14 rows (A100) and SGLang's are gated."""
    if part["engine"][0] == "trtllm":
        return "nongated" in part["kernel"][0]
    layout = tuple(int(part[name][0]) for name in ("hidden", "inter", "experts", "topk"))
    return part["engine"][0] == "vllm" and part["gpu"][0] != "a100-sxm" and layout in UNGATED


def _quantise(table: pandas.DataFrame) -> Iterator[Rows]:
    for part in _parts(table, "kernel", "k"):
        width = int(part["k"][0])
        yield rows_of(part, "quantise", "bf16", quantise(part["m"], width), width, part["kernel"][0])


def _collective(table: pandas.DataFrame) -> Iterator[Rows]:
    for part in _parts(table, "kernel", "op", "gpus"):
        kind, gpus, size = part["op"][0], int(part["gpus"][0]), part["bytes"]
        op = Collective(COLLECTIVES.get(kind, kind), size, gpus, library=part["engine"][0])
        yield rows_of(part, "collective", f"{kind}/{gpus}", op, size, part["kernel"][0])


_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[Rows]]] = {
    "gemm": _gemm, "attention_prefill": _attention("attention_prefill"),
    "attention_decode": _attention("attention_decode"), "moe": _moe, "quantise": _quantise, "collective": _collective,
}  # fmt: skip
FILES = {family: f"{'quantize' if family == 'quantise' else family}.parquet" for family in _READERS}


# Kernels of sparse attention: one table, in which ``op`` names the kernel; a group is one layout of heads at one batch.

Lengths = tuple[Array, Array, Array]
BLOCK, WIDTH = 128, 128  # Tokens of a block and the width of a head, of block-sparse attention
_rows = partial(rows_of, engine=SWEEP, time=("burst_us", 1e-6))
"""The power limit, which longer runs meet, is a matter of the whole step."""
LATENT = {"mla": "bf16", "mla_packed": "fp8"}


def read_sparse_sweep(table: pandas.DataFrame) -> Iterator[Rows]:
    """All rows that an engine launches in the same form."""
    table = table.assign(phase=np.where(table.q_len == 1, "decode", "prompt"))
    for values, part in table.groupby(["op", "phase", "heads", "kv_heads", "topk", "kv_dtype"]):
        op, phase, heads, kv_heads, topk, kv_dtype = values
        lengths = _prompts(part)
        if op.startswith("index_scores"):
            yield _sparse_rows(part, "index_scores", ops.IndexScores(*lengths, heads=int(heads)), f"fp8 {phase}")
        elif op.startswith("top_k"):
            yield _sparse_rows(part, "top_k", ops.TopK(*lengths, topk=int(topk)), phase)
        elif op in LATENT:
            stored = LATENT[op]
            latent = latent_attention(*lengths, heads=int(heads), selected=int(topk), kind="mla", kv_dtype=stored)
            yield _sparse_rows(part, "sparse_attention", latent, f"mla {stored} {phase}")
        elif op.startswith("msa"):
            yield from _blocks(part, op, phase, lengths, (int(heads), int(kv_heads), int(topk), str(kv_dtype)))


def _blocks(
    part: pandas.DataFrame, op: str, phase: str, lengths: Lengths, layout: tuple[int, int, int, str]
) -> Iterator[Rows]:
    """Block-sparse attention, its scores and its choice; decoding sequences choose in the same launch."""
    heads, kv_heads, topk, kv_dtype = layout
    queries, keys, sequences = lengths
    scores = ops.IndexScores(*lengths, heads=kv_heads, entry_bytes=2.0 * WIDTH, dtype="bf16")
    choice = ops.TopK(queries, keys, sequences * kv_heads, topk=topk, compress=BLOCK)
    if op == "msa_scores":
        yield _sparse_rows(part, "index_scores", scores, f"bf16 {phase}")
    elif op == "msa_choice":
        yield _sparse_rows(part, "top_k", choice, f"{BLOCK_CHOICE} {phase}")
    elif op == "msa_decode_choice":
        other_seconds = np.ravel(TOP_K.physics(choice, load_gpu(part.gpu.iloc[0]), swept=True).seconds)
        yield _sparse_rows(part, "index_scores", scores, f"bf16 {phase}", other_seconds)
    else:
        stored = 2.0 * WIDTH * kv_heads * (1.0 if kv_dtype == "fp8" else 2.0)
        sizes: dict[str, Any] = {"heads": heads, "head_dim": WIDTH, "value_dim": WIDTH, "kv_heads": kv_heads}
        sizes |= {"selected": topk * BLOCK, "block": BLOCK, "bytes_per_key": stored}
        attention = ops.SparseAttention(*lengths, **sizes, kind="msa", kv_dtype=kv_dtype)
        yield _sparse_rows(part, "sparse_attention", attention, f"msa {phase}")


def _sparse_rows(part: pandas.DataFrame, family: str, op: Any, kernel: str, other_seconds: Array | None = None) -> Rows:
    layout = f"{part.heads.iloc[0]}|{part.kv_heads.iloc[0]}|{part.topk.iloc[0]}"
    group = np.array([f"{layout}|{batch}" for batch in part.batch])
    return _rows(part, family, part.kv_dtype.iloc[0], op, group, kernel, other_seconds=other_seconds)


PUBLISHED: dict[str, tuple[str, ...]] = {"elementwise": ("quantise",)}
"""What published tables call the one kernel that they have of a family, or the kinds of layers they have it of."""
PUBLISHED |= dict.fromkeys(("scan", "state_update", "convolution"), ("gdn", "kda", "mamba2"))
HEADS = ("heads", "key_heads", "key_dim", "value_dim")
PUBLISHED["sparse"] = ("index_scores", "top_k", "mla_attention", "msa_decode_attention")
LAYOUT = ("heads", "kv_heads", "head_dim", "value_dim", "latent", "window", "kv_dtype")


def read_sweep(folder: Path, families: Sequence[str] | None = None, *, needs_meta: bool = True) -> Iterator[Rows]:
    if needs_meta and not (folder / "meta.toml").exists():
        raise InputError(f"{folder} is not a table of `infercast measure`: it has no meta.toml")
    for family in read_families(folder, families):
        path = folder / f"{family}.parquet"
        table = read_parquet(path, ("gpu", "latency_us", "burst_us"))
        for name in ("latency_us", "burst_us"):
            if not (table[name] > 0).all():
                row = int(np.flatnonzero(~(table[name] > 0))[0])
                raise FileFormatError(path, f"row {row}: {name} must be above 0, not {table[name].iloc[row]}")
        yield from _SWEEP_READERS[family](table)


def read_families(folder: Path, families: Sequence[str] | None = None) -> list[str]:
    """Tables of a GPU's folder that are read when these families are asked for."""
    return [
        family
        for family in _SWEEP_READERS
        if (folder / f"{family}.parquet").exists()
        and (families is None or not {family, *PUBLISHED.get(family, ())}.isdisjoint(families))
    ]


def is_swept(folder: Path) -> bool:
    """Whether its tables are of `infercast measure`, by a column that no published table has."""
    tables = (folder / f"{family}.parquet" for family in read_families(folder))
    return any("burst_us" in pandas.read_parquet(table) for table in tables)


def sweep_folders(folder: Path) -> list[Path]:
    found = [folder] if (folder / "meta.toml").exists() else sorted(path.parent for path in folder.glob("*/meta.toml"))
    if not found:
        raise InputError(f"{folder} has no table of `infercast measure`: no meta.toml in it or one level below")
    return found


def _swept_products(table: pandas.DataFrame) -> Iterator[Rows]:
    for dtype, part in table.groupby("dtype"):
        m, n, k = (part[name].to_numpy() for name in "mnk")
        if dtype in ("bf16", "fp8"):  # too few rows of other formats, which run bf16's kernels or nearly so
            yield _rows(part, "gemm", dtype, ops.Gemm(m, n, k, dtype), n * 1_000_000 + k)


def _swept_attention(family: str) -> Callable[[pandas.DataFrame], Iterator[Rows]]:
    def read(table: pandas.DataFrame) -> Iterator[Rows]:
        for values, part in table.groupby(list(LAYOUT)):
            heads, kv_heads, head_dim, value_dim, latent, window, kv_dtype = values
            if "q_len" in part:
                queries, keys, sequences = _prompts(part)
            else:
                cached, sequences = _batches(part, part.kv_len)
                queries, keys = np.ones_like(cached), np.where(sequences > 0, cached + 1, 1)
            sizes = (heads, kv_heads, head_dim, value_dim)
            op = ops.Attention(queries, keys, *sizes, sequences, int(window), bool(latent), kv_dtype=kv_dtype)
            yield _rows(part, family, f"bf16/{kv_dtype}", op, "|".join(map(str, values[:5])))

    return read


def _prompts(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    queries = part.q_len.to_numpy()[:, None]
    return queries, queries + part.prefix.to_numpy()[:, None], part.batch.to_numpy()[:, None]


def _batches(part: pandas.DataFrame, means: pandas.Series) -> tuple[Array, Array]:
    """Uneven lengths, one row a batch; batches shorter than the longest end in rows of no sequences."""
    widest = int(part.batch.max())
    lengths, sequences = np.ones((len(part), widest), dtype=np.int64), np.zeros((len(part), widest), dtype=np.int64)
    for row, (batch, mean, sigma) in enumerate(zip(part.batch, means, part.sigma, strict=True)):
        lengths[row, :batch], sequences[row, :batch] = spread_lengths(batch, mean, sigma), 1
    return lengths, sequences


def _experts(table: pandas.DataFrame) -> Iterator[Rows]:
    layout = ["dtype", "routing", "hidden", "inter", "experts", "topk"]
    for (dtype, routing, hidden, inter, experts, topk), part in table.groupby(layout):
        op = ops.MoE(
            part.tokens.to_numpy(), hidden, inter, experts, topk, dtype=dtype, weight_dtype=dtype, routing=routing
        )
        yield _rows(part, "moe", f"{dtype}/{routing}", op, f"{hidden}|{inter}|{experts}|{topk}", "triton")


def _memory_bound(table: pandas.DataFrame) -> Iterator[Rows]:
    """Kernels that an engine launches in the same form; others stay with their physics."""
    for (name, width, heads), part in table.groupby(["op", "width", "heads"]):
        if name in _COMPILED:
            op = _COMPILED[name](part.rows.to_numpy(), int(width), int(heads))
            yield _rows(part, "memory_bound", op.kind, op, f"{width}|{heads}", op.kind)


def _scans(table: pandas.DataFrame) -> Iterator[Rows]:
    for (kind, *sizes), part in table.groupby(["kind", *HEADS, "chunk", "state_dtype"]):
        heads, key_heads, key_dim, value_dim, chunk, state_dtype = sizes
        lengths, sequences = _batches(part, part.q_len)
        op = ops.Scan(
            lengths, sequences, heads, key_heads, key_dim, value_dim, kind, chunk, "bf16", state_dtype, "triton"
        )
        yield _rows(part, "scan", f"{kind} triton", op, "|".join(map(str, sizes[:4])), f"{kind}/triton")


def _updates(table: pandas.DataFrame) -> Iterator[Rows]:
    for (kind, *sizes), part in table.groupby(["kind", *HEADS, "state_dtype"]):
        heads, key_heads, key_dim, value_dim, state_dtype = sizes
        rows = part.rows.to_numpy()
        op = ops.StateUpdate(rows, heads, key_heads, key_dim, value_dim, kind, "bf16", state_dtype)
        yield _rows(part, "state_update", kind, op, "|".join(map(str, sizes[:4])), kind)


def _convolutions(table: pandas.DataFrame) -> Iterator[Rows]:
    for (update, channels, taps), part in table.groupby(["update", "channels", "taps"]):
        lengths, sequences = _batches(part, part.q_len)
        op = ops.ShortConvolution(
            (lengths * sequences).sum(axis=-1), part.batch.to_numpy(), int(channels), int(taps), bool(update)
        )
        kernel = f"{'update' if update else 'prompts'}/triton"
        yield _rows(part, "convolution", kernel.replace("/", " "), op, f"{channels}", kernel)


_COMPILED: dict[str, Callable[[Array, int, int], ops.Elementwise]] = {
    "norm": lambda rows, width, _: norm(rows, width, residual=False),
    "add_norm": lambda rows, width, _: norm(rows, width, residual=True),
    "norm_quant": lambda rows, width, _: norm(rows, width, residual=False, out_dtype="fp8"),
    "add_norm_quant": lambda rows, width, _: norm(rows, width, residual=True, out_dtype="fp8"),
    "quant": lambda rows, width, _: quantise(rows, width, compiled=True),
    "silu_mul": lambda rows, width, _: gated_activation(rows, width),
    "rope": lambda rows, width, heads: rope(rows, heads, width),
}
_SWEEP_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[Rows]]] = {
    "gemm": _swept_products, "attention_prefill": _swept_attention("attention_prefill"),
    "attention_decode": _swept_attention("attention_decode"), "moe": _experts, "elementwise": _memory_bound,
    "scan": _scans, "state_update": _updates, "convolution": _convolutions, "sparse": read_sparse_sweep,
}  # fmt: skip
