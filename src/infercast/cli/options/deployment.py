"""Options of a deployment: model, GPUs, parallelism, engine and predictor; and an engine's own flags.

Some change nothing that is forecast (ports, names, parsers): they are left out, and named on standard error. Others
would change the answer and are not modelled: they are refused by name. Which is which, the engine knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli import completion
from infercast.engines.base import DEFAULT_ENGINE, FAMILIES, AnyEngine, engine_named, flags_by_name
from infercast.engines.settings import Settings, read_setting
from infercast.engines.vocabulary import Flags
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import load_gpu
from infercast.predict.fitted import load_artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned, default_artifact
from infercast.predict.roofline import Predictor
from infercast.serve.fleet.router import POLICIES
from infercast.units import whole_number


def human_readable_int(text: str | int) -> int:
    """A whole number as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768, ``1.5m`` is 1,500,000."""
    try:
        return whole_number(str(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def translated(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's words with the engine's spelling made ours, and the flags that were left out.

    As to the engines ``--max_num_seqs`` is ``--max-num-seqs``.
    """
    named = _named(arguments)
    engine = _engine(named)
    kept: list[str] = []
    left_out: list[str] = []
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("--") or word == "--":
            kept.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-")
        if not _leave_out(name, bool(equals), words, engine.flags, left_out):
            kept += _kept(name, value if equals else None, words, engine, named)
    return kept, left_out


def _leave_out(name: str, has_value: bool, words: deque[str], flags: Flags, left_out: list[str]) -> bool:
    """Whether a flag changes nothing; the word behind it goes with it."""
    if name.removeprefix("no-") not in flags.switches and name not in flags.values:
        return False
    left_out.append(f"--{name}")
    if name in flags.values and not has_value and words:
        words.popleft()
    return True


def _kept(name: str, value: str | None, words: deque[str], engine: AnyEngine, named: list[str]) -> list[str]:
    """A flag that counts, as an option of ours or as a setting of the engine."""
    flags = engine.flags
    if name in flags.not_modelled:
        raise InputError(f"--{name} is not modelled: {flags.not_modelled[name]}; leave it out to forecast without")
    setting = flags.settings.get(name)
    switch = flags.settings.get(name.removeprefix("no-"), "")
    if setting is None and value is None and engine.setting_types.get(switch) is bool:
        return ["--setting", f"{switch}=off"]
    name = flags.other_names.get(name, name)
    if value is None and (setting or name) in _lists(flags):
        numbers = []
        while words and words[0].replace(",", "").isdigit():
            numbers.append(words.popleft())
        value = ",".join(numbers)
        if setting is None:
            return [f"--{name}", value]
    if setting is not None:
        if value is None:
            value = "on" if engine.setting_types.get(setting) is bool else words.popleft() if words else ""
        return ["--setting", f"{setting}={value}"]
    _refuse_foreign(name, engine, named)
    return [f"--{name}" if value is None else f"--{name}={value}"]


def _lists(flags: Flags) -> set[str]:
    """Names of options, or of settings, that take several values."""
    return {flags.settings.get(name, name) for name in flags.lists}


def _refuse_foreign(name: str, engine: AnyEngine, named: list[str]) -> None:
    """Say whose flag it is that another engine has and this one has not."""
    for family in FAMILIES:
        if family != engine.family and name in flags_by_name(family):
            other = engine_named(family)
            own = engine.flags.called.get(name)
            called = f"{engine.title} calls it --{own}" if own else f"{engine.title} has no such flag"
            if any(each.partition("@")[0] == other.family for each in named):
                raise InputError(
                    f"--{name} is a flag of {other.title}, and flags are for the engine that is named first; {called}"
                )
            raise InputError(f"--{name} is a flag of {other.title}: add --engine {other.family}; {called}")


def _named(arguments: list[str]) -> list[str]:
    """The engines that the words name, with commas between them."""
    named = ""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--engine" or word.startswith("--engine="):
            named = word.partition("=")[2] or after
    return [part.strip() for part in named.split(",") if part.strip()]


def _engine(named: list[str]) -> AnyEngine:
    """The one whose flags are meant, the first; of one that nobody knows, the command will tell."""
    try:
        return engine_named(named[0] if named else None)
    except InputError:
        return engine_named()


