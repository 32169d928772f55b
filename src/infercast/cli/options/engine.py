"""Further options of ``vllm serve``, so that a command that starts an engine can be pasted as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from infercast.cli.options.shared import ENGINE
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError, UnknownNameError

SWITCHES = "Engine switches"
POLICIES = ("fcfs", "priority")
GRAPH_SETTINGS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""What a forecast takes from ``--compilation-config``."""

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
        help="vLLM's JSON; cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size are read.",
    ),
]  # fmt: skip
CaptureSizes = Annotated[
    str | None,
    typer.Option(
        "--cudagraph-capture-sizes", metavar="N,N", rich_help_panel=ENGINE,
        help="Tokens of the steps that CUDA graphs are recorded for; default: vLLM's list.",
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


def engine_settings(
    settings: EngineSettings,
    *,
    compilation_config: str | None = None,
    cudagraph_capture_sizes: str | None = None,
    max_cudagraph_capture_size: int | None = None,
    scheduling_policy: str = POLICIES[0],
    decode_context_parallel_size: int = 1,
) -> EngineSettings:
    """The settings with what these say; what is not modelled is refused, or named on standard error."""
    if decode_context_parallel_size != 1:
        raise InputError(
            f"--decode-context-parallel-size {decode_context_parallel_size} is not modelled; leave it at 1"
        )
    if scheduling_policy not in POLICIES:
        raise UnknownNameError("scheduling policy", scheduling_policy, POLICIES)
    if scheduling_policy == "priority":
        note("--scheduling-policy priority serves as fcfs does: requests of a workload have no priorities")
    graphs = _graph_settings(compilation_config) if compilation_config else {}
    if cudagraph_capture_sizes is not None:
        graphs["cudagraph_capture_sizes"] = _sizes(cudagraph_capture_sizes)
    if max_cudagraph_capture_size is not None:
        graphs["max_cudagraph_capture_size"] = max_cudagraph_capture_size
    return replace(settings, **graphs) if graphs else settings


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise InputError(f"--cudagraph-capture-sizes must be whole numbers with commas between them, not {text!r}")
    return tuple(int(part) for part in parts)


def _graph_settings(text: str) -> dict[str, Any]:
    """What a compilation config says of CUDA graphs; a plain number is its mode of compiling."""
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}") from None
    values = {"mode": values} if isinstance(values, int) else values
    if not isinstance(values, dict):
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}")
    if unread := [name for name in values if name not in GRAPH_SETTINGS]:
        note(f"--compilation-config: {', '.join(unread)} ignored; read are {', '.join(GRAPH_SETTINGS)}")
    found = {name: values[name] for name in GRAPH_SETTINGS if values.get(name) is not None}
    if "cudagraph_mode" in found:
        found["cudagraph_mode"] = str(found["cudagraph_mode"]).lower()
    largest, sizes = found.get("max_cudagraph_capture_size"), found.get("cudagraph_capture_sizes")
    if largest is not None and type(largest) is not int:
        raise InputError(f"--compilation-config: max_cudagraph_capture_size must be a whole number, not {largest!r}")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise InputError(f"--compilation-config: cudagraph_capture_sizes must be whole numbers, not {sizes!r}")
        found["cudagraph_capture_sizes"] = tuple(sizes)
    return found


def note(sentence: str) -> None:
    """What a user should know beside the answer, on standard error."""
    typer.echo(f"infercast: {sentence}", err=True)
