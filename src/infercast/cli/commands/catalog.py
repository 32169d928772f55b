"""``infercast gpus``, ``infercast models`` and ``infercast hosts``: what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from infercast.cli.app import offer
from infercast.cli.outputs import Form, print_answer, print_result
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.host import HostCpu, host_cpus
from infercast.report import catalog
from infercast.report.terminal import LINES


def _one(known: str, about: str) -> Any:
    return typer.Argument(metavar="[NAME]", autocompletion=offer(known), help=about)


def gpus(
    name: Annotated[str | None, _one("gpus", "One GPU in full, or your own TOML file.")] = None, form: Form = Form.TABLE
) -> None:
    if name is None:
        _print_all(form, asdict, catalog.render_gpus, map(load_gpu, gpu_names()))
    else:
        print_answer(form, load_gpu(name))


def models(
    name: Annotated[str | None, _one("models", "One model in full: a bundled name or a config.json.")] = None,
    form: Form = Form.TABLE,
) -> None:
    from infercast.forecast.deploy import load_model  # noqa: PLC0415 - GPUs and hosts are shown without numpy
    from infercast.models.library import model_names  # noqa: PLC0415
    from infercast.report.deployment import model_dict, render_models  # noqa: PLC0415

    if name is None:
        _print_all(form, model_dict, render_models, map(load_model, model_names()))
    else:
        print_answer(form, load_model(name))


def hosts(form: Form = Form.TABLE) -> None:
    _print_all(form, HostCpu._asdict, catalog.render_hosts, host_cpus().values())


def _print_all(form: Form, document: Callable[[Any], Any], tables: Callable[[Any], Any], known: Iterable[Any]) -> None:
    every = list(known)
    brief = catalog.brief_names if len(every) >= LINES else None
    print_result(form, lambda every: [document(each) for each in every], tables, every, brief=brief)