ENGINE = f"Engine ({engine_named().title}'s names and defaults)"
WORKLOAD = "Workload"
of_engine = partial(typer.Option, rich_help_panel=ENGINE)
of_count = partial(of_engine, metavar="N")
of_size = partial(of_count, parser=human_readable_int)
of_workload = partial(typer.Option, rich_help_panel=WORKLOAD)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Bundled name, Hugging Face id, config.json or a folder with one.",
        autocompletion=completion.models,
    ),
]
GpuName = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Bundled name (see `infercast gpus`) or your own TOML file.",
        autocompletion=completion.gpus,
    ),
]
AllowOverload = Annotated[
    bool, typer.Option("--allow-overload", metavar="", help="Print a saturated run's numbers instead of refusing.")
]
Steady = Annotated[
    bool, typer.Option("--steady", metavar="", help="Leave ramp-up and drain out of latencies and rates.")
]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        "-q",
        metavar="T",
        help="Weights other than the checkpoint's: fp8, int8, int4, mxfp4, nvfp4, ...",
    ),
]
KvCacheDtype = Annotated[str, of_engine("--kv-cache-dtype", metavar="T", help="auto, bf16 or fp8.")]
TensorParallel = Annotated[int, of_count("--tensor-parallel-size", "-tp", help="GPUs that share every layer.")]
PipelineParallel = Annotated[
    int, of_count("--pipeline-parallel-size", "-pp", help="Stages of layers, one after the other.")
]
DataParallel = Annotated[
    int, of_count("--data-parallel-size", "-dp", help="Replicas of the model behind a load balancer.")
]
ExpertParallel = Annotated[
    bool, of_engine("--enable-expert-parallel", "-ep", metavar="", help="Spread experts over the GPUs of all replicas.")
]
All2AllBackend = Annotated[
    str | None,
    of_engine("--all2all-backend", metavar="NAME", help="Between replicas that share experts: deepep_low_latency, ..."),
]
ExpertRouting = Annotated[
    str,
    of_workload(
        "--expert-routing", metavar="NAME", help="How tokens spread over experts: uniform, balanced, power_law_1.2."
    ),
]
Sampling = Annotated[
    str,
    of_workload(
        "--sampling", metavar="NAME", help="Tokens by greedy choice, or sorted: top-p over all logits in order."
    ),
]
MoeBackend = Annotated[
    str, of_engine("--moe-backend", metavar="NAME", help="Kernels of experts: auto, triton, cutlass, trtllm, marlin.")
]
LanguageModelOnly = Annotated[
    bool, of_engine("--language-model-only", metavar="", help="Leave the encoder of images out of memory.")
]
HfOverrides = Annotated[
    str | None,
    of_engine("--hf-overrides", metavar="JSON", help='Fields of the config to replace: {"num_hidden_layers": 8}.'),
]
StateDtype = Annotated[
    str, of_engine("--mamba-cache-dtype", metavar="T", help="Of states of recurrent layers: auto, float32, float16 ...")
]
StateMatrixDtype = Annotated[
    str,
    of_engine("--mamba-ssm-cache-dtype", metavar="T", help="Of their matrices alone; default: the model's."),
]
ScanBackend = Annotated[
    str,
    of_engine("--gdn-prefill-backend", metavar="NAME", help="Scans of gated delta nets: triton, flashinfer; by GPU."),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        autocompletion=completion.networks,
        help="Between nodes: infiniband-ndr, roce-400, ...; none by default.",
    ),
]
PcieTopology = Annotated[
    str | None,
    typer.Option(
        "--pcie-topology",
        metavar="NAME",
        help="Between GPUs of a node without NVLink: switch, sockets or host; left open by default.",
    ),
]
PowerLimit = Annotated[
    float | None,
    typer.Option("--power-limit", metavar="WATTS", help="What each GPU's board may draw; its own limit by default."),
]
GpuClock = Annotated[
    float | None,
    typer.Option("--gpu-clock", metavar="MHZ", help="Lock the clock of each GPU; as high as it goes by default."),
]
RouterName = Annotated[
    str | None,
    typer.Option(
        "--router", metavar="NAME", autocompletion=completion.routers,
        help=f"Before several replicas: {', '.join(POLICIES)}; default: the engine's own, before pools least_loaded.",
    ),
]  # fmt: skip
ApiServer = Annotated[
    bool,
    of_workload(
        "--api-server/--no-api-server", metavar="", show_default=False,
        help="Requests come as text over HTTP (the default), or as tokens from one program.",
    ),
]  # fmt: skip
MaxBatchedTokens = Annotated[
    int | None, of_size("--max-num-batched-tokens", help="Most tokens in one step; default: 8192, on small GPUs 2048.")
]
MaxSeqs = Annotated[
    int | None, of_size("--max-num-seqs", help="Most sequences in one step; default: 1024, on small GPUs 256.")
]
MaxModelLen = Annotated[
    int | None, of_size("--max-model-len", help="Longest sequence, also as 32k or 32K; default: all the model allows.")
]
MemoryUtilization = Annotated[
    float, of_engine("--gpu-memory-utilization", metavar="X", help="Share of GPU memory the engine takes.")
]
EngineName = Annotated[
    str,
    of_engine(
        "--engine",
        metavar="NAME",
        autocompletion=completion.engines,
        help=f"{' or '.join(FAMILIES)}, the newest or as {DEFAULT_ENGINE}; two with a comma: side by side.",
    ),
]
BlockSize = Annotated[
    int | None, of_count("--block-size", help="Tokens in a KV block; default: 16, or what MLA's kernels need.")
]
EnforceEager = Annotated[bool, of_engine("--enforce-eager", metavar="", help="No CUDA graphs.")]
PredictorName = Annotated[
    str, typer.Option("--predictor", metavar="NAME", help="learned, roofline, or an artefact of your own (.npz).")
]
Anchors = Annotated[
    Path | None,
    typer.Option("--anchors", metavar="DIR", help="Measured kernels of this GPU (parquet) that correct its estimates."),
]
Measurements = Annotated[
    Path | None,
    typer.Option("--measurements", metavar="DIR", help="Your own tables of `infercast measure`, fitted on the spot."),
]
WhatIf = Annotated[
    str | None,
    typer.Option(
        "--what-if", metavar="CHANGES", help="Beside it: dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm,quantization=fp8."
    ),
]
HostFile = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="NAME",
        autocompletion=completion.hosts,
        help="Your CPU: a name of `infercast hosts`, a host.json or a .toml file.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="What `infercast calibrate` learned from your own results."),
]


