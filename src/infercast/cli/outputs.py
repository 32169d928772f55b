"""What a command prints and writes: output formats, result files, pages and traces, and progress bars."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.errors import InputError, need, require
from infercast.report.files import check_writable, today, write_whole
from infercast.report.terminal import SCREEN, markdown, on_screen, show
from infercast.units import format_seconds, json_text

if TYPE_CHECKING:
    from infercast.forecast.explain.step_log import Watched
    from infercast.forecast.result import Forecast
    from infercast.report.page.figures import Plot as Picture


WINDOW = "0:60"
FILES = ("--report", "--trace-out", "--requests-out", "--save-result")


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
        return self.report is not None or self.trace is not None

    def write_requests(self, forecast: Forecast) -> None:
        if self.requests is not None:
            from infercast.report.forecast import request_rows  # noqa: PLC0415 - most runs write nothing

            write_whole(self.requests, request_rows(forecast))
        if self.result is not None:
            from infercast.calibration.result import result_path, saved_result  # noqa: PLC0415

            text = json_text(saved_result(forecast, detailed=self.detailed))
            write_whole(result_path(self.result, forecast), [text])

    def write_comparison(self, runs: tuple[Watched, Watched], names: tuple[str, str]) -> None:
        if self.report is not None:
            from infercast.report.page.figures import comparison_plot  # noqa: PLC0415 - most runs write nothing

            write_whole(self.report, [comparison_plot(runs, names).page(command_line(*FILES))])

    def write(self, run: Watched) -> None:
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

            write_whole(self.report, [report_page(look_over(run), command_line(*FILES))])
        if self.trace is not None:
            from infercast.forecast.explain.step_log import lanes_of  # noqa: PLC0415
            from infercast.report.trace import trace_pieces  # noqa: PLC0415

            lanes = lanes_of(run, *self.window)
            pools = run.forecast.pools
            gpus = ", ".join(dict.fromkeys(pool.deployment.gpu.name for pool in pools))
            about = {"model": pools[0].deployment.model.name, "gpu": gpus}
            write_whole(self.trace, trace_pieces(lanes, {**about, "workload": run.forecast.workload.description}))
            if lanes.is_cut:
                part = f"the run from {lanes.begin:g} to {lanes.end:.3g} s, to stay below 50 MB"
                note(f"{self.trace} holds {part}; --trace-window A:B shows another part")


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


def check_page(path: Path | None, option: str) -> None:
    if path is not None:
        check_writable(path, option, (".html", ".htm"))
        today()  # a date that is none is refused now, too
        need(option, "report")


def outputs_of(given: Mapping[str, Any]) -> Outputs:
    report, trace, window = given["report"], given["trace_out"], given["trace_window"]
    requests, result, detailed = given["requests_out"], given["save_result"], given["save_detailed"]
    check_page(report, "--report")
    if requests is not None:
        check_writable(requests, "--requests-out", (".csv",))
    if trace is not None:
        check_writable(trace, "--trace-out", (".json",))
    elif window != WINDOW:
        raise InputError("--trace-window needs --trace-out FILE")
    if result is not None:
        if not result.is_dir():
            check_writable(result, "--save-result", (".json",))
    elif detailed:
        raise InputError("--save-detailed needs --save-result FILE")
    return Outputs(report, trace, _window(window), requests, result, detailed)


def _window(text: str) -> tuple[float, float]:
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        raise InputError(f"--trace-window must be two numbers of seconds like {WINDOW}, not {text!r}") from None
    require(0 <= begin < end < math.inf, "--trace-window", "begin at 0 or later and end after that", repr(text))
    return begin, end


class Form(StrEnum):
    TABLE = "table"
    FULL = "full"
    JSON = "json"
    CSV = "csv"
    MD = "md"

    @property
    def is_data(self) -> bool:
        return self in (Form.JSON, Form.CSV)


def form_of(format_: Form | None, *, as_json: bool, full: bool) -> Form:
    asked = {"--json": Form.JSON} if as_json else {}
    asked |= {"--full": Form.FULL} if full else {}
    asked |= {} if format_ is None else {f"--format {format_}": format_}
    if len(set(asked.values())) > 1:
        raise InputError(f"{' and '.join(asked)} ask for two forms; give one of them")
    return next(iter(asked.values()), Form.TABLE)


def note(sentence: str) -> None:
    print(f"infercast: {sentence}", file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    print(json_text(data, indent=2))


def print_result(
    form: Form, document: Callable[..., Any], tables: Callable[..., Any], *result: Any,
    rows: str | tuple[str, ...] | None = None, brief: Callable[..., Any] | None = None,
) -> None:  # fmt: skip
    """A result in the form asked for; ``brief`` makes one screen of it, ``rows`` names the keys of CSV's rows
    (`rows_of`).
    """
    if form is Form.JSON:
        print_json(document(*result))
    elif form is Form.CSV:
        from infercast.report.formats import csv_text, rows_of  # noqa: PLC0415 - few ask for it

        print(csv_text(rows_of(document(*result), rows)), end="")
    elif form is Form.MD:
        print(markdown(tables(*result)), end="")
    elif form is Form.FULL:
        show(*tables(*result))
    else:
        show(*on_screen((brief or tables)(*result)), width=SCREEN)


def print_answer(form: Form, answer: Any, *, plot: Path | None = None, csv: Path | None = None) -> None:
    from infercast.report.formats import plot_of, renderers_of  # noqa: PLC0415 - some commands need none of it

    how = renderers_of(answer)
    if csv is not None:
        assert how.csv is not None, "the command has no option --csv"
        write_whole(csv, how.csv(answer))
    if plot is not None:
        write_plot(plot, plot_of(answer))
    print_result(form, how.document, how.tables, answer, rows=how.rows, brief=how.brief)


PATIENCE = 2.0  # seconds that a run may take before a bar is shown


@contextmanager
def bar_of(task: Mapping[str, Any], *columns: str, **options: Any) -> Iterator[Callable[..., None]]:
    """What updates a bar of these columns (rich's, or texts) on standard error; there is none if piped."""
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich import progress  # noqa: PLC0415 - most runs are over before a bar would show
    from rich.console import Console  # noqa: PLC0415

    made = [getattr(progress, each)() if hasattr(progress, each) else progress.TextColumn(each) for each in columns]
    with progress.Progress(*made, console=Console(stderr=True), transient=True, **options) as bar:
        yield partial(bar.update, bar.add_task(**task))


@contextmanager
def simulation_bar(total: int) -> Iterator[Callable[[int, float], None] | None]:
    """Progress callback of a run of ``total`` requests: requests sent, simulated time; None if piped."""
    shown = "{task.completed:,.0f} of {task.total:,.0f} requests{task.description}"
    task = {"description": "", "total": total, "visible": False}
    with bar_of(task, "BarColumn", shown, auto_refresh=False) as update:
        start = time.monotonic()

        def on_progress(sent: int, simulated: float) -> None:
            elapsed = time.monotonic() - start
            if elapsed > PATIENCE:
                text = f", {format_seconds(simulated)} simulated, {simulated / elapsed:,.0f} times real time"
                update(completed=sent, description=text, visible=True, refresh=True)

        yield on_progress if sys.stderr.isatty() else None


@contextmanager
def runs_bar(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    with bar_of({"description": doing, "total": total}) as update:
        yield lambda label: update(advance=1, description=label)


@contextmanager
def stages_bar(patience: float = PATIENCE) -> Iterator[Callable[[str], None]]:
    """Progress callback of work of unknown length: the current stage; shown after a while."""
    task = {"description": "", "total": None, "visible": False}
    with bar_of(task, "SpinnerColumn", "{task.description}", "TimeElapsedColumn") as update:
        start = time.monotonic()
        yield lambda doing: update(description=doing, visible=time.monotonic() - start >= patience)


def with_counts(tell: Callable[[str], None]) -> tuple[Callable[[str], None], Callable[[int, int], None]]:
    """Progress callbacks: each stage as it begins, and how much of it is done."""
    doing = [""]

    def say(words: str) -> None:
        doing[0] = words
        tell(words)

    return say, lambda done, total: tell(f"{doing[0]}: {done} of {total} done")


def check_files(plot: Path | None, *tables: tuple[str, Path | None]) -> None:
    """Refuse files that could not be written, before a long run and not after it; ``tables``: options with theirs."""
    if plot is not None:
        suffixes = (".png", ".svg", ".html", ".htm")
        check_writable(plot, "--plot", suffixes)
        need("--plot", "report")
    for option, path in tables:
        if path is not None:
            check_writable(path, option, (".csv",))


def write_plot(path: Path, picture: Picture) -> None:
    if path.suffix == ".png":
        picture.write_png(path)
    elif path.suffix == ".svg":
        write_whole(path, [picture.svg()])
    else:
        write_whole(path, [picture.page(command_line("--plot", "--csv", "--export-autoscaler"))])
