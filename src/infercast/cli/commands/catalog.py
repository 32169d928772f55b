"""``infercast gpus``, ``infercast models`` and ``infercast hosts``: what is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from infercast.cli.options import shared as options
from infercast.forecast.deploy import load_model
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.hosts import host_cpus
from infercast.models.library import model_names
from infercast.report import catalog
from infercast.report.layout import show


def gpus(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One GPU in full, or your own TOML file.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the GPUs that are known, or show one with the source of its numbers.

    For example:

      infercast gpus h200-sxm

      infercast gpus ./my-chip.toml --json
    """
    if name is None:
        known = [load_gpu(each) for each in gpu_names()]
        if as_json:
            options.print_json([catalog.gpu_dict(gpu) for gpu in known])
        else:
            show(*catalog.render_gpus(known))
        return
    gpu = load_gpu(name)
    if as_json:
        options.print_json(catalog.gpu_dict(gpu))
    else:
        show(*catalog.render_gpu(gpu))


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model in full: a bundled name or a config.json.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the models that are bundled, or show how one config.json is understood.

    For example:

      infercast models qwen3-30b-a3b

      infercast models ./config.json --json
    """
    if name is None:
        known = [load_model(each) for each in model_names()]
        if as_json:
            options.print_json([catalog.model_dict(model) for model in known])
        else:
            show(*catalog.render_models(known))
        return
    model = load_model(name)
    if as_json:
        options.print_json(catalog.model_dict(model))
    else:
        show(*catalog.render_model(model))


def hosts(as_json: options.Json = False) -> None:
    """List the CPUs that --host knows by name, and how fast one thread of each is.

    For example:

      infercast hosts --json
    """
    known = list(host_cpus().values())
    if as_json:
        options.print_json([asdict(cpu) for cpu in known])
    else:
        show(*catalog.render_hosts(known))
