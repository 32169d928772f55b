"""``infercast gpus``, ``infercast models`` and ``infercast hosts``: what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from infercast.cli.options import shared as options
from infercast.forecast.deploy import load_model
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.hosts import host_cpus
from infercast.models.library import model_names
from infercast.report import catalog


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
        _print_all(as_json, catalog.gpu_dict, catalog.render_gpus, map(load_gpu, gpu_names()))
    else:
        options.print_result(as_json, catalog.gpu_dict, catalog.render_gpu, load_gpu(name))


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
        _print_all(as_json, catalog.model_dict, catalog.render_models, map(load_model, model_names()))
    else:
        options.print_result(as_json, catalog.model_dict, catalog.render_model, load_model(name))


def hosts(as_json: options.Json = False) -> None:
    """List the CPUs that --host knows by name, and how fast one thread of each is.

    For example:

      infercast hosts --json
    """
    _print_all(as_json, asdict, catalog.render_hosts, host_cpus().values())


def _print_all(
    as_json: bool, document: Callable[[Any], Any], tables: Callable[[Any], Any], known: Iterable[Any]
) -> None:
    options.print_result(as_json, lambda every: [document(each) for each in every], tables, list(known))
