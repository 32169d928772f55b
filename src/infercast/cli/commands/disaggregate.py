"""``infercast disaggregate``: prompts on one pool of GPUs, decoding on another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from infercast import Deployment
from infercast.cli import completion
from infercast.cli.commands.runs import Question, answer
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.decision import Decided
from infercast.cli.options.groups import Deployed, Served, Shown, asked_deployment, takes
from infercast.errors import InputError
from infercast.forecast.system import DEFAULT_LINK, PROXY_ROUTER, System, two_pools
from infercast.serve.fleet.pool import MOST_ENGINES

of_pools = partial(typer.Option, rich_help_panel="Pools")
of_gpu = partial(of_pools, metavar="GPU", autocompletion=completion.gpus)


def _size(option: str, what: str) -> Any:
    """An option that is the size of something in a pool."""
    return of_pools(option, metavar="N", help=what)


@takes(Served, Deployed, Decided, Shown)
def command(
    context: typer.Context,
    model: options.Model,
    prefill_gpu: Annotated[str, of_gpu("--prefill-gpu", help="GPUs of the prefill pool.")],
    decode_gpu: Annotated[str, of_gpu("--decode-gpu", help="GPUs of the decode pool.")],
    prefill_engines: Annotated[int, _size("--prefill-engines", "Engines of the prefill pool, each for itself.")] = 1,
    prefill_tp: Annotated[int, _size("--prefill-tp", "Tensor parallel size of each.")] = 1,
    prefill_pp: Annotated[int, _size("--prefill-pp", "Pipeline parallel size of each.")] = 1,
    prefill_dp: Annotated[int, _size("--prefill-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    decode_engines: Annotated[int, _size("--decode-engines", "Engines of the decode pool, each for itself.")] = 1,
    decode_tp: Annotated[int, _size("--decode-tp", "Tensor parallel size of each.")] = 1,
    decode_pp: Annotated[int, _size("--decode-pp", "Pipeline parallel size of each.")] = 1,
    decode_dp: Annotated[int, _size("--decode-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    link: Annotated[
        str, of_pools("--link", metavar="NAME", help="Between the pools: nvlink or a network.")
    ] = DEFAULT_LINK,
    router: options.RouterName = None,
    **given: Any,
) -> None:
    """Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did.

    For example:

      infercast disaggregate llama-3.1-8b --prefill-gpu h100-sxm --decode-gpu h200-sxm --rate 12

      infercast disaggregate llama-3.3-70b --quantization fp8 --prefill-gpu h200-sxm --prefill-tp 2 --prefill-engines 2
      --decode-gpu h200-sxm --decode-tp 4 --link nvlink --concurrency 64

      infercast disaggregate qwen3-235b-a22b-fp8 --prefill-gpu h200-sxm --prefill-tp 4 --decode-gpu h200-sxm
      --decode-dp 8 --enable-expert-parallel --rate 10
    """
    pools = {
        "prefill": (prefill_gpu, prefill_engines, prefill_tp, prefill_pp, prefill_dp),
        "decode": (decode_gpu, decode_engines, decode_tp, decode_pp, decode_dp),
    }
    for name, (_, *sizes) in pools.items():
        for option, value in zip(("engines", "tp", "pp", "dp"), sizes, strict=True):
            if not 1 <= value <= MOST_ENGINES:
                bound = "at least 1" if value < 1 else f"at most {MOST_ENGINES:,}"
                raise InputError(f"--{name}-{option} must be {bound}, not {value}")
    question = Question.of(given, served.workload_of(context))
    asked = [
        asked_deployment(
            context,
            gpu,
            # An exchange between replicas has no meaning for a pool of one.
            all2all_backend=given["all2all_backend"] if data > 1 else None,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            data_parallel_size=data,
        )
        for gpu, _, tensor, pipeline, data in pools.values()
    ]

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        instances = prefill_engines, decode_engines
        return two_pools(*deployments, instances=instances, link=link, router=other_router or router or PROXY_ROUTER)

    answer(question, asked, build)
