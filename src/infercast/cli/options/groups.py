"""Options that commands have in common, in groups, and the deployment that they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from infercast import Deployment
from infercast.cli import outputs
from infercast.cli.options import deployment as engine_options
from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options import workload as talked
from infercast.cli.outputs import Form
from infercast.engines.base import DEFAULT_ENGINE
from infercast.forecast.calibration import Calibration, read_calibration
from infercast.forecast.deploy import ROUTINGS, SAMPLINGS, deploy
from infercast.forecast.options import THINK, TOOL_TIME, TURN_LEN
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.serve.workload.request import TOO_LONG

Command = TypeVar("Command", bound=Callable[..., None])

OF_DEPLOY = (
    "quantization", "dtype", "kv_cache_dtype", "enable_expert_parallel", "all2all_backend", "moe_backend",
    "language_model_only", "hf_overrides", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "gdn_prefill_backend",
    "expert_routing", "sampling", "network", "pcie_topology", "power_limit_w", "gpu_clock_mhz", "api_server",
)  # fmt: skip
"""Options that `deploy` takes as they are."""


class Served:
    """What users send."""

    rate: served.Rate = None
    arrival: served.Arrival = "poisson"
    burstiness: served.Burstiness = 1.0
    concurrency: served.Concurrency = None
    num_requests: served.NumRequests = None
    input_len: served.InputLen = INPUT_LEN
    output_len: served.OutputLen = OUTPUT_LEN
    declared_output_len: served.DeclaredOutputLen = None
    ignore_eos: served.IgnoreEos = None
    prefix_len: served.PrefixLen = 0
    prefix_groups: served.PrefixGroups = 1
    trace: served.Trace = None
    rate_scale: served.RateScale = 1.0
    too_long: served.TooLong = TOO_LONG[0]
    seed: served.Seed = 0
    turns: talked.Turns = None
    session_rate: talked.SessionRate = None
    turn_len: talked.TurnLen = TURN_LEN
    think: talked.Think = THINK
    tool_share: talked.ToolShare = 0.0
    tool_time: talked.ToolTime = TOOL_TIME
    tool_len: talked.ToolLen = None
    follow_sessions: talked.FollowSessions = False
    class_: talked.Classes = []  # noqa: RUF012 - read only
    adapters: talked.NumAdapters = None
    adapter_skew: talked.AdapterSkew = 1.0
    adapter_share: talked.AdapterShare = 1.0


class Started:
    """An engine as a command starts it, but for GPUs and how they are used together."""

    quantization: options.Quantization = None
    dtype: engine_options.Dtype = "auto"
    kv_cache_dtype: options.KvCacheDtype = "auto"
    enable_expert_parallel: options.ExpertParallel = False
    moe_backend: options.MoeBackend = "auto"
    language_model_only: options.LanguageModelOnly = False
    hf_overrides: options.HfOverrides = None
    mamba_cache_dtype: options.StateDtype = "auto"
    mamba_ssm_cache_dtype: options.StateMatrixDtype = "auto"
    gdn_prefill_backend: options.ScanBackend = "auto"
    network: options.NetworkName = None
    engine: options.EngineName = DEFAULT_ENGINE
    max_num_batched_tokens: options.MaxBatchedTokens = None
    max_num_seqs: options.MaxSeqs = None
    max_model_len: options.MaxModelLen = None
    gpu_memory_utilization: options.MemoryUtilization = 0.92
    block_size: options.BlockSize = None
    enable_prefix_caching: engine_options.PrefixCaching = None
    async_scheduling: engine_options.AsyncScheduling = True
    enable_chunked_prefill: engine_options.ChunkedPrefill = True
    long_prefill_token_threshold: engine_options.LongPrefill = 0
    num_gpu_blocks_override: engine_options.NumBlocks = None
    compilation_config: engine_options.CompilationConfig = None
    cudagraph_capture_sizes: engine_options.CaptureSizes = None
    max_cudagraph_capture_size: engine_options.LargestCapture = None
    kv_offloading_size: engine_options.KvOffloadingSize = None
    kv_offloading_backend: engine_options.KvOffloadingBackend = "native"
    kv_transfer_config: engine_options.KvTransferConfig = None
    speculative_config: engine_options.SpeculativeConfig = None
    acceptance: engine_options.AcceptanceOption = None
    scheduling_policy: engine_options.SchedulingPolicy = "fcfs"
    decode_context_parallel_size: engine_options.DecodeContextParallel = 1
    enforce_eager: options.EnforceEager = False
    setting: engine_options.Setting = []  # noqa: RUF012 - read only


class Deployed(Started):
    """What serves requests: that engine, what it runs on, and how its kernels are estimated."""

    all2all_backend: options.All2AllBackend = None
    expert_routing: options.ExpertRouting = ROUTINGS[0]
    sampling: options.Sampling = SAMPLINGS[0]
    pcie_topology: options.PcieTopology = None
    power_limit_w: options.PowerLimit = None
    gpu_clock_mhz: options.GpuClock = None
    api_server: options.ApiServer = True
    predictor: options.PredictorName = "learned"
    anchors: options.Anchors = None
    measurements: options.Measurements = None
    host: options.HostFile = None
    calibration: options.Calibration = None


class Shown:
    """What is said of the run."""

    allow_overload: options.AllowOverload = False
    steady: options.Steady = False
    breakdown: Annotated[
        bool,
        typer.Option("--breakdown", metavar="", help="Say where every second goes: kernels, host, waiting, requests."),
    ] = False
    what_if: options.WhatIf = None
    report: outputs.Report = None
    trace_out: outputs.TraceOut = None
    trace_window: outputs.TraceWindow = outputs.WINDOW
    requests_out: outputs.RequestsOut = None
    save_result: outputs.SaveResult = None
    save_detailed: outputs.SaveDetailed = False
    form: Form = Form.TABLE


def takes(*groups: type, only: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command the options of these groups after its own; it gets them as keywords.

    Those that it has itself are its own, and of the last group it takes ``only`` these where some are named.
    """

    def extend(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=kind) for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {each.name for each in parameters}
        for group in groups:
            for name, option in get_type_hints(group, include_extras=True).items():
                if name not in known and (not only or group is not groups[-1] or name in only):
                    parameters.append(inspect.Parameter(name, kind, default=getattr(group, name), annotation=option))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return extend


def asked_deployment(
    context: typer.Context, gpu: str, room: Mapping[str, Any] | None = None, **layout: Any
) -> partial[Deployment]:
    """What `deploy` is to be called with: options of the command that it takes, and settings of its engine.

    ``layout``: how GPUs are used together, and what only some pools take; ``room``: settings that the command has.
    """
    given = context.params
    host = given.get("host")
    if host is not None:
        from infercast.forecast.deploy import host_from  # noqa: PLC0415 - most runs name no host

        host = host_from(host, gpu, given["engine"])
    # What a context holds are words, not paths yet.
    anchors, measurements = (None if given[name] is None else Path(given[name]) for name in ("anchors", "measurements"))
    return partial(
        deploy,
        given["model"],
        gpu,
        engine_options.settings_of(context, **room or {}),
        **{**{name: given[name] for name in OF_DEPLOY if name in given}, **layout},
        predictor=options.choose_predictor(given["predictor"], anchors, gpu, measurements, given["engine"]),
        host=host,
        calibration=asked_calibration(given),
    )


def asked_calibration(given: Mapping[str, Any]) -> Calibration | None:
    """The calibration that a command is given, read once."""
    return None if given.get("calibration") is None else read_calibration(Path(given["calibration"]))
