"""``infercast models``: the models that are known."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli.options.printed import Json, print_result
from infercast.forecast.deploy import load_model
from infercast.models.library import model_names
from infercast.report.models import model_dict, render_model, render_models


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model in full: a bundled name or a config.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that are bundled, or show how one config.json is understood.

    For example:

      infercast models qwen3-30b-a3b

      infercast models ./config.json --json
    """
    if name is None:
        known = [load_model(each) for each in model_names()]
        print_result(as_json, lambda models: [model_dict(model) for model in models], render_models, known)
    else:
        print_result(as_json, model_dict, render_model, load_model(name))
