"""``--json`` has the same keys for every system: what it had before there was one forecast, and what came with it."""

from typing import Any

import pytest

LATENCY = "mean p50 p90 p95 p99"
LATENCIES = ("ttft_ms", "tpot_ms", "inter_token_ms", "end_to_end_ms")
DEPLOYMENT = (
    "api_server architecture block_size enable_prefix_caching gpu gpu_memory_utilization kv_cache_dtype max_model_len "
    "max_num_batched_tokens max_num_seqs model notes num_gpu_blocks parameters tensor_parallel_size weight_bytes "
    "weights"
)
ENGINE = "busy kv_peak preemptions prefix_hit_rate requests running"
CLIENTS = {
    "": "capacity_requests_per_s duration_s interval_level output_tokens_per_s output_tokens_per_s_interval "
    "requests_per_s requests_per_s_interval saturated saturation_requests_per_s state steady_only",
    "steady_state.": "from_s reached requests requests_needed to_s",
    "workload.": "description requests skipped truncated",
    **{f"{name}{kind}.": LATENCY for name in LATENCIES for kind in ("", "_interval")},
}
ONE_REPLICA = CLIENTS | {
    "": CLIENTS[""] + " caveats host_bound_share kind preemptions prefix_hit_rate source",
    "deployment.": DEPLOYMENT,
    **{f"{name}.": "mean peak" for name in ("running", "waiting", "kv_usage")},
    "phases[].": "gpu_seconds host_bound_seconds phase seconds steps tokens",
    "phases[].families[].": "bound family kernels seconds share source",
}
REPLICAS = CLIENTS | {
    "": CLIENTS[""] + " caveats host_bound_share router",
    "deployment.": DEPLOYMENT + " data_parallel_size enable_expert_parallel pipeline_parallel_size",
    "engines[].": ENGINE,
}
TWO_POOLS = CLIENTS | {
    "": CLIENTS[""] + " gpus prefill.instances decode.instances",
    "link.": "name use",
    **{f"link.{name}.": LATENCY for name in ("wait_ms", "transfer_ms")},
    **{f"{name}.": LATENCY for name in ("prefill.prompt_ms", "decode.first_step_ms")},
    **{f"{pool}.deployment.": DEPLOYMENT for pool in ("prefill", "decode")},
    **{f"{pool}.engines[].": ENGINE for pool in ("prefill", "decode")},
}
"""Keys of before, by what stands before them."""
RENAMED = {
    "prefill.deployment.": "pools[].deployment.",
    "decode.deployment.": "pools[].deployment.",
    "prefill.instances": "pools[].instances",
    "decode.instances": "pools[].instances",
    "prefill.engines[].": "engines[].",
    "decode.engines[].": "engines[].",
    "prefill.prompt_ms.": "link.prompt_ms.",
    "decode.first_step_ms.": "link.first_step_ms.",
}
"""Of two pools; those of `simulate` all stayed."""
ADDED = {
    **{
        f"interval_rests_on.{name}_p50.": "kernels host release luck whole probed calibrated"
        for name in ("ttft", "tpot")
    },
    "": "headline stopped output_tokens_per_s_per_gpu "
    "api gpus host_bound link router slo slo_attainment goodput_requests_per_s slo_odds "
    "slo_headroom "
    "usd_per_hour usd_per_request usd_per_million_output_tokens usd_per_million_input_tokens usd_per_million_tokens "
    "speculation tier_hit_rate watts_per_gpu peak_watts_per_gpu joules_per_output_token joules_per_token "
    "joules_per_request watt_hours_per_million_output_tokens wall_watts wall_joules_per_output_token "
    "wall_watt_hours_per_million_output_tokens usd_electricity_per_hour usd_electricity_per_million_output_tokens "
    "grams_co2_per_million_output_tokens",
    "best_possible.": "share limited_by batch role requests_per_s output_tokens_per_s",
    "best_possible.resources[].": "resource busy",
    "diagnosis.": "of bottleneck change options before ratio ratio_interval gpus usd_per_hour simulations next",
    "diagnosis.causes[].": "kind name share tried bound_by",
    "diagnosis.breaks_first[].": "name load unit used",
    "energy.": "joules joules_interval joules_per_output_token_interval idle_watts_per_gpu limit_watts_per_gpu source",
    "energy.parts[].": "part joules share",
    "energy.pools[].": "gpus watts_per_gpu peak_watts_per_gpu",
    "energy.phases[].": "phase joules watts_per_gpu burst_watts_per_gpu joules_per_token",
    "wall.": "gpu_watts server_watts watts peak_watts joules joules_interval kwh_per_day grams_co2_per_hour pue",
    "wall.servers[].": "kind gpus base_watts factor fitted",
    "prices[].": "gpu gpus usd_per_gpu_hour provider kind date source",
    "deployment.": "data_parallel_size enable_expert_parallel pipeline_parallel_size engine engine_note speculation "
    "engine_rules assumed",
    "engines[].": f"{ENGINE} pool",
    "phases[].": "pool",
    "pools[].": "gpus instances kv_offload preemptions prefix_hit_rate role tier_hit_rate",
    "pools[].deployment.": f"{DEPLOYMENT} data_parallel_size enable_expert_parallel pipeline_parallel_size engine "
    "engine_note engine_rules speculation assumed",
    **{f"pools[].{name}.": "mean peak" for name in ("running", "waiting", "kv_usage")},
}
"""To those of one replica."""
LOAD = (
    "--rate", 8, "-n", 30, "--input-len", 200, "--output-len", 10, "--predictor", "roofline",
    "--max-num-seqs", 64,
)  # fmt: skip
SYSTEMS = {
    "replicas": ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 2),
    "lockstep": ("simulate", "qwen3-30b-a3b", "--gpu", "h200-sxm", "-dp", 2, "--enable-expert-parallel"),
    "pipeline": ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-pp", 2),
    "two pools": ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "a10"),
}


