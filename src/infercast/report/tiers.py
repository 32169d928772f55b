"""The tier of a KV cache in the host's memory, for people and for programs."""

from __future__ import annotations

from typing import Any

from infercast.forecast.pools import PoolRun
from infercast.forecast.tiers import TierRun, Way
from infercast.units import GIGA, MILLI, format_percent, format_seconds


def tier_rows(pool: PoolRun) -> list[tuple[str, str]]:
    """What came from where, and what the copies took; nothing without a tier."""
    tier = pool.tier
    if tier is None:
        return []
    on_gpu = pool.prefix_hit_rate - tier.hit_rate
    rows = [
        (
            "KV cache tiers",
            f"{format_percent(on_gpu)} of prompt tokens found on the GPU, {format_percent(tier.hit_rate)} in host "
            f"memory, which was filled to {format_percent(tier.peak_use)}",
        ),
        ("KV copies", f"{_words(tier.load, 'loaded')}; {_words(tier.store, 'stored')}"),
    ]
    if tier.num_loaded:
        wait = format_seconds(tier.mean_wait)
        rows.append(
            ("KV loads", f"{tier.num_loaded:,} requests waited {wait} each, from the lookup to their first step")
        )
    if tier.num_refused:
        rows.append(
            ("KV stores", f"{tier.num_refused:,} times there was no room: the tier is too small for its copies")
        )
    return rows


def tier_dict(tier: TierRun | None) -> dict[str, Any] | None:
    """The same as plain data, by the names of vLLM's counters where it has them."""
    if tier is None:
        return None
    return {
        "cpu_hit_rate": tier.hit_rate,
        "cpu_cache_peak": tier.peak_use,
        "external_prefix_cache_queries": tier.queries,
        "external_prefix_cache_hits": tier.hits,
        **_fields("load", tier.load),
        **_fields("store", tier.store),
        "stores_refused": tier.num_refused,
        "held_up_s": tier.held_up,
        "loaded_requests": tier.num_loaded,
        "load_wait_ms": tier.mean_wait / MILLI,
    }


def _fields(name: str, way: Way) -> dict[str, Any]:
    return {
        f"kv_offload_{name}_copies": way.copies,
        f"kv_offload_{name}_bytes": way.num_bytes,
        f"kv_offload_{name}_time": way.seconds,
        f"{name}_link_use": way.use,
    }


def _words(way: Way, done: str) -> str:
    return f"{way.num_bytes / GIGA:,.1f} GB {done}, the link in use {format_percent(way.use)} of the run"
