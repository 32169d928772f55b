"""Further options of engines, so that a command that starts one can be pasted as it is, and the settings they make."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from infercast.cli.options.shared import of_count, of_engine
from infercast.engines.registry import DEFAULT_ENGINE, engine_named
from infercast.engines.settings import Settings, read_setting
from infercast.errors import InputError

of_switch = partial(typer.Option, metavar="", rich_help_panel="Engine switches", show_default=False)

Setting = Annotated[
    list[str], of_engine("--setting", metavar="NAME=VALUE", help="Any other setting of the engine, by its own name.")
]
Dtype = Annotated[
    str, of_engine("--dtype", metavar="T", help="Of weights that are not quantised: auto, bfloat16 or float16.")
]
PrefixCaching = Annotated[
    bool | None,
    of_switch(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Prefix caching; default: on, unless the engine leaves it off for a model with recurrent layers.",
    ),
]
AsyncScheduling = Annotated[
    bool, of_switch("--async-scheduling/--no-async-scheduling", help="Plan a step ahead; on by default.")
]
ChunkedPrefill = Annotated[
    bool,
    of_switch("--enable-chunked-prefill/--no-enable-chunked-prefill", help="Split prompts over steps; on by default."),
]
LongPrefill = Annotated[
    int, of_count("--long-prefill-token-threshold", help="Most tokens of one prompt in a step; 0: no such limit.")
]
NumBlocks = Annotated[
    int | None, of_count("--num-gpu-blocks-override", help="KV blocks, in place of what fits in memory.")
]
CompilationConfig = Annotated[
    str | None,
    of_engine(
        "--compilation-config",
        "-cc",
        metavar="JSON",
        help="JSON; cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size are read.",
    ),
]
CaptureSizes = Annotated[
    str | None,
    of_engine(
        "--cudagraph-capture-sizes",
        metavar="N,N",
        help="Tokens of the steps that CUDA graphs are recorded for; default: the engine's list.",
    ),
]
LargestCapture = Annotated[int | None, of_count("--max-cudagraph-capture-size", help="The largest of them.")]
KvOffloadingSize = Annotated[
    float | None,
    of_engine(
        "--kv-offloading-size",
        metavar="GIB",
        help="GiB of the host's memory for a second tier of the KV cache, for all GPUs of an engine together.",
    ),
]
KvOffloadingBackend = Annotated[
    str, of_engine("--kv-offloading-backend", metavar="NAME", help="What keeps that tier; native is modelled.")
]
KvTransferConfig = Annotated[
    str | None,
    of_engine(
        "--kv-transfer-config",
        metavar="JSON",
        help="JSON; the OffloadingConnector with cpu_bytes_to_use, block_size, offload_prompt_only and "
        "store_threshold is read.",
    ),
]
SchedulingPolicy = Annotated[
    str,
    of_engine("--scheduling-policy", metavar="NAME", help="fcfs, or priority: by the priorities of requests."),
]
SpeculativeConfig = Annotated[
    str | None,
    of_engine(
        "--speculative-config",
        metavar="JSON",
        help='Speculative decoding: \'{"method": "mtp", "num_speculative_tokens": 2}\'; ngram, eagle, eagle3, mtp, '
        "draft_model.",
    ),
]
AcceptanceOption = Annotated[
    str | None,
    of_engine(
        "--acceptance",
        metavar="TEXT",
        help="Drafts that are accepted: a length (2.4), a rate (0.7), rates by position (0.8,0.6), a published "
        "curve, or a line of the engine's log.",
    ),
]
DecodeContextParallel = Annotated[int, of_count("--decode-context-parallel-size", "-dcp", help="Only 1 is modelled.")]


def settings_of(context: typer.Context, **fixed: Any) -> Settings:
    """The settings of an engine that the options of a command ask for; what nobody gave is the engine's choice.

    ``fixed`` are values that the command itself has for some.
    """
    engine = engine_named(context.params.get("engine", DEFAULT_ENGINE))
    # Options of ours go by the names of the default engine.
    known = (engine.flags.options | engine_named().flags.options) - {"engine"}
    given = {name: context.params[name] for name in known & {*context.params} if is_given(context, name)}
    if strange := sorted({*given} - engine.flags.options):
        flag = strange[0].replace("_", "-")
        own = engine.flags.called.get(flag)
        raise InputError(f"--{flag} is no option of {engine.title}; {f'use --{own}' if own else 'leave it out'}")
    for text in context.params.get("setting") or ():
        name, _, value = text.partition("=")
        given[name] = read_setting(engine.setting_types, name, value)
    settings: Settings = engine.settings(given | fixed, note)
    return settings


def longest_asked(context: typer.Context) -> int | None:
    """Tokens of the longest sequence that the engine is told to serve, under whatever name it has for that."""
    for text in context.params.get("setting") or ():
        engine = engine_named(context.params["engine"])
        name, _, value = text.partition("=")
        if name == engine.bounds[2]:
            return int(read_setting(engine.setting_types, name, value))
    asked: int | None = context.params.get("max_model_len")
    return asked


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def note(sentence: str) -> None:
    """What a user should know beside the answer, on standard error."""
    typer.echo(f"infercast: {sentence}", err=True)


def compare_engines(context: typer.Context, given: dict[str, Any]) -> None:
    """Two engines with a comma between them are the second one beside the first, as a change."""
    first, *others = [name.strip() for name in given["engine"].split(",")]
    if len(others) > 1:
        raise InputError(f"--engine takes two engines to compare, not {1 + len(others)}: {given['engine']}")
    if others:
        change = f"engine={others[0]}"
        given["what_if"] = change if given["what_if"] is None else f"{change},{given['what_if']}"
    given["engine"] = context.params["engine"] = first