def written_out(tree: dict[str, str]) -> set[str]:
    return {before + name for before, names in tree.items() for name in names.split()}


def keys_of(value: Any, before: str = "") -> set[str]:
    """Paths to everything in a result; what kernels are called is no key."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key for each in value for key in keys_of(each, f"{before}[]")}
    if isinstance(value, dict) and not before.endswith(".kernels"):
        dot = "." if before else ""
        return {key for name, each in value.items() for key in keys_of(each, f"{before}{dot}{name}")}
    return {before}


@pytest.fixture
def one_replica(answered: Any) -> Any:
    return answered("simulate", "qwen2.5-0.5b", "--gpu", "l4", *LOAD, "--json").json


def test_of_one_replica_nothing_is_gone_and_all_that_came_is_listed(one_replica: Any) -> None:
    assert keys_of(one_replica) == written_out(ONE_REPLICA) | written_out(ADDED)


@pytest.mark.parametrize("words", SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_has_the_same_keys(answered: Any, one_replica: Any, words: tuple[object, ...]) -> None:
    other = answered(*words, *LOAD, "--json").json
    assert list(other) == list(one_replica)
    missing, new = keys_of(one_replica) - keys_of(other), keys_of(other) - keys_of(one_replica)
    empty = {name for result in (one_replica, other) for name, value in result.items() if value is None}
    assert {key.split(".")[0] for key in missing | new} <= empty


@pytest.mark.parametrize(("words", "tree"), [(SYSTEMS["replicas"], REPLICAS), (SYSTEMS["two pools"], TWO_POOLS)])
def test_no_key_of_several_replicas_or_pools_is_gone_but_those_renamed(
    answered: Any, words: tuple[object, ...], tree: dict[str, str]
) -> None:
    found = keys_of(answered(*words, *LOAD, "--json").json)
    for key in written_out(tree):
        renamed = next((new + key.removeprefix(old) for old, new in RENAMED.items() if key.startswith(old)), key)
        assert renamed in found
