"""The setup of a measured vLLM, from its settings and the further arguments it was started with."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import PurePosixPath
from typing import Any

from infercast.engines.measured import Fields, MeasuredSetup, ProfiledStep
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED

STATED: dict[str, type] = {
    "max_num_batched_tokens": int, "max_num_seqs": int, "max_model_len": int, "gpu_memory_utilization": float,
    "block_size": int,
}  # fmt: skip
"""Settings that every file must have."""
STEP = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
"""How a step is named in a profile: prompts and their tokens, decoding sequences and theirs."""
FORMATS = ("mamba_cache_dtype", "mamba_ssm_cache_dtype", "gdn_prefill_backend")


def measured_setup(config: Fields) -> MeasuredSetup:
    """What the config of a file says; ``engine_args`` may hold more of vLLM's arguments, under its names."""
    arguments = config.inner("engine_args")
    stated = {name: config.get(name, kind) for name, kind in STATED.items()}
    further = _further_settings(arguments)
    if "num_gpu_blocks_override" not in further and "num_gpu_blocks_override" in config:  # its older place
        further["num_gpu_blocks_override"] = config.get("num_gpu_blocks_override", int)
    settings = EngineSettings(
        **{
            **stated,
            "async_scheduling": bool(config.holder.get("async_scheduling", True)),
            "enable_prefix_caching": True,
            "engine": MEASURED,
            **further,
        }
    )
    if "speculative_config" in arguments:
        drafts = _speculative_config(arguments.inner("speculative_config"))
        settings = replace(settings, speculative_config=drafts, dummy_weights=True)
    blocks = config.at_least("num_gpu_blocks", 1)
    return MeasuredSetup(
        settings=settings,
        num_gpu_blocks=blocks,
        with_those_blocks=replace(settings, num_gpu_blocks_override=blocks),
        blocks_were_set=settings.num_gpu_blocks_override is not None,
        tensor_parallel_size=config.get("tensor_parallel_size", int)
        if config.holder.get("tensor_parallel_size")
        else 1,
        model={
            "quantization": config.word("quant", "") or None,
            "kv_cache_dtype": config.word("kv_cache_dtype"),
            "hf_overrides": arguments.inner("hf_overrides").holder,
            "language_model_only": bool(arguments.holder.get("language_model_only")),
            **{name: arguments.word(name) for name in FORMATS},
        },
    )


def profiled_step(name: str) -> ProfiledStep | None:
    """What a step held, from its name."""
    match = STEP.match(name)
    return None if match is None else ProfiledStep(*(int(match.group(group)) for group in (1, 2, 3, 4)))


def _speculative_config(drafts: Fields) -> str:
    """The config as it was given; what drafts goes by the name of its folder, which was on another machine."""
    values = dict(drafts.holder)
    if isinstance(model := values.get("model"), str):
        values["model"] = PurePosixPath(model).name
    return json.dumps(values)


def _further_settings(arguments: Fields) -> dict[str, Any]:
    """Fields of `EngineSettings` among the engine's further arguments; the rest changes nothing that is simulated."""
    kinds = {"bool": bool, "int": int, "float": float, "str": str}
    settings = {}
    for each in fields(EngineSettings):
        if each.name in arguments and each.name != "speculative_config":
            settings[each.name] = arguments.get(each.name, kinds.get(str(each.type).split(" ", maxsplit=1)[0], list))
    if "cudagraph_capture_sizes" in settings:
        settings["cudagraph_capture_sizes"] = tuple(settings["cudagraph_capture_sizes"])
    return settings
