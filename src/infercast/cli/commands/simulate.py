"""``infercast simulate``: what users of a deployment would see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from infercast import Deployment
from infercast.cli.commands.runs import Question, answer
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.decision import Decided
from infercast.cli.options.engine import compare_engines
from infercast.cli.options.groups import Deployed, Served, Shown, asked_deployment, takes
from infercast.errors import InputError
from infercast.forecast.system import System, system_of


@takes(Served, Deployed, Decided, Shown)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    router: options.RouterName = None,
    **given: Any,
) -> None:
    """Simulate a served workload: TTFT, TPOT, throughput, load, and where GPU time goes.

    For example:

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12

      infercast simulate ./config.json --gpu l40s --concurrency 32 --input-len 2048 --output-len 256

      infercast simulate llama-3.3-70b --gpu h100-sxm --quantization fp8 -tp 4 -dp 2 --router prefix_aware --rate 8

      infercast simulate qwen3-32b --gpu h100-sxm --quantization fp8 --trace azure.csv --rate-scale 0.5

      infercast simulate llama-3.1-8b --gpu l40s --rate 4 --slo "ttft_p99<1s,tpot_p95<40ms" --provider aws

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12 --engine vllm,sglang --report engines.html
    """
    compare_engines(context, given)
    question = Question.of(given, served.workload_of(context))
    asked = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )
    if router is not None and data_parallel_size == 1 and question.what_if is None:
        asked()  # what is wrong with the deployment comes first
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        (deployment,) = deployments
        return system_of(deployment, (other_router or router) if deployment.layout.data > 1 else None)

    answer(question, [asked], build)
