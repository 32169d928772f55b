"""The setup of a measured SGLang, from the arguments that it ended up with and those it was started with."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from infercast.engines.measured import Fields, MeasuredSetup, ProfiledStep
from infercast.engines.sglang.settings import NEWEST, SglangSettings

KINDS = {"bool": bool, "int": int, "float": float, "str": str}
TAKEN = (
    "mem_fraction_static", "max_prefill_tokens", "prefill_max_requests", "chunked_prefill_size", "context_length",
    "schedule_policy", "schedule_conservativeness", "page_size", "swa_full_tokens_ratio", "attention_backend",
    "disable_radix_cache", "disable_overlap_schedule", "enable_mixed_chunk", "enable_dp_attention",
    "disable_hybrid_swa_memory", "disable_cuda_graph", "disable_cuda_graph_padding", "max_total_tokens",
    "max_mamba_cache_size", "mamba_full_memory_ratio",
)  # fmt: skip
"""Settings of ours among the arguments that the engine states after its start, defaults filled in."""

DECODE, PROMPTS = re.compile(r"step\[DECODE bs=(\d+)"), re.compile(r"step\[EXTEND bs=(\d+) toks=(\d+)")
"""How steps are named in a profile: sequences, and tokens of prompts."""


def measured_setup(config: Fields) -> MeasuredSetup:
    """What the config of a file says: ``server_args`` are all of SGLang's arguments, under its names."""
    arguments = config.inner("server_args")
    given = config.inner("engine_args")
    kinds = {each.name: KINDS.get(str(each.type).split(" ", maxsplit=1)[0], str) for each in fields(SglangSettings)}
    stated: dict[str, Any] = {name: arguments.get(name, kinds[name]) for name in TAKEN if name in arguments}
    if arguments.holder.get("disable_prefill_cuda_graph") or given.holder.get("disable_prefill_cuda_graph"):
        stated["cuda_graph_backend_prefill"] = "disabled"
    if sizes := config.holder.get("cudagraph_sizes"):
        stated["cuda_graph_bs"] = tuple(sizes)
    settings = SglangSettings(
        **{
            **stated,
            "context_length": config.get("max_model_len", int),
            "max_running_requests": config.get("max_num_seqs", int),
            "engine": NEWEST,
        }
    )
    tokens = config.at_least("max_total_num_tokens", 1)
    return MeasuredSetup(
        settings=settings,
        num_gpu_blocks=tokens // (settings.page_size or 1),
        with_those_blocks=replace(settings, max_total_tokens=tokens),
        blocks_were_set=settings.max_total_tokens is not None,
        tensor_parallel_size=arguments.get("tp_size", int) if "tp_size" in arguments else 1,
        model={
            "quantization": config.word("quant", "") or None,
            "kv_cache_dtype": config.word("kv_cache_dtype"),
        },
    )


def profiled_step(name: str) -> ProfiledStep | None:
    """What a step held, from its name."""
    if (decode := DECODE.match(name)) is not None:
        return ProfiledStep(0, 0, int(decode[1]))
    prompts = PROMPTS.match(name)
    return None if prompts is None else ProfiledStep(int(prompts[1]), int(prompts[2]), 0)