def choose_predictor(
    name: str, anchors: Path | None, gpu: str, measurements: Path | None = None, engine: str = DEFAULT_ENGINE
) -> str | Predictor:
    """The predictor of a command, with a user's own tables, and corrected by anchors where there are any."""
    if anchors is None and measurements is None:
        return name
    if name == "roofline":
        given = "--anchors" if measurements is None else "--measurements"
        raise InputError(f"{given} improve learned estimates; leave out --predictor roofline")
    if anchors is not None and not anchors.is_dir():
        raise InputError(f"--anchors {anchors} is not a folder")
    need_packages("measured kernels")
    profile = kernel_profile(engine_named(engine).family)
    artifact = default_artifact() if name == "learned" else load_artifact(Path(name))
    if measurements is not None:
        from infercast.fit.train import fit_sweeps  # noqa: PLC0415 - needs the packages of infercast[fit]

        artifact = artifact.with_models(fit_sweeps(measurements))
    if anchors is None:
        return Learned(artifact, profile)
    from infercast.fit.anchoring import read_corrections  # noqa: PLC0415 - as above

    corrections = read_corrections(anchors, load_gpu(gpu), artifact, profile)
    return Learned(artifact, profile, corrections=corrections)


def need_packages(who: str) -> None:
    """Say what to install where the packages of infercast[fit] are missing."""
    for package in ("pandas", "pyarrow", "catboost"):
        if find_spec(package) is None:
            raise InputError(f"{who} need {package}: pip install 'infercast[fit]'")


def known_names(kind: str, text: str, known: Collection[str] | None = None) -> tuple[str, ...]:
    """Names with commas between them, all of which must be known; any is where nothing is said of that."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if known is not None and name not in known:
            raise UnknownNameError(kind, name, known)
    return names


def comma_list(option: str, given: Sequence[str]) -> list[str]:
    """Names with commas between them, or one an option, or both; each counts once."""
    names = [part.strip() for text in given for part in text.split(",")]
    if not names or not all(names):
        raise InputError(f"{option} must be names with commas between them, not {','.join(given)!r}")
    return list(dict.fromkeys(names))


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
