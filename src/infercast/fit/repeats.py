"""Collectives were measured again and again, by several versions and formats: one row a shape is made of them."""

from __future__ import annotations

import re

import numpy as np
import pandas

SHAPE = ["op", "gpus", "bytes"]
SUMS = ("all_reduce", "reduce_scatter")
SAME_VERSION = 0.05
"""Mean difference of latencies below which two versions of a kernel count as repeated measurements of one."""


def merge_repeats(table: pandas.DataFrame) -> pandas.DataFrame:
    """One row a shape: the median of what the newest version, and older ones that agree with it, took.

    Kernels launched eagerly are left out, since what is timed is the host; so are sums of int8, which nobody computes.
    """
    if "dtype" in table:
        table = table[~((table.dtype == "int8") & table.op.isin(SUMS))]
    table = table[~table.kernel.str.endswith("_eager")]
    parts = []
    for names, rows in table.groupby(["gpu", "engine", "kernel"]):
        merged = _current(rows).groupby(SHAPE, as_index=False).agg({"latency_us": "median", "index": "min"})
        parts.append(merged.assign(**dict(zip(("gpu", "engine", "kernel"), names, strict=True))))
    return pandas.concat(parts, ignore_index=True) if parts else table


def _current(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of the newest version of a kernel, and of those that cannot be told from it."""
    if "engine_version" not in rows:
        return rows
    versions = {version: part.groupby(SHAPE).latency_us.median() for version, part in rows.groupby("engine_version")}
    newest = versions[max(versions, key=_version_order)]
    alike = [
        version
        for version, latency in versions.items()
        if latency is newest or np.log(latency / newest).abs().mean() < SAME_VERSION
    ]
    return rows[rows.engine_version.isin(alike)]


def _version_order(version: object) -> list[int]:
    """Numbers in a version, so that 0.10 comes after 0.9."""
    return [int(number) for number in re.findall(r"\d+", str(version))]
