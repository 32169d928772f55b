"""``infercast gpus`` and ``infercast hosts``: the machines that are known."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli.options.printed import Json, print_json
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.hosts import host_cpus
from infercast.report import catalog
from infercast.report.layout import show


def gpus(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One GPU in full, or your own TOML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the GPUs that are known, or show one with the source of its numbers.

    For example:

      infercast gpus h200-sxm

      infercast gpus ./my-chip.toml --json
    """
    if name is None:
        known = [load_gpu(each) for each in gpu_names()]
        if as_json:
            print_json([catalog.gpu_dict(gpu) for gpu in known])
        else:
            show(*catalog.render_gpus(known))
        return
    gpu = load_gpu(name)
    if as_json:
        print_json(catalog.gpu_dict(gpu))
    else:
        show(*catalog.render_gpu(gpu))


def hosts(as_json: Json = False) -> None:
    """List the CPUs that --host knows by name, and how fast one thread of each is.

    For example:

      infercast hosts --json
    """
    known = list(host_cpus().values())
    if as_json:
        print_json([cpu._asdict() for cpu in known])
    else:
        show(*catalog.render_hosts(known))
