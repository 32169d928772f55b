"""``infercast tune``: better launch configurations for a model's routed experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, print_result
from infercast.engines.base import engine_named
from infercast.errors import InputError, require
from infercast.forecast import tune
from infercast.forecast.deploy import load_model
from infercast.forecast.option_table import PLACE, Option
from infercast.hardware import load_gpu
from infercast.lab.measure.device import gpu_name
from infercast.lab.measure.sweep import trial_cases, try_configurations
from infercast.report.files import write_in_folder
from infercast.report.terminal import Facts, Grid, Printable, Section, in_us, pick
from infercast.units import format_seconds, json_text

EXCLUDED = {
    "shared memory": "shared memory", "registers": "registers", "warps": "more warps than work",
    "step": "steps that do not fit the layer",
}  # fmt: skip


def render_tuning(tuning: tune.Tuning) -> list[Printable]:
    """What runs now, for each number of tokens what might be better, and what to do about it."""
    parts = [Section("Routed experts", Facts(_layer_facts(tuning)))]
    for shape in tuning.shapes:
        columns = ("", "configuration", "forecast", "faster", "why")
        body = Grid(columns, _rows(shape), text_columns=2, notes_at=(4,))
        parts.append(Section(f"{shape.tokens:,} tokens: {_advice(tuning, shape)}", body))
    return [*parts, Section("What to do", Facts(_next_steps(tuning)))]


def _advice(tuning: tune.Tuning, shape: tune.TunedShape) -> str:
    gain = shape.best[0].speedup if shape.best else 1.0
    if tuning.recommended(shape) is not shape.default:
        return f"change to 1, {gain:.2f} x by forecast"
    same = 1.02  # below this a forecast gain is not worth a word
    if gain < same:
        return "keep the default"
    return f"keep the default unless tried, {gain:.2f} x by forecast may be none"


def _next_steps(tuning: tune.Tuning) -> list[tuple[str, str]]:
    title = tuning.engine.title
    doubt = tuning.needs_trial or (
        f"a forecast gain is off by up to {100 * (tune.RELIABLE - 1):.0f} % in four of five cases, "
        "so less keeps the default"
    )
    lines = [
        ("untried", doubt[0].upper() + doubt[1:] + "."),
        ("better", f"On a machine with this GPU and {title}, --try measures the default and the ranked in minutes."),
    ]
    how = f"--out DIR writes the file; start {title} with {tuning.launches.folder_variable}=DIR."
    return [*lines, (f"in {title}", how)]


def _layer_facts(tuning: tune.Tuning) -> list[tuple[str, str]]:
    op = tuning.op
    known = "has a" if tuning.has_file else "has no"
    first = tuning.shapes[0]
    left_out = ", ".join(f"{count:,} for {EXCLUDED[why]}" for why, count in first.excluded.items())
    said = f"{tuning.engine.title} {known} file tuned for this layer"
    if tuning.has_file:
        said += "; gains below are over its rules of thumb, which do not run then"
    return [
        ("model", f"{tuning.model.name} on {tuning.gpu.title}, {tuning.layout}"),
        ("layer", f"{op.num_local} experts of {op.inter:,} here, hidden size {op.hidden:,}, {op.topk} per token"),
        ("format", op.dtype),
        ("file", f"{tuning.launches.file_name(op.num_local, op.inter, op.dtype, tuning.gpu)}: {said}"),
        ("configurations", f"{first.estimated:,} estimated, left out: {left_out}"),
    ]


def _rows(shape: tune.TunedShape) -> list[tuple[str, ...]]:
    """The default and what should not be slower, each reason once."""
    usual = shape.default
    rows: list[tuple[str, ...]] = [
        ("default", str(usual.configuration), format_seconds(usual.seconds), "", usual.reason)
    ]
    said = ""
    for place, each in enumerate(shape.best, start=1):
        if each.speedup >= 1.0:
            why = "the same" if each.reason == said else each.reason
            forecast = format_seconds(each.seconds)
            rows.append((str(place), str(each.configuration), forecast, f"{each.speedup:.2f} x", why))
            said = each.reason
    return rows


def tuning_dict(tuning: tune.Tuning) -> dict[str, Any]:
    op = tuning.op
    return {
        "model": tuning.model.name,
        "gpu": tuning.gpu.name,
        "tensor_parallel_size": tuning.layout.tensor,
        "layer": pick(op, "inter hidden topk dtype experts=num_local"),
        "file": tuning.launches.file_name(op.num_local, op.inter, op.dtype, tuning.gpu),
        f"{tuning.engine.family}_has_tuned_file": tuning.has_file,
        "needs_trial": tuning.needs_trial or None,
        "shapes": [
            {
                "tokens": shape.tokens, "estimated": shape.estimated, "excluded": shape.excluded,
                "default": _ranked_dict(shape.default),
                "recommended": (best := tuning.recommended(shape)).configuration.as_file(),
                "change": best is not shape.default, "best": [_ranked_dict(each) for each in shape.best],
            }
            for shape in tuning.shapes
        ],
    }  # fmt: skip


def _ranked_dict(ranked: tune.Ranked) -> dict[str, Any]:
    return {
        "configuration": ranked.configuration.as_file(), "us": in_us(ranked.seconds), "speedup": ranked.speedup,
        "reason": ranked.reason,
    }  # fmt: skip


def render_trials(tuning: tune.Tuning, trials: Sequence[tune.Trial]) -> list[Printable]:
    parts: list[Printable] = []
    for trial in trials:
        base = trial.default
        rows = [
            (
                "default" if each.rank == 0 else str(each.rank), str(each.configuration),
                format_seconds(each.predicted), format_seconds(each.measured) if each.measured else "did not run",
                "" if each.rank == 0 else f"{base.predicted / each.predicted:.2f} x",
                f"{(base.measured or 0.0) / each.measured:.2f} x" if each.measured and each.rank else "",
            )
            for each in trial.tried
        ]  # fmt: skip
        columns = ("", "configuration", "forecast", "measured", "faster, said", "measured")
        best = trial.recommended
        verdict = "keep the default" if best.rank == 0 else f"change to {best.rank}, {trial.speedup:.2f} x measured"
        title = f"{trial.shape.tokens:,} tokens: {verdict} (two runs of the default {100 * trial.noise:.1f} % apart)"
        parts.append(Section(title, Grid(columns, rows, text_columns=2)))
    tried = {trial.shape.tokens for trial in trials}
    if left := [f"{shape.tokens:,}" for shape in tuning.shapes if shape.tokens not in tried]:
        parts.append(Facts([("not tried", f"{', '.join(left)} tokens: the time was up (--minutes)")]))
    return parts


def trial_dict(trial: tune.Trial) -> dict[str, Any]:
    return {
        "speedup": trial.speedup,
        "first_speedup": trial.first_speedup,
        "noise": trial.noise,
        "tokens": trial.shape.tokens,
        "recommended": trial.recommended.configuration.as_file(),
        "tried": [
            {
                "rank": each.rank, "configuration": each.configuration.as_file(), "predicted_us": in_us(each.predicted),
                "measured_us": each.measured and in_us(each.measured),
            }
            for each in trial.tried
        ],
    }  # fmt: skip


MOST_TOKENS = 1 << 20  # steps of a million tokens are above what any engine plans


@with_options(
    PLACE,
    Option(
        "tokens", str, "Tokens of a step, with commas between them.", ",".join(map(str, tune.TOKENS)), metavar="N,N"
    ),
    Option("top", int, "Configurations to show, or to try.", 5),
    "quantization tensor_parallel_size enable_expert_parallel engine",
    Option("out", Path, "Write the file that the engine reads.", metavar="DIR"),
    Option("on_gpu", bool, "Measure the default and the best on this machine's GPU.", False, flag="--try"),
    Option("minutes", float, "Time limit of --try, in minutes.", 4.0, metavar="N"),
)
def command(*, top: int, out: Path | None, on_gpu: bool, minutes: float, form: Form, **given: Any) -> None:
    require(top >= 1, "--top", "be 1 or more", top)
    require(0 < minutes < math.inf, "--minutes", "be a number above 0", minutes)
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is not a folder")
    release = engine_named(given["engine"])
    tuning = tune.tune_model(
        load_model(given["model"], quantization=given["quantization"], engine=release), load_gpu(given["gpu"]),
        tensor_parallel_size=given["tensor_parallel_size"], enable_expert_parallel=given["enable_expert_parallel"],
        tokens=_counts(given["tokens"]), top=top, engine=release,
    )  # fmt: skip
    trials = _try(tuning, 60 * minutes) if on_gpu else []
    result = tuning_dict(tuning) | ({"trials": [trial_dict(each) for each in trials]} if on_gpu else {})
    written = None
    if out is not None:
        written, chosen = out / result["file"], tune.tried_file(tuning, trials) if on_gpu else tune.untried_file(tuning)
        write_in_folder(written, json_text(chosen, indent=4) + "\n")
    note = [] if written is None else [Facts([("written to", str(written))])]
    print_result(
        form, lambda: result | ({} if written is None else {"written": str(written)}),
        lambda: [*(render_trials(tuning, trials) if on_gpu else render_tuning(tuning)), *note], rows="shapes",
    )  # fmt: skip


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        counts = ()
    if not counts or counts[0] < 1 or counts[-1] > MOST_TOKENS:
        wanted = f"whole numbers from 1 to {MOST_TOKENS} with commas between them"
        raise InputError(f"--tokens must be {wanted}, not {text!r}")
    return counts


def _try(tuning: tune.Tuning, seconds: float) -> list[tune.Trial]:
    if (here := gpu_name()) != tuning.gpu.name:
        raise InputError(f"this machine has a {here}; --try needs --gpu {here}")
    cases = []
    for shape in tuning.shapes:
        ranked = [each.configuration.as_file() for each in shape.best]
        cases += trial_cases(tune.layer_of(shape), [None, *ranked, None])
    rows = try_configurations(cases, seconds).rows
    judged = [tune.judge(shape, tuning.gpu, rows) for shape in tuning.shapes]
    trials = [trial for trial in judged if trial is not None]
    if not trials:
        raise InputError(f"nothing was measured within --minutes {seconds / 60:g}; give more")
    return trials
