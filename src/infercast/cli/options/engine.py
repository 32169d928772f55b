"""Further options of engines, so that a command that starts one can be pasted as it is, and the settings they make."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infercast.cli.options.shared import ENGINE
from infercast.engines.registry import DEFAULT_ENGINE, engine_named, engines
from infercast.engines.settings import Settings, read_setting
from infercast.errors import InputError

SWITCHES = "Engine switches"

Setting = Annotated[
    list[str],
    typer.Option(
        "--setting", metavar="NAME=VALUE", help="Any other setting of the engine, by its own name.",
        rich_help_panel=ENGINE,
    ),
]  # fmt: skip
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="T", help="Of weights that are not quantised: auto, bfloat16 or float16.",
        rich_help_panel=ENGINE,
    ),
]  # fmt: skip
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching", metavar="", help="Prefix caching; on by default.",
        rich_help_panel=SWITCHES, show_default=False,
    ),
]  # fmt: skip
AsyncScheduling = Annotated[
    bool,
    typer.Option(
        "--async-scheduling/--no-async-scheduling", metavar="", help="Plan a step ahead; on by default.",
        rich_help_panel=SWITCHES, show_default=False,
    ),
]  # fmt: skip
ChunkedPrefill = Annotated[
    bool,
    typer.Option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill", metavar="", rich_help_panel=SWITCHES,
        help="Split prompts over steps; on by default.", show_default=False,
    ),
]  # fmt: skip
LongPrefill = Annotated[
    int,
    typer.Option(
        "--long-prefill-token-threshold", metavar="N", rich_help_panel=ENGINE,
        help="Most tokens of one prompt in a step; 0: no such limit.",
    ),
]  # fmt: skip
NumBlocks = Annotated[
    int | None,
    typer.Option(
        "--num-gpu-blocks-override", metavar="N", rich_help_panel=ENGINE,
        help="KV blocks, in place of what fits in memory.",
    ),
]  # fmt: skip
CompilationConfig = Annotated[
    str | None,
    typer.Option(
        "--compilation-config", "-cc", metavar="JSON", rich_help_panel=ENGINE,
        help="JSON; cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size are read.",
    ),
]  # fmt: skip
CaptureSizes = Annotated[
    str | None,
    typer.Option(
        "--cudagraph-capture-sizes", metavar="N,N", rich_help_panel=ENGINE,
        help="Tokens of the steps that CUDA graphs are recorded for; default: the engine's list.",
    ),
]  # fmt: skip
LargestCapture = Annotated[
    int | None,
    typer.Option("--max-cudagraph-capture-size", metavar="N", help="The largest of them.", rich_help_panel=ENGINE),
]
SchedulingPolicy = Annotated[
    str,
    typer.Option(
        "--scheduling-policy", metavar="NAME", rich_help_panel=ENGINE,
        help="fcfs or priority; the same here, as requests have no priorities.",
    ),
]  # fmt: skip
DecodeContextParallel = Annotated[
    int,
    typer.Option(
        "--decode-context-parallel-size", "-dcp", metavar="N", help="Only 1 is modelled.", rich_help_panel=ENGINE
    ),
]


def settings_of(context: typer.Context, **fixed: Any) -> Settings:
    """The settings of an engine that the options of a command ask for; what nobody gave is the engine's choice.

    ``fixed`` are values that the command itself has for some.
    """
    engine = engine_named(context.params.get("engine", DEFAULT_ENGINE))
    known = {name for each in engines().values() for name in each.flags.options} - {"engine"}
    given = {name: context.params[name] for name in known & {*context.params} if is_given(context, name)}
    if strange := sorted({*given} - engine.flags.options):
        raise InputError(f"--{strange[0].replace('_', '-')} is no option of {engine.title}; leave it out")
    for text in context.params.get("setting") or ():
        name, _, value = text.partition("=")
        given[name] = read_setting(engine.setting_types, name, value)
    settings: Settings = engine.settings(given | fixed, note)
    return settings


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def note(sentence: str) -> None:
    """What a user should know beside the answer, on standard error."""
    typer.echo(f"infercast: {sentence}", err=True)
