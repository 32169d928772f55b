"""``infercast memory``: what fits."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.errors import InputError
from infercast.forecast.memory import fit_memory
from infercast.report.layout import show
from infercast.report.memory import fit_dict, render_fit


def command(
    invocation: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    context: Annotated[
        int, typer.Option("--context", help="Tokens of a typical sequence, to count how many fit.")
    ] = 2048,
    quantization: options.Quantization = None,
    dtype: engine_options.Dtype = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    moe_backend: options.MoeBackend = "auto",
    language_model_only: options.LanguageModelOnly = False,
    network: options.NetworkName = None,
    engine: options.EngineName = DEFAULT_ENGINE,
    max_num_batched_tokens: options.MaxBatchedTokens = None,
    max_num_seqs: options.MaxSeqs = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.MemoryUtilization = 0.92,
    block_size: options.BlockSize = None,
    enforce_eager: options.EnforceEager = False,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    as_json: options.Json = False,
) -> None:
    """Show what fits: weights, KV bytes per token, KV blocks, the longest context, the most sequences.

    For example:

      infercast memory llama-3.3-70b --gpu h100-sxm --tensor-parallel-size 4

      infercast memory deepseek-v3 --gpu h200-sxm -tp 8 --context 8192 --json
    """
    if context < 1:
        raise InputError(f"--context must be at least 1, not {context}")
    fit = fit_memory(
        model,
        gpu,
        engine_options.settings_of(invocation),
        quantization=quantization,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        moe_backend=moe_backend,
        language_model_only=language_model_only,
        network=network,
        context=context,
    )
    if as_json:
        options.print_json(fit_dict(fit))
    else:
        show(*render_fit(fit))
