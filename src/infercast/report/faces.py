"""How each public object is written: as plain data, as tables, as a data frame, as a picture.

Functions go by name, so that asking one object for its JSON loads nothing of the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from infercast.report.frames import frame_of_columns, frame_of_rows
from infercast.report.tabular import rows_of


class Face(NamedTuple):
    """Where the functions are that write an object, as ``module:function`` of this layer."""

    document: str
    tables: str
    rows: str | None = None
    """The key of the document under which the rows of a table are."""
    picture: str | None = None


FACES = {
    "Breakdown": Face("breakdown:breakdown_dict", "breakdown:render_parts", "kernels"),
    "Calibration": Face("calibration:calibration_dict", "calibration:render_calibration", "factors"),
    "DayPlan": Face("day_data:day_dict", "day:render_day", "policies", "plots:day_figure"),
    "Deployment": Face("deployment:deployment_dict", "deployment:render_deployment"),
    "Diagnosis": Face("diagnosis:diagnosis_dict", "diagnosis:render_diagnosis", "findings"),
    "Explained": Face("command:explained_dict", "command:render_explained", "flags"),
    "Fit": Face("memory:fit_dict", "memory:render_fit", None, "plots:memory_figure"),
    "Forecast": Face("forecast:forecast_dict", "forecast:render_forecast", None, "plots:forecast_figure"),
    "Gpu": Face("catalog:priced_gpu_dict", "catalog:render_gpu"),
    "Intervals": Face("intervals:interval_fields", "intervals:render_alone"),
    "Layouts": Face("layouts:layouts_dict", "layouts:render_found", "layouts"),
    "ModelConfig": Face("models:model_dict", "models:render_model"),
    "Plan": Face("plan:plan_dict", "plan:render_plan", "simulated"),
    "Savings": Face("savings:savings_dict", "savings:render_savings", "points"),
    "StepCost": Face("kernels:cost_dict", "kernels:render_cost", "kernels", "plots:step_figure"),
    "Sweep": Face("sweep_data:sweep_dict", "sweep:render_sweep", "points", "plots:sweep_figure"),
    "Verdict": Face("decision:slo_dict", "decision:render_verdict", "limits"),
    "Workload": Face("deployment:workload_dict", "deployment:render_workload"),
}


def document_of(answer: Any) -> Any:
    """An object as plain data."""
    return _function(_face(answer).document)(answer)


def frame_of(answer: Any, library: str | None) -> Any:
    """An object as a data frame."""
    if hasattr(answer, "per_request"):
        return frame_of_columns(answer.per_request(), library)
    return frame_of_rows(rows_of(document_of(answer), _face(answer).rows), library)


def html_of(answer: Any) -> str:
    """An object as HTML for a notebook."""
    from infercast.report.notebook import html  # noqa: PLC0415 - data frames need none of it

    return html(repr(answer).strip("<>"), _function(_face(answer).tables)(answer))


def picture_of(answer: Any) -> Any:
    """An object as a figure of matplotlib."""
    name = _face(answer).picture
    assert name is not None, "only objects with a picture have the method plot"
    return _function(name)(answer)


def _face(answer: Any) -> Face:
    for kind in type(answer).__mro__:
        if kind.__name__ in FACES:
            return FACES[kind.__name__]
    raise TypeError(f"nothing is known of how a {type(answer).__name__} is written")


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"infercast.report.{module}"), function)
