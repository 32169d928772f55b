"""``infercast diagnose``: which kernels stand in the way, and what better ones would buy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.errors import SaturatedError
from infercast.forecast.explain.diagnose import diagnose
from infercast.forecast.what_if import deploy_changed, parse_changes
from infercast.report.diagnosis import diagnosis_dict, render_diagnosis

DEFAULT_COUNT, DEFAULT_CONCURRENCY = 300, 32


@takes(Served, Deployed)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    what_if: Annotated[
        str | None, typer.Option("--what-if", metavar="CHANGES", help="Diagnose it with changes: sms=160,gpu=...")
    ] = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Rank kernels by what users would gain if each were as good as the best of its shape.

    Without --rate, --concurrency or --trace, 32 clients send 300 requests in a closed loop.

    For example:

      infercast diagnose qwen3-30b-a3b --gpu h100-sxm

      infercast diagnose llama-3.1-8b --gpu l40s --rate 2 --input-len 2048 --output-len 256
    """
    said = any(given[name] is not None for name in ("trace", "rate", "concurrency"))
    if not said and given["arrival"] == "poisson":
        context.params["concurrency"] = DEFAULT_CONCURRENCY
    workload = served.workload_of(context, DEFAULT_COUNT)
    asked = asked_deployment(
        context, gpu, tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size
    )
    deployment = asked() if what_if is None else deploy_changed(asked, parse_changes(what_if))
    diagnosis = diagnose(deployment, workload)
    if diagnosis.forecast.saturation is not None:
        raise SaturatedError(f"{diagnosis.forecast.saturation.sentence}; lower --rate or add GPUs")
    print_result(form, diagnosis_dict, render_diagnosis, diagnosis, rows="findings")
