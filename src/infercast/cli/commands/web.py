"""``infercast web``, a page to play with, and ``infercast emulate``, an endpoint that behaves like a deployment."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from infercast.cli.options import Context, deployment_of, with_options
from infercast.cli.outputs import Form, note, print_json
from infercast.errors import InputError, need, require
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, LAYOUT, PLACE, Option
from infercast.forecast.system import PROXY_ROUTER, System, system_of, two_pools
from infercast.serve.workload.distributions import parse_lengths

MOST_WORKERS = 64


@with_options(
    Option("host", str, "Where to listen; 0.0.0.0: on all networks.", "127.0.0.1", metavar="ADDRESS"),
    Option("port", int, "The port; 0: any that is free.", 8000),
    Option("workers", int, "Processes that answer; default: one per processor, at most 4."),
    Option("allow_host", list, "A further name that the server goes by; again for each.", (), metavar="NAME"),
    Option("static", Path, "Write the page as a folder to host anywhere: Python runs in the browser.", metavar="DIR"),
)
def command(
    *, host: str, port: int, workers: int | None, allow_host: list[str], static: Path | None, form: Form, **_: Any
) -> None:
    if static is not None:
        write_static(static, form)
        return
    need("infercast web", "web")
    for option, names in (("--host", [host]), ("--allow-host", allow_host)):
        if not all(name.strip() for name in names):  # an empty address would be every network
            raise InputError(f"{option} must be an address or a name, not an empty text")
    require(0 <= port <= 65535, "--port", "be from 0 to 65535", port)
    number = min(4, os.cpu_count() or 1) if workers is None else workers
    require(1 <= number <= MOST_WORKERS, "--workers", f"be from 1 to {MOST_WORKERS}", number)
    from infercast.web.server import serve  # noqa: PLC0415 - the packages of infercast[web] may be missing

    def on_start(address: str) -> None:
        if form.is_data:
            print_json({"page": f"{address}/", "api": f"{address}/api/v1"})
            sys.stdout.flush()
        else:
            note(f"{address}/ is the page, {address}/api/v1 the API; Ctrl+C ends it")

    serve(host, port, workers=number, allowed=tuple(allow_host), tell=on_start)


def write_static(folder: Path, form: Form) -> None:
    from infercast.web.static_site import build_twin  # noqa: PLC0415 - it loads all that answers

    size = build_twin(folder, note)
    if form.is_data:
        print_json({"folder": str(folder), "bytes": size})
    else:
        note(f"{folder} holds the page, {size / 1e6:.1f} MB; try it with: python -m http.server -d {folder}")


endpoint = partial(Option, panel="Endpoint")


@with_options(
    *(PLACE, LAYOUT),
    endpoint("listen", str, "Where to listen; 0.0.0.0: on all networks.", "127.0.0.1", metavar="ADDRESS"),
    endpoint("port", int, "The port; 0: any that is free.", 8000),
    endpoint("speed", float, "Seconds of the deployment in a second of the wall.", 1.0),
    endpoint("answer_len", str, "Tokens after which answers end that may; those with ignore_eos have max_tokens.",
             "lognormal:180:0.8:4:1000", metavar="LENGTH"),
    endpoint("replicas", int, "Copies of the deployment behind one load balancer.", 1),
    endpoint("port_per_replica", bool, "Give each copy a port, from --port on, and a process instead.", False),
    endpoint("prefill_replicas", int, "As many more for prompts alone: two pools.", 0),
    endpoint("tokenizer", Path, "A folder with tokenizer.json and a chat template, in place of the rule for text.",
             metavar="DIR"),
    endpoint("served_model_name", str, "Names that clients may ask for; default: the model's.", metavar="NAME,NAME"),
    endpoint("lora_modules", str, "Adapters that clients may ask for by name.", metavar="NAME,NAME"),
    endpoint("allowed_origins", str, "Pages that may ask, as https://app.example; *: all.", metavar="ORIGIN,ORIGIN"),
    endpoint("faults", Path, "A TOML file of what goes wrong, and when.", metavar="FILE"),
    endpoint("seed", int, "Of the lengths and words of answers.", 0),
    *(ENGINE_ARGS, DEPLOYMENT),
)  # fmt: skip
def emulate_command(ctx: Context, **given: Any) -> None:
    need("infercast emulate", "web")
    require(0 <= given["port"] <= 65535, "--port", "be from 0 to 65535", given["port"])
    if not given["listen"].strip():
        raise InputError("--listen must be an address or a name, not an empty text")
    system = _system(ctx, given)
    from infercast.emulate.answers import RULE  # noqa: PLC0415
    from infercast.emulate.emulator import Emulator  # noqa: PLC0415 - the packages of infercast[web] may be missing
    from infercast.emulate.faults import read_faults  # noqa: PLC0415
    from infercast.emulate.prompts import HuggingFace  # noqa: PLC0415
    from infercast.emulate.server import Server, serve  # noqa: PLC0415

    lengths = parse_lengths(given["answer_len"], "--answer-len")
    deployment = system.pools[-1].deployment
    names, adapters, origins = (
        [each.partition("=")[0].strip() for each in (text or "").split(",") if each.strip()]
        for text in (given["served_model_name"] or given["model"], given["lora_modules"], given["allowed_origins"])
    )
    faults = [] if given["faults"] is None else read_faults(given["faults"])
    vocabulary = RULE if given["tokenizer"] is None else HuggingFace(given["tokenizer"])
    number = given["replicas"] if given["port_per_replica"] else 1
    served = [
        Server(
            Emulator(system, lengths, speed=given["speed"], seed=given["seed"] + place, adapters=adapters,
                     vocabulary=vocabulary),
            names, given["listen"], origins=origins, faults=faults,
        )
        for place in range(number)
    ]  # fmt: skip

    def on_start(addresses: list[str]) -> None:
        address = addresses[0]
        if given["form"].is_data:
            urls = {} if number == 1 else {"urls": [f"{each}/v1" for each in addresses]}
            print_json({"url": f"{address}/v1", "metrics": f"{address}/metrics", "models": names, **urls})
            sys.stdout.flush()
        else:
            at = "" if given["speed"] == 1 else f" at {given['speed']:g} times its speed"
            if number > 1:
                at += f", and so does each at {', '.join(addresses[1:])}"
            note(f"{address}/v1 behaves like {deployment.model.name} on {system.gpus} x {deployment.gpu.name}{at}; "
                 f"{address}/metrics and {address}/infercast say how it goes; Ctrl+C ends it")  # fmt: skip

    serve(served, given["listen"], given["port"], on_start, note)


def _system(ctx: Context, given: dict[str, Any]) -> System:
    deployment, replicas, prompts = deployment_of(ctx)(), given["replicas"], given["prefill_replicas"]
    for name, value, least in (("--replicas", replicas, 1), ("--prefill-replicas", prompts, 0)):
        require(value >= least, name, f"be at least {least}", value)
    if given["port_per_replica"]:
        if prompts or given["router"]:
            name = "--prefill-replicas" if prompts else "--router"
            raise InputError(f"{name} joins replicas, which --port-per-replica keeps apart; leave one out")
        return system_of(deployment)
    if prompts:
        return two_pools(deployment, deployment, instances=(prompts, replicas), router=given["router"] or PROXY_ROUTER)
    if replicas == 1:
        return system_of(deployment, given["router"] if deployment.layout.data > 1 else None)
    return system_of(deployment, given["router"] or PROXY_ROUTER, instances=replicas)
