"""``infercast kernels``, ``diagnose`` and ``estimate``: kernels of a step, slow ones of a run, single ones."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.cli.options import Context, choose_predictor, deployment_of, is_given, with_options, workload_of
from infercast.cli.outputs import Form, print_answer, print_result
from infercast.engines.base import engine_named
from infercast.errors import InputError, SaturatedError, require
from infercast.forecast.deploy import deploy_changed, load_model, parse_changes
from infercast.forecast.estimate import (
    ALONE,
    CONDITIONS,
    ENDS,
    ENGINE,
    LASTING,
    SHAPES,
    estimate_kernel,
    estimate_table,
    list_kernels,
    power_of,
    rank_tiles,
)
from infercast.forecast.explain.diagnose import diagnose, diagnose_profile
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape, verify_shape
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, OPTIONS, PLACE, WORKLOAD, Option
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.load import is_modelled
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.report.comparison import render_steps, steps_dict
from infercast.report.files import check_writable
from infercast.report.kernels import power_dict, power_facts, render_step, step_dict
from infercast.report.terminal import Facts, Grid, Section
from infercast.units import format_many, format_seconds


@with_options(
    PLACE,
    Option("prefill", int, "Tokens of one prompt, in one step."),
    Option("decode", int, "Sequences that each compute one new token."),
    Option("context", int, "Tokens before the new ones, of each sequence."),
    "tensor_parallel_size data_parallel_size",
    OPTIONS["max_num_batched_tokens"]._replace(
        type=int, help="Most tokens in one step; default: 8192, or this step's."
    ),
    Option("explain", bool, "Show the terms that each estimate is made of.", False),
    "what_if quantization dtype kv_cache_dtype enable_expert_parallel moe_backend runner network engine",
    "speculative_config acceptance enforce_eager setting all2all_backend expert_routing pcie_topology predictor",
    "anchors measurements kernel_file",
)
def command(ctx: Context, *, prefill: int | None, decode: int | None, explain: bool, form: Form, **given: Any) -> None:
    if (prefill is None) == (decode is None):
        raise InputError("say which step: either --prefill TOKENS, or --decode SEQUENCES with --context TOKENS")
    model, context, most_tokens = given["model"], given["context"], given["max_num_batched_tokens"]
    require(prefill is None or prefill >= 1, "--prefill", "be at least 1", prefill)
    require(decode is None or decode >= 1, "--decode", "be at least 1", decode)
    require(context is None or context >= 0, "--context", "be 0 or more", context)
    if prefill is not None:
        cached = context or 0
        shape = prefill_shape(prefill, cached)
        question = f"prefill of {prefill:,} tokens" + (f" after {cached:,} cached ones" if cached else "")
    else:
        assert decode is not None
        before = 1024 if context is None else context
        shape = decode_shape(decode, before)
        question = f"decode of {format_many(decode, 'sequence')}, each after {before:,} tokens"
    longest, positions = shape.new_tokens[0] + shape.computed[0], load_model(model).max_positions
    if longest > positions:
        raise InputError(
            f"a {question} needs {longest} tokens in one sequence, above the {positions} positions of {model}"
        )
    spare_tokens = 64  # room for drafts behind a sequence
    spare = spare_tokens if given["speculative_config"] else 0
    most_tokens = max(shape.num_tokens, 8192) if most_tokens is None else most_tokens
    room = engine_named(given["engine"]).room_for(
        most_tokens, max(len(shape.new_tokens), min(most_tokens, 256)), min(longest + spare, positions)
    )
    asked = deployment_of(ctx, room=room)
    deployment = asked()
    if decode is not None and deployment.drafting is not None:
        shape = verify_shape(decode, shape.computed[0], deployment.drafting)
        question = f"{question}, each with {deployment.drafting.num_drafts} drafts to verify and as many to make"
    cost = estimate_step(deployment, shape, explain=explain or form.is_data)
    if given["what_if"] is None:
        tables = partial(render_step, question=question, explain=explain)
        print_result(form, step_dict, tables, deployment, cost, rows="kernels")
        return
    changes = parse_changes(given["what_if"])
    other = deploy_changed(asked, changes)
    costs = (deployment, cost), (other, estimate_step(other, shape, explain=form.is_data))
    print_result(form, steps_dict, partial(render_steps, question=question), *costs, changes.text, rows="step_time")


DEFAULT_COUNT, DEFAULT_CONCURRENCY = 300, 32


@with_options(
    OPTIONS["model"]._replace(default=None),
    "gpu",
    Option("profile", Path, "In place of a model: torch.profiler's trace, CSV of nsys stats or ncu."),
    "tensor_parallel_size pipeline_parallel_size pp_layer_partition",
    Option("what_if", str, "Diagnose it with changes: sms=160,gpu=...", metavar="CHANGES"),
    *(WORKLOAD, ENGINE_ARGS, DEPLOYMENT),
)
def diagnose_command(ctx: Context, *, what_if: str | None, profile: Path | None, form: Form, **given: Any) -> None:
    if (given["model"] is None) == (profile is None):
        raise InputError("say what to diagnose: a MODEL to simulate, or --profile FILE of kernels that ran")
    if profile is not None:
        _refuse_idle(ctx, {**given, "what_if": what_if}, "--profile")
        print_answer(form, diagnose_profile(profile, given["gpu"]))
        return
    said = any(given[name] is not None for name in ("trace", "rate", "concurrency"))
    if not said and given["arrival"] == "poisson":
        ctx.params["concurrency"] = DEFAULT_CONCURRENCY
    workload = workload_of(ctx, DEFAULT_COUNT)
    asked = deployment_of(ctx)
    deployment = asked() if what_if is None else deploy_changed(asked, parse_changes(what_if))
    diagnosis = diagnose(deployment, workload)
    if diagnosis.forecast.saturation is not None:
        raise SaturatedError(f"{diagnosis.forecast.saturation.sentence}; lower --rate or add GPUs")
    print_answer(form, diagnosis)


def _refuse_idle(ctx: Context, names: Iterable[str], beside: str) -> None:
    for name in names:
        if name != "gpu" and is_given(ctx, name):
            raise InputError(f"--{name.replace('_', '-')} has no meaning with {beside}; leave it out")


INTERVAL = "{} (80 % interval {} to {})"
WORDS = {ALONE: "latency, alone", ENGINE: "inside an engine", LASTING: "sustained, at the power limit"}
_TABLES = read_data("kernel_options.toml")
SIZES = {*_TABLES["sizes"], *_TABLES["formats"], "kernel"}
KERNEL = (
    Option("family", list, f"One of {', '.join((*SHAPES, *_TABLES['operators']))}; DIMENSION=N of your own.", (),
           metavar="FAMILY", argument=True),
    OPTIONS["gpu"]._replace(default=None),
    Option("kernel", str, "The kernel, where it is not the usual one: fa2, triton, cudnn, cutlass, gelu."),
    Option("list_kernels", bool, "List the kernels that can be named, and what they rest on.", False),
    *(Option(name, int, what, panel="Sizes") for name, what in _TABLES["sizes"].items()),
    *(Option(name, str, what, metavar="T", panel="Formats") for name, what in _TABLES["formats"].items()),
    Option("tiles", bool, "Of a gemm: rank the tiles that thread blocks could have.", False),
    Option("table", Path, "A CSV of shapes; prints CSV.", flag="--csv"),
    Option("kernel_file", Path, "A kernel of your own, of `infercast kernel fit`."),
)  # fmt: skip


@with_options(KERNEL, "network predictor anchors measurements")
def estimate_command(ctx: Context, *, table: Path | None, form: Form, **given: Any) -> None:
    family, gpu = given["family"], given["gpu"]
    if given["list_kernels"]:
        _print_kernels(form)
        return
    if not family or gpu is None:
        raise InputError(f"estimate needs {'--gpu' if family else 'a FAMILY'}; --list-kernels lists kernels")
    if given["kernel_file"] is not None:
        _refuse_idle(ctx, {*given, "table"} - {"kernel_file", "family"}, "--kernel-file")
        _estimate_own(given["kernel_file"], gpu, family, form)
        return
    if len(family) != 1:
        raise InputError(f"name one kernel family, not {' '.join(family)}; sizes are options, such as --m 4096")
    values = {name: value for name, value in given.items() if name in SIZES and value is not None}
    chosen = choose_predictor(given["predictor"], given["anchors"], gpu, given["measurements"])
    device = with_network(load_gpu(gpu), given["network"])
    used = make_predictor(chosen) if isinstance(chosen, str) else chosen
    if given["tiles"]:
        if family != ["gemm"] or table is not None or not is_modelled(device):
            raise InputError("--tiles is of one gemm on a GPU whose kernels are modelled")
        rows = rank_tiles(device, values, estimate_kernel(used, device, "gemm", values))
        shown = "{tile}|{parts_of_k}|{waves:.2f}|{times_as_long:.2f} x|{watts:.0f} W"
        cells = [[*shown.format(**row).split("|"), format_seconds(row["seconds"])] for row in rows]
        heads = ("tile", "parts of k", "waves", "times as long", "power", "latency")
        print_result(form, lambda: rows, lambda: [Grid(heads, cells)])
        return
    if table is None:
        _print_kernel(used, device, family[0], values, form)
        return
    if values:
        raise InputError(f"--csv brings its own sizes; leave out {', '.join(f'--{name}' for name in values)}")
    rows = list(estimate_table(used, device, family[0], table))
    tables = [Grid(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])] if rows else []
    # As CSV, in which it came, unless another form is asked for.
    print_result(Form.CSV if form is Form.TABLE else form, lambda: rows, lambda: tables)


def _estimate_own(path: Path, gpu: str, words: list[str], form: Form) -> None:
    from infercast.forecast.own_kernel import read_kernel  # noqa: PLC0415 - few have one

    kernel = read_kernel(path)
    if wrong := [word for word in words if not word.partition("=")[2].isdecimal()]:
        raise InputError(f"{wrong[0]} must be DIMENSION=N, with one of {', '.join(kernel.dims)}")
    found = kernel.predict(gpu, **{name: int(text) for name, _, text in (word.partition("=") for word in words)})
    numbers, facts = {end: float(getattr(found, end)) for end in ENDS}, {"source": found.source, "bound": found.bound}
    if found.source != "few-shot":
        by = "rooflines" if kernel.work else "datasheets"
        facts["note"] = f"measured on {kernel.gpu.name} and carried over by {by}, so the interval is wider"
    shown = INTERVAL.format(*(format_seconds(numbers[end]) for end in ENDS))
    rows = [("latency", shown), *((name, str(text)) for name, text in facts.items())]
    title = f"{kernel.name} on {load_gpu(gpu).title}: {', '.join(words)}"
    print_result(form, lambda: {**numbers, **facts}, lambda: [Section(title, Facts(rows))])


@with_options(
    Option("action", str, "What to do: fit.", ..., metavar="fit", argument=True),
    Option("rows", Path, "A CSV: whole-number dimensions, and microseconds.", ..., argument=True),
    Option("gpu", str, "Where it was measured.", ..., metavar="GPU", catalogue="gpus"),
    Option("work", str, "What a launch does: bytes=...; flops=...; tiles=...", "", metavar="FORMULAS",
           shows_default=False),
    Option("dtype", str, "The format that its FLOP are computed in.", "bf16", metavar="T"),
    Option("out", Path, "The predictor.", "kernel.json", short="-o"),
)  # fmt: skip
def fit_command(*, action: str, rows: Path, gpu: str, out: Path, form: Form, **given: Any) -> None:
    from infercast.forecast.own_kernel import fit_kernel  # noqa: PLC0415 - few ask for it

    if action != "fit":
        raise InputError(f"infercast kernel can fit, not {action}: infercast kernel fit FILE --gpu GPU")
    check_writable(out, "--out", (".json",))
    kernel = fit_kernel(rows, gpu, work=given["work"], dtype=given["dtype"])
    kernel.write(out)
    print_answer(form, kernel)


def _print_kernels(form: Form) -> None:
    rows = list_kernels()
    cells = [[*map(str, list(row.values())[:-1]), f"{100 * row['error']:.1f}" if row["rows"] else "-"] for row in rows]
    heads = [*(name.replace("_", " ") for name in list(rows[0])[:-1]), "error %"]
    form = Form.FULL if form is Form.TABLE else form
    print_result(form, lambda: rows, lambda: [Section("Kernels that can be named", Grid(heads, cells))])


def _print_kernel(predictor: Predictor, device: Gpu, family: str, values: dict[str, Any], form: Form) -> None:
    found = {each: estimate_kernel(predictor, device, family, values, each) for each in CONDITIONS}
    estimate = found[ALONE]
    numbers = {each: {end: float(getattr(found[each], end)) for end in ENDS} for each in CONDITIONS}
    sizes = ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in values.items()
    )
    power = power_of(device, family, values, estimate)
    shown = CONDITIONS if numbers[ENGINE] != numbers[ALONE] else (ALONE,)
    rows = [
        *((WORDS[each], INTERVAL.format(*(format_seconds(numbers[each][end]) for end in ENDS))) for each in shown),
        ("source", estimate.source), ("bound by", str(estimate.bound)), *power_facts(power),
    ]  # fmt: skip
    others = {each: numbers[each] for each in CONDITIONS if each != ALONE}
    known = {"source": estimate.source, "bound": str(estimate.bound), "power": power_dict(power)}
    document = {**numbers[ALONE], "condition": ALONE, **others, **known}
    print_result(form, lambda: document, lambda: [Section(f"{family} on {device.title}: {sizes}", Facts(rows))])
