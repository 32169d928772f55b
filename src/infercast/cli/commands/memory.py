"""``infercast memory``: what fits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infercast.cli.options import deployment as engine_options
from infercast.cli.options import deployment as options
from infercast.cli.options.groups import Started, takes
from infercast.cli.outputs import Form, print_result
from infercast.errors import InputError
from infercast.forecast.memory import fit_memory
from infercast.report.memory import fit_dict, render_fit

OF_MEMORY = (
    "quantization", "dtype", "kv_cache_dtype", "enable_expert_parallel", "moe_backend", "language_model_only",
    "hf_overrides", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "network",
)  # fmt: skip
"""Options that `fit_memory` takes as they are."""


@takes(Started)
def command(
    invocation: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    context: Annotated[
        int, typer.Option("--context", help="Tokens of a typical sequence, to count how many fit.")
    ] = 2048,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    form: Form = Form.TABLE,
    **given: Any,
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
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        context=context,
        **{name: given[name] for name in OF_MEMORY},
    )
    print_result(form, fit_dict, render_fit, fit)
