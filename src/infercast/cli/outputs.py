"""Files that a simulation leaves behind where it is asked to: a page for people, a trace for a viewer."""

from __future__ import annotations

import math
import shlex
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from infercast import __version__
from infercast.errors import InputError
from infercast.report.files import check_writable, today, write_whole

if TYPE_CHECKING:
    from infercast.forecast.explain.watched import Watched
    from infercast.forecast.intervals.intervals import Intervals
    from infercast.forecast.result import Forecast

of_file = partial(typer.Option, rich_help_panel="Files")
WINDOW = "0:60"
FILES = ("--report", "--trace-out", "--requests-out", "--save-result")

Report = Annotated[
    Path | None, of_file("--report", metavar="FILE", help="Also write the run as one HTML page; needs matplotlib.")
]
TraceOut = Annotated[
    Path | None, of_file("--trace-out", metavar="FILE", help="Also write a timeline (.json) for ui.perfetto.dev.")
]
TraceWindow = Annotated[
    str, of_file("--trace-window", metavar="A:B", help="The seconds of the run that the timeline holds.")
]
RequestsOut = Annotated[
    Path | None, of_file("--requests-out", metavar="FILE", help="Also write a row per request (.csv).")
]
SaveResult = Annotated[
    Path | None,
    of_file(
        "--save-result", metavar="FILE", help="Also write it as `vllm bench serve --save-result` does; a folder, too."
    ),
]
SaveDetailed = Annotated[
    bool, of_file("--save-detailed", metavar="", help="With every request, as its --save-detailed does.")
]


class Outputs(NamedTuple):
    """What to write where; checked before the run."""

    report: Path | None
    trace: Path | None
    window: tuple[float, float]
    requests: Path | None
    result: Path | None = None
    detailed: bool = False

    def __bool__(self) -> bool:
        return self.need_steps or self.requests is not None or self.result is not None

    @property
    def need_steps(self) -> bool:
        """Whether the steps of the run must be noted for it."""
        return self.report is not None or self.trace is not None

    def write_requests(self, forecast: Forecast) -> None:
        """The table of requests, if it was asked for."""
        if self.requests is not None:
            from infercast.report.requests import request_rows  # noqa: PLC0415 - most runs write nothing

            write_whole(self.requests, request_rows(forecast))
        if self.result is not None:
            from infercast.calibrate.save import result_path, result_text  # noqa: PLC0415

            text = result_text(forecast, __version__, detailed=self.detailed)
            write_whole(result_path(self.result, forecast), [text])

    def write_comparison(self, runs: tuple[Watched, Watched], names: tuple[str, str]) -> None:
        """The page of two runs side by side, if it was asked for."""
        if self.report is not None:
            from infercast.report.page.comparison_page import comparison_plot  # noqa: PLC0415 - most runs write nothing

            write_whole(self.report, [comparison_plot(runs, names, __version__).page(command_line(*FILES), today())])

    def write(self, run: Watched, intervals: Intervals) -> None:
        """Write all that was asked for, and say on standard error where a trace could not hold all of it."""
        if self.trace is not None and self.window[0] >= run.forecast.duration:
            begin, end = self.window
            raise InputError(
                f"--trace-window {begin:g}:{end:g} begins after the run, which ends at {run.forecast.duration:.4g} s"
            )
        self.write_requests(run.forecast)
        if self.report is not None:
            from infercast.forecast.explain.overview import look_over  # noqa: PLC0415 - most runs write nothing
            from infercast.report.page.html import report_page  # noqa: PLC0415

            page = report_page(look_over(run, intervals), __version__, command_line(*FILES), today())
            write_whole(self.report, [page])
        if self.trace is not None:
            from infercast.forecast.explain.lanes import lanes_of  # noqa: PLC0415
            from infercast.report.trace import trace_pieces  # noqa: PLC0415

            lanes = lanes_of(run, *self.window)
            pools = run.forecast.pools
            gpus = ", ".join(dict.fromkeys(pool.deployment.gpu.name for pool in pools))
            about = {"model": pools[0].deployment.model.name, "gpu": gpus}
            write_whole(self.trace, trace_pieces(lanes, {**about, "workload": run.forecast.workload.description}))
            if lanes.is_cut:
                part = f"the run from {lanes.begin:g} to {lanes.end:.3g} s, to stay below 50 MB"
                typer.echo(f"infercast: {self.trace} holds {part}; --trace-window A:B shows another part", err=True)


def command_line(*files: str) -> str:
    """What was typed, as a shell would take it again, less names of files, which hold the same whatever they are."""
    words, kept = iter(sys.argv[1:]), ["infercast"]
    for word in words:
        option, equals, _ = word.partition("=")
        if option in files:
            if not equals:
                next(words, None)
            continue
        kept.append(word)
    return shlex.join(kept)


def outputs_of(
    report: Path | None,
    trace: Path | None,
    window: str,
    requests: Path | None,
    result: Path | None = None,
    *,
    detailed: bool = False,
) -> Outputs:
    """Check what was asked for, before a run that may take long."""
    if report is not None:
        check_writable(report, "--report", (".html", ".htm"))
        today()  # a date that is none is refused now, too
        if find_spec("matplotlib") is None:
            raise InputError("--report needs matplotlib: pip install 'infercast[report]'")
    if requests is not None:
        check_writable(requests, "--requests-out", (".csv",))
    if trace is not None:
        check_writable(trace, "--trace-out", (".json",))
    elif window != WINDOW:
        raise InputError("--trace-window needs --trace-out FILE")
    if result is not None:
        from infercast.calibrate.save import check_result  # noqa: PLC0415 - most runs write nothing

        check_result(result)
    elif detailed:
        raise InputError("--save-detailed needs --save-result FILE")
    return Outputs(report, trace, _window(window), requests, result, detailed)


def _window(text: str) -> tuple[float, float]:
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        raise InputError(f"--trace-window must be two numbers of seconds like {WINDOW}, not {text!r}") from None
    if not 0 <= begin < end < math.inf:
        raise InputError(f"--trace-window must begin at 0 or later and end after that, not {text!r}")
    return begin, end
