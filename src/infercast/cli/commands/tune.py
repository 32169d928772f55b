"""``infercast tune``: better launch configurations for a model's routed experts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from infercast.cli.options import shared as options
from infercast.cli.options.printed import Form, print_result
from infercast.engines.registry import DEFAULT_ENGINE, engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.tune.advice import TOKENS, Tuning, tune_model
from infercast.forecast.tune.trial import Trial, judge, layer_of
from infercast.forecast.tune.tuned_file import tried_file, untried_file
from infercast.hardware import load_gpu
from infercast.measure.device import gpu_name
from infercast.measure.tuning import trial_cases, try_configurations
from infercast.report.files import write_in_folder
from infercast.report.layout import facts
from infercast.report.tuning import render_trials, render_tuning, trial_dict, tuning_dict

MOST_TOKENS = 1 << 20
"""Steps of a million tokens are above what any engine plans."""


def command(
    model: options.Model,
    gpu: options.GpuName,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,N", help="Tokens of a step, with commas between them.")
    ] = ",".join(map(str, TOKENS)),
    top: Annotated[int, typer.Option("--top", metavar="N", help="Configurations to show, or to try.")] = 5,
    quantization: options.Quantization = None,
    tensor_parallel_size: options.TensorParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    engine: options.EngineName = DEFAULT_ENGINE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the file that the engine reads."),
    ] = None,
    on_gpu: Annotated[
        bool, typer.Option("--try", metavar="", help="Measure the default and the best on this machine's GPU.")
    ] = False,
    minutes: Annotated[float, typer.Option("--minutes", metavar="N", help="Time limit of --try, in minutes.")] = 4.0,
    form: Form = Form.TABLE,
) -> None:
    """Rank launch configurations of Triton's kernel for routed experts, and say which are worth a change.

    A change is recommended untried where it should gain 1.2 x or more.

    With --try the best few are measured on this machine's GPU.

    For example:

      infercast tune deepseek-v2 --gpu h200-sxm --tensor-parallel-size 8

      infercast tune deepseek-v2 --gpu h200-sxm --tensor-parallel-size 8 --try --out ./configs

      VLLM_TUNED_CONFIG_FOLDER=./configs vllm serve deepseek-ai/DeepSeek-V2 --tensor-parallel-size 8
    """
    if top < 1:
        raise InputError(f"--top must be 1 or more, not {top}")
    if not 0 < minutes < math.inf:
        raise InputError(f"--minutes must be a number above 0, not {minutes:g}")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is not a folder")
    release = engine_named(engine)
    tuning = tune_model(
        load_model(model, quantization=quantization, engine=release),
        load_gpu(gpu),
        tensor_parallel_size=tensor_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        tokens=_counts(tokens),
        top=top,
        engine=release,
    )
    trials = _try(tuning, 60 * minutes) if on_gpu else []
    result = tuning_dict(tuning) | ({"trials": [trial_dict(each) for each in trials]} if on_gpu else {})
    written = None
    if out is not None:
        written, chosen = out / result["file"], tried_file(tuning, trials) if on_gpu else untried_file(tuning)
        write_in_folder(written, json.dumps(chosen, indent=4) + "\n")
    note = [] if written is None else [facts([("written to", str(written))])]
    print_result(
        form,
        lambda: result | ({} if written is None else {"written": str(written)}),
        lambda: [*(render_trials(tuning, trials) if on_gpu else render_tuning(tuning)), *note],
        rows="shapes",
    )


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        counts = ()
    if not counts or counts[0] < 1 or counts[-1] > MOST_TOKENS:
        wanted = f"whole numbers from 1 to {MOST_TOKENS} with commas between them"
        raise InputError(f"--tokens must be {wanted}, not {text!r}")
    return counts


def _try(tuning: Tuning, seconds: float) -> list[Trial]:
    """Measure the default, the ranked and the default again at every number of tokens."""
    if (here := gpu_name()) != tuning.gpu.name:
        raise InputError(f"this machine has a {here}; --try needs --gpu {here}")
    cases = []
    for shape in tuning.shapes:
        ranked = [each.configuration.as_file() for each in shape.best]
        cases += trial_cases(layer_of(shape), [None, *ranked, None])
    rows = try_configurations(cases, seconds).rows
    judged = [judge(shape, tuning.gpu, rows) for shape in tuning.shapes]
    trials = [trial for trial in judged if trial is not None]
    if not trials:
        raise InputError(f"nothing was measured within --minutes {seconds / 60:g}; give more")
    return trials
