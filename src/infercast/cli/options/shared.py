"""Options that several commands share. Those of an engine carry the names of the default one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from infercast.cli import completion
from infercast.cli.options.counts import human_readable_int
from infercast.engines.registry import DEFAULT_ENGINE, FAMILIES, engine_named
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import load_gpu
from infercast.predict.artifact.artifact import load_artifact
from infercast.predict.default import default_artifact
from infercast.predict.learned import Learned
from infercast.predict.profile import kernel_profile
from infercast.predict.roofline import Predictor
from infercast.serve.fleet.router import POLICIES

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
