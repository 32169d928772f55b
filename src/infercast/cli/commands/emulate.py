"""``infercast emulate``: an endpoint that behaves like the deployment."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import typer

from infercast.cli.options import deployment_of, with_options
from infercast.cli.outputs import note, print_json
from infercast.errors import InputError, need
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, LAYOUT, PLACE, Option
from infercast.forecast.system import PROXY_ROUTER, System, system_of, two_pools

endpoint = partial(Option, panel="Endpoint")
ENDPOINT = (
    endpoint("listen", str, "127.0.0.1", "ADDRESS", "Where to listen; 0.0.0.0: on all networks."),
    endpoint("port", int, 8000, "N", "The port; 0: any that is free."),
    endpoint("speed", float, 1.0, "X", "Seconds of the deployment in a second of the wall."),
    endpoint("answer_len", str, "lognormal:180:0.8:4:1000", "LENGTH",
        "Tokens after which answers end that may; those with ignore_eos have max_tokens."),
    endpoint("replicas", int, 1, "N", "Copies of the deployment behind one load balancer."),
    endpoint("prefill_replicas", int, 0, "N", "Of these, as many more for prompts alone: two pools."),
    endpoint("served_model_name", str, None, "NAME,NAME", "Names that clients may ask for; default: the model's."),
    endpoint("seed", int, 0, "N", "Of the lengths and words of answers."),
)  # fmt: skip


@with_options(PLACE, LAYOUT, ENDPOINT, ENGINE_ARGS, DEPLOYMENT)
def command(ctx: typer.Context, **given: Any) -> None:
    """Serve an OpenAI-compatible endpoint with the deployment's times: for load generators, routers, autoscalers.

    For example:

      infercast emulate llama-3.1-8b --gpu h200-sxm

      infercast emulate qwen3-32b --gpu h100-sxm --quantization fp8 -tp 2 --replicas 4 --router prefix_aware --port 9000

      infercast emulate llama-3.1-8b --gpu h200-sxm --engine sglang --speed 10 --answer-len 200
    """
    need("infercast emulate", "web")
    if not 0 <= given["port"] <= 65535:
        raise InputError(f"--port must be from 0 to 65535, not {given['port']}")
    if not given["listen"].strip():
        raise InputError("--listen must be an address or a name, not an empty text")
    system = _system(ctx, given)
    from infercast.emulate.emulator import Emulator  # noqa: PLC0415 - the packages of infercast[web] may be missing
    from infercast.emulate.server import serve  # noqa: PLC0415
    from infercast.serve.workload.distributions import parse_lengths  # noqa: PLC0415

    lengths = parse_lengths(given["answer_len"], "--answer-len")
    emulator = Emulator(system, lengths, speed=given["speed"], seed=given["seed"])
    deployment = system.pools[-1].deployment
    names = [each.strip() for each in (given["served_model_name"] or given["model"]).split(",") if each.strip()]

    def tell(address: str) -> None:
        if given["form"].is_data:
            print_json({"url": f"{address}/v1", "metrics": f"{address}/metrics", "models": names})
            sys.stdout.flush()
        else:
            at = "" if given["speed"] == 1 else f" at {given['speed']:g} times its speed"
            note(f"{address}/v1 behaves like {deployment.model.name} on {system.gpus} x {deployment.gpu.name}{at}; "
                 f"{address}/metrics and {address}/infercast say how it goes; Ctrl+C ends it")  # fmt: skip

    serve(emulator, names, given["listen"], given["port"], tell)


def _system(ctx: typer.Context, given: dict[str, Any]) -> System:
    deployment, replicas, prompts = deployment_of(ctx)(), given["replicas"], given["prefill_replicas"]
    for name, value, least in (("--replicas", replicas, 1), ("--prefill-replicas", prompts, 0)):
        if value < least:
            raise InputError(f"{name} must be at least {least}, not {value}")
    if prompts:
        return two_pools(deployment, deployment, instances=(prompts, replicas), router=given["router"] or PROXY_ROUTER)
    if replicas == 1:
        return system_of(deployment, given["router"] if deployment.layout.data > 1 else None)
    return system_of(deployment, given["router"] or PROXY_ROUTER, instances=replicas)
