"""``infercast emulate``: an endpoint that behaves like the deployment."""

from __future__ import annotations

import sys
from typing import Any

import typer

from infercast.cli.options import deployment_of, with_options
from infercast.cli.outputs import note, print_json
from infercast.errors import InputError, need
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, LAYOUT, PLACE, own_options
from infercast.forecast.system import PROXY_ROUTER, System, system_of, two_pools


@with_options(PLACE, LAYOUT, own_options("emulate"), ENGINE_ARGS, DEPLOYMENT)
def command(ctx: typer.Context, **given: Any) -> None:
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
