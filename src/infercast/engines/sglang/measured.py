"""The setup of a measured SGLang, from what it ended up with and the further arguments it was started with."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from infercast.engines.measured import Fields, MeasuredSetup, ProfiledStep
from infercast.engines.sglang.settings import NEWEST, SglangSettings

KINDS = {"bool": bool, "int": int, "float": float, "str": str}
STATED: dict[str, tuple[str, type]] = {
    "mem_fraction_static": ("gpu_memory_utilization", float), "chunked_prefill_size": ("max_num_batched_tokens", int),
    "max_running_requests": ("max_num_seqs", int), "context_length": ("max_model_len", int),
    "page_size": ("block_size", int),
}  # fmt: skip
"""Settings that every file must have, and what they are called there."""
FURTHER = ("max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "attention_backend")
"""Settings that a file may state under their own names."""
DECODE, PROMPTS = re.compile(r"step\[DECODE bs=(\d+)"), re.compile(r"step\[EXTEND bs=(\d+) toks=(\d+)")
"""How steps are named in a profile: sequences, and tokens of prompts."""


def measured_setup(config: Fields) -> MeasuredSetup:
    """What the config of a file says: what the engine ended up with, and in ``engine_args`` what it was told beside."""
    arguments = config.inner("engine_args")
    kinds = {each.name: KINDS.get(str(each.type).split(" ", maxsplit=1)[0]) for each in fields(SglangSettings)}
    stated: dict[str, Any] = {name: config.get(*called) for name, called in STATED.items()}
    stated |= {name: config.get(name, kinds[name] or str) for name in FURTHER if name in config}
    stated |= {name: arguments.get(name, kind) for name, kind in kinds.items() if kind and name in arguments}
    if arguments.holder.get("disable_prefill_cuda_graph"):
        stated["cuda_graph_backend_prefill"] = "disabled"
    if sizes := config.holder.get("cudagraph_sizes"):
        stated["cuda_graph_bs"] = tuple(sizes)
    settings = SglangSettings(
        **{
            "disable_radix_cache": not config.holder.get("radix_cache", True),
            "disable_overlap_schedule": not config.holder.get("async_scheduling", True),
            "enable_mixed_chunk": bool(config.holder.get("mixed_chunk")),
            **stated,
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
            "hf_overrides": arguments.inner("hf_overrides").holder,
        },
    )


def profiled_step(name: str) -> ProfiledStep | None:
    """What a step held, from its name."""
    if (decode := DECODE.match(name)) is not None:
        return ProfiledStep(0, 0, int(decode[1]))
    prompts = PROMPTS.match(name)
    return None if prompts is None else ProfiledStep(int(prompts[1]), int(prompts[2]), 0)
