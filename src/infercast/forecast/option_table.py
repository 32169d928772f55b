"""Every option once: its name, type, default, unit, help, spelling on the command line, and the questions that take it.

The command line, Python keyword checks, what-if changes, the fields of page and HTTP API, and the reference are all
made from these rows. To add an option, add a row (and the code that reads it).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from infercast.engines.base import DEFAULT_ENGINE, FAMILIES, engine_named
from infercast.forecast.slo import EXAMPLE
from infercast.models.spec import GREEDY, SORTED
from infercast.serve.fleet.router import POLICIES
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.serve.workload.request import TOO_LONG
from infercast.units import whole_number

ROUTINGS = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")
"""How tokens spread over experts: equally likely, in equal counts, or as uneven as measured tables have it."""
SAMPLINGS = (GREEDY, SORTED)
"""How tokens are picked: the most likely one, or by top-p from sorted logits, as vLLM 0.11.1 to 0.16 did."""
TURN_LEN, THINK, TOOL_TIME = "lognormal:120:0.8:4:4000", "exponential:10", "lognormal:2:1"
"""Of later turns of a session, of the time between two, and of tools."""

FITS, ALL = "simulate energy memory curve capacity", "simulate energy memory curve capacity plan"
RUNS, RUNS_AND_PLAN = "simulate energy curve capacity", "simulate energy curve capacity plan"
DRAWN, LOADS, COSTS = "simulate energy curve plan", "simulate energy plan", "simulate energy curve plan capacity"
"""Questions of the page that often go together."""


PAGE_GROUPS = (
    *("model", "hardware", "layout", "engine", "traffic", "sessions", "promise", "money", "energy"),
    *("memory", "curve", "plan", "day"),
)
"""Groups of the page's fields, in its order."""


class Page(NamedTuple):
    """An option as a field of the page and of the HTTP API."""

    label: str
    group: str
    questions: str
    """Those with an answer that depends on it."""
    help: str = ""
    """Where it differs from the command line's, which may take files, too."""
    bounds: tuple[float, float] | tuple[None, None] = (None, None)
    unit: str = ""
    default: Any = ...
    """Where it differs from the command line's."""
    name: str = ""
    """Where it differs from the option's."""


class Option(NamedTuple):
    name: str
    """In Python and, of a field, in JSON and in a URL."""
    type: Any
    """``whole_number`` also takes 32k; ``list`` is of texts."""
    default: Any
    """``...``: it must be given."""
    metavar: str | None
    help: str
    panel: str | None = None
    """The heading in ``--help``."""
    flag: str = ""
    """Where it is not the name with dashes."""
    short: str = ""
    off: bool = False
    """A switch that has a ``--no-`` form, too."""
    argument: bool = False
    """A word without a flag."""
    shows_default: bool = True
    catalogue: str = ""
    """The list that values come from: for the page, and for completion in a shell."""
    also: str = ""
    """Commands that take these and no others of the group."""
    python: str = ""
    """The keyword in Python, where it is another one."""
    what_if: bool = False
    """Whether ``--what-if`` can change it."""
    page: Page | None = None

    @property
    def spelled(self) -> str:
        """The flag on the command line; of a switch with two forms, both."""
        flag = self.flag or f"--{self.name.replace('_', '-')}"
        return f"{flag}/--no-{flag[2:]}" if self.off else flag


engine = partial(Option, panel=f"Engine ({engine_named().title}'s names and defaults)")
switch = partial(Option, panel="Engine switches", shows_default=False)
workload = partial(Option, panel="Workload")
session = partial(Option, panel="Sessions, classes and adapters", shows_default=False)
facility = partial(Option, panel="Energy")
decision = partial(Option, panel="SLO and cost")
file = partial(Option, panel="Files")
axis = partial(Option, panel="What changes")
fleet = partial(Option, panel="Fleet")
work = partial(Option, panel="Workers")

# fmt: off
PLACE = (
    Option("model", str, ..., "MODEL", "Bundled name, Hugging Face id, config.json or a folder with one.",
        argument=True, catalogue="models",
        page=Page("Model", "model", ALL, "A bundled model by name or Hugging Face id.", default="llama-3.1-8b")),
    Option("gpu", str, ..., "GPU", "Bundled name (see `infercast gpus`) or your own TOML file.", catalogue="gpus",
        page=Page("GPU", "hardware", FITS, "A bundled GPU by name.", default="h200-sxm")),
)

LAYOUT = (
    engine("tensor_parallel_size", int, 1, "N", "GPUs that share every layer.", short="-tp", what_if=True,
        page=Page("Tensor parallel", "layout", FITS, bounds=(1, 64), unit="GPUs")),
    engine("pipeline_parallel_size", int, 1, "N", "Stages of layers, one after the other.", short="-pp", what_if=True,
        page=Page("Pipeline parallel", "layout", FITS, bounds=(1, 32), unit="stages")),
    engine("data_parallel_size", int, 1, "N", "Replicas of the model behind a load balancer.", short="-dp",
        what_if=True, page=Page("Data parallel", "layout", FITS, bounds=(1, 32), unit="replicas")),
    Option("router", str, None, "NAME",
        f"Load balancer of several replicas: {', '.join(POLICIES)}; default: the engine's, least_loaded for pools.",
        catalogue="routers",
        page=Page("Load balancer", "layout", "simulate energy curve",
                  "Of several replicas; the engine's own by default.")),
)

WORKLOAD = (
    workload("rate", float, None, "R", "Requests per second; a trace's arrivals are scaled to it.", short="-r",
        page=Page("Request rate", "traffic", "simulate energy plan capacity", "Requests that arrive per second.",
                  (0.001, 10000), "requests/s", default=12.0)),
    workload("arrival", str, "poisson", "NAME", "poisson, gamma, constant or burst (all at once).",
        catalogue="arrivals", page=Page("Arrivals", "traffic", DRAWN, "How requests arrive.")),
    workload("burstiness", float, 1.0, "X", "Gamma arrivals: 1 is Poisson, less is burstier.",
        page=Page("Burstiness", "traffic", DRAWN, "Of gamma arrivals: 1 is Poisson, less is burstier.", (0.01, 100))),
    workload("concurrency", int, None, "N",
        "Closed loop: clients that each wait for their answer before they send again.",
        page=Page("Clients", "traffic", "simulate energy", bounds=(1, 4096), unit="clients")),
    workload("num_requests", int, None, "N",
        "Requests in all; default: as many as a steady result takes, or the whole trace.", short="-n", also="speculate",
        python="count",
        page=Page("Requests", "traffic", LOADS, "Requests in all; as many as a steady result takes if left empty.",
                  (1, 5000), "requests")),
    workload("input_len", str, INPUT_LEN, "LENGTH",
        "Prompt tokens: 512, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MIN:MAX].", also="speculate",
        python="input_lengths",
        page=Page("Prompt tokens", "traffic", COSTS, "512, uniform:MIN:MAX or lognormal:MEAN:SIGMA[:MIN:MAX].",
                  unit="tokens")),
    workload("output_len", str, OUTPUT_LEN, "LENGTH", "Output tokens, in the same forms.", also="speculate",
        python="output_lengths",
        page=Page("Output tokens", "traffic", COSTS, "In the same forms as prompt tokens.", unit="tokens")),
    workload("declared_output_len", int, None, "N",
        "Longest answer that clients ask for (max_tokens); shorter ones end by EOS. Default: the answer.",
        also="speculate", python="declared_length"),
    workload("ignore_eos", bool, None, None,
        "Answers end at max_tokens, as in benchmarks, or by EOS; default: a trace's by EOS, random ones do not.",
        off=True),
    workload("prefix_len", int, 0, "N", "Tokens that prompts share at their start.", also="speculate",
        python="prefix_length", page=Page("Shared prefix", "traffic", DRAWN, bounds=(0, 1000000), unit="tokens")),
    workload("prefix_groups", int, 1, "N", "Number of different shared starts.", also="speculate",
        page=Page("Shared prefixes", "traffic", DRAWN, bounds=(1, 100000))),
    workload("trace", Path, None, "FILE",
        "Replay a trace: Azure CSV, Mooncake JSONL, JSONL of conversations, or plain CSV/JSONL."),
    workload("rate_scale", float, 1.0, "X", "Replay a trace this many times as fast."),
    workload("too_long", str, TOO_LONG[0], "HOW",
        "Requests above max_model_len: refuse, truncate (the prompt first) or skip.", also="speculate"),
    workload("seed", int, 0, "N", "Same seed, same result.", also="speculate",
        page=Page("Seed", "traffic", COSTS, bounds=(0, 2147483647))),
    session("turns", str, None, "LENGTH",
        "Requests are turns of sessions: this many each, 5 or uniform:2:10. Prompts hold the whole history. With "
        "--concurrency, this many sessions run at a time.",
        page=Page("Turns per session", "sessions", LOADS, "Requests are turns of sessions: 5, or uniform:2:10.")),
    session("session_rate", float, None, "R", "Sessions that begin per second, in place of --rate.",
        page=Page("Session rate", "sessions", LOADS, "Sessions that begin per second, in place of a request rate.",
                  (0.0001, 1000), "sessions/s")),
    session("turn_len", str, TURN_LEN, "LENGTH", f"New tokens of each later turn; default {TURN_LEN}.",
        page=Page("Tokens of later turns", "sessions", LOADS,
                  "New tokens of each later turn, as prompt tokens are written.", unit="tokens", default=None)),
    session("think", str, THINK, "SECONDS",
        f"From an answer to the next turn: 8, uniform:MIN:MAX, exponential:MEAN, lognormal:MEAN:SIGMA; default "
        f"{THINK}.",
        page=Page("Time between turns", "sessions", LOADS,
                  "Seconds from an answer to the next turn: 8, uniform:MIN:MAX or exponential:MEAN.",
                  unit="s", default=None)),
    session("tool_share", float, 0.0, "X", "Agents: share of later turns that are a tool's result, 0 to 1."),
    session("tool_time", str, TOOL_TIME, "SECONDS", f"How long a tool runs; default {TOOL_TIME}."),
    session("tool_len", str, None, "LENGTH", "Tokens of a tool's result; default: --turn-len."),
    session("follow_sessions", bool, False, "",
        "With --trace: no turn is sent before the answer to the one before it."),
    session("class_", list, (), "CLASS",
        "A kind of traffic by name, share, priority and SLO in seconds: chat:0.7:priority=0:ttft=0.5,tpot=0.05; "
        "again for each. Priorities count with --scheduling-policy priority.", flag="--class"),
    session("adapters", int, None, "N", "LoRA adapters that requests ask for; needs --enable-lora."),
    session("adapter_skew", float, 1.0, "X", "Zipf: the k-th adapter as often as 1 / k^X; default 1, 0: alike."),
    session("adapter_share", float, 1.0, "X", "Share of requests that ask for one; default all."),
)

ENGINE_ARGS = (
    Option("quantization", str, None, "T", "Weights other than the checkpoint's: fp8, int8, int4, mxfp4, nvfp4, ...",
        short="-q", catalogue="quantizations", also="kernels layouts", what_if=True,
        page=Page("Weights", "model", FITS, "Format of the weights, where it is not the checkpoint's own.")),
    engine("dtype", str, "auto", "T", "Of weights that are not quantised: auto, bfloat16 or float16.", also="kernels",
        what_if=True),
    engine("kv_cache_dtype", str, "auto", "T", "auto, bf16 or fp8.", catalogue="kv_cache_dtypes",
        also="kernels layouts", what_if=True,
        page=Page("KV cache format", "engine", FITS, "Format of keys and values.")),
    engine("enable_expert_parallel", bool, False, "", "Spread experts over the GPUs of all replicas.", short="-ep",
        also="kernels", what_if=True, page=Page("Expert parallel", "layout", FITS)),
    engine("moe_backend", str, "auto", "NAME", "Kernels of experts: auto, triton, cutlass, trtllm, marlin.",
        also="kernels", what_if=True),
    engine("language_model_only", bool, False, "", "Leave the encoder of images out of memory."),
    engine("hf_overrides", str, None, "JSON", 'Fields of the config to replace: {"num_hidden_layers": 8}.'),
    engine("mamba_cache_dtype", str, "auto", "T", "Of states of recurrent layers: auto, float32, float16 ..."),
    engine("mamba_ssm_cache_dtype", str, "auto", "T", "Of their matrices alone; default: the model's."),
    engine("gdn_prefill_backend", str, "auto", "NAME", "Scans of gated delta nets: triton, flashinfer; by GPU."),
    Option("network", str, None, "NAME", "Between nodes: infiniband-ndr, roce-400, ...; none by default.",
        catalogue="networks", also="kernels layouts explain-command", what_if=True,
        page=Page("Network", "hardware", FITS, "Between nodes, for layouts of more GPUs than one node has.")),
    engine("engine", str, DEFAULT_ENGINE, "NAME",
        f"{' or '.join(FAMILIES)}, the newest or as {DEFAULT_ENGINE}; two with a comma are compared.",
        catalogue="engines", also="kernels layouts explain-command",
        page=Page("Engine", "engine", ALL, "The serving engine and its release.")),
    engine("max_num_batched_tokens", whole_number, None, "N",
        "Most tokens in one step; default: 8192, on small GPUs 2048.", also="layouts",
        page=Page("Tokens per step", "engine", FITS, "Most tokens in one step.", (1, 1048576), "tokens")),
    engine("max_num_seqs", whole_number, None, "N", "Most sequences in one step; default: 1024, on small GPUs 256.",
        also="layouts",
        page=Page("Sequences per step", "engine", FITS, "Most sequences in one step.", (1, 16384), "sequences")),
    engine("max_model_len", whole_number, None, "N",
        "Longest sequence, also as 32k or 32K, or auto: all that fits; default: all the model allows.", also="layouts",
        page=Page("Longest sequence", "engine", ALL, "Tokens of the longest sequence, prompt and answer together.",
                  (1, 16777216), "tokens")),
    engine("gpu_memory_utilization", float, 0.92, "X", "Share of GPU memory the engine takes.",
        page=Page("Share of GPU memory", "engine", FITS, "Share of the GPU's memory that the engine takes.",
                  (0.05, 1.0))),
    engine("block_size", int, None, "N", "Tokens in a KV block; default: 16, or what MLA's kernels need.",
        page=Page("KV block", "engine", FITS, "Tokens in a block of the KV cache.", (1, 1024), "tokens")),
    switch("enable_prefix_caching", bool, None, "",
        "Prefix caching; default: on, unless the engine leaves it off for a model with recurrent layers.", off=True,
        page=Page("Prefix caching", "engine", FITS, "Keep KV blocks of prompts that others begin with, too.")),
    switch("async_scheduling", bool, True, "", "Plan a step ahead; on by default.", off=True,
        page=Page("Asynchronous scheduling", "engine", FITS, "Plan the next step while the GPU computes.")),
    switch("enable_chunked_prefill", bool, True, "", "Split prompts over steps; on by default.", off=True,
        page=Page("Chunked prefill", "engine", FITS, "Split prompts over steps.")),
    engine("long_prefill_token_threshold", int, 0, "N", "Most tokens of one prompt in a step; 0: no such limit."),
    engine("num_gpu_blocks_override", int, None, "N", "KV blocks, in place of what fits in memory."),
    engine("compilation_config", str, None, "JSON",
        "JSON; cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size are read.", short="-cc"),
    engine("cudagraph_capture_sizes", str, None, "N,N",
        "Tokens of the steps that CUDA graphs are recorded for; default: the engine's list."),
    engine("max_cudagraph_capture_size", int, None, "N", "The largest of them."),
    engine("kv_offloading_size", float, None, "GIB",
        "GiB of the host's memory for a second tier of the KV cache, for all GPUs of an engine together.",
        page=Page("KV cache in host memory", "engine", FITS,
                  "Host memory for a second tier of the KV cache, of all GPUs of an engine together.",
                  (0.1, 65536), "GiB")),
    engine("kv_offloading_backend", str, "native", "NAME", "What keeps that tier; native is modelled."),
    engine("kv_transfer_config", str, None, "JSON",
        "JSON; the OffloadingConnector with cpu_bytes_to_use, block_size, offload_prompt_only and store_threshold is"
        " read."),
    engine("speculative_config", str, None, "JSON",
        "Speculative decoding: '{\"method\": \"mtp\", \"num_speculative_tokens\": 2}'; ngram, eagle, eagle3, mtp, "
        "draft_model.", also="kernels layouts",
        page=Page("Speculative decoding", "engine", ALL, 'As JSON: {"method": "mtp", "num_speculative_tokens": 2}.')),
    engine("acceptance", str, None, "TEXT",
        "Drafts that are accepted: a length (2.4), a rate (0.7), rates by position (0.8,0.6), a published curve, or "
        "a line of the engine's log.", also="kernels layouts",
        page=Page("Accepted drafts", "engine", ALL, "A length (2.4), a rate (0.7) or rates by position (0.8,0.6).")),
    engine("scheduling_policy", str, "fcfs", "NAME", "fcfs, or priority: by the priorities of requests."),
    engine("decode_context_parallel_size", int, 1, "N", "Only 1 is modelled.", short="-dcp"),
    engine("enforce_eager", bool, False, "", "No CUDA graphs.", also="kernels",
        page=Page("No CUDA graphs", "engine", FITS, "Launch every kernel by itself.")),
    engine("setting", list, (), "NAME=VALUE", "Any other setting of the engine, by its own name.",
        catalogue="settings", also="kernels layouts",
        page=Page("Other settings", "engine", FITS, "Any other setting of the engine as NAME=VALUE.", name="settings")),
)
"""An engine as a command starts it."""

DEPLOYMENT = (
    engine("all2all_backend", str, None, "NAME", "Between replicas that share experts: deepep_low_latency, ...",
        also="kernels", what_if=True),
    workload("expert_routing", str, ROUTINGS[0], "NAME",
        "How tokens spread over experts: uniform, balanced, power_law_1.2.", also="kernels explain-command",
        what_if=True),
    workload("sampling", str, SAMPLINGS[0], "NAME",
        "Tokens by greedy choice, or sorted: top-p over all logits in order."),
    Option("pcie_topology", str, None, "NAME",
        "Between GPUs of a node without NVLink: switch, sockets or host; left open by default.",
        catalogue="pcie_topologies", also="kernels layouts explain-command", what_if=True,
        page=Page("PCIe topology", "hardware", RUNS_AND_PLAN, "Between GPUs of a node without NVLink.")),
    Option("power_limit_w", float, None, "WATTS", "What each GPU's board may draw; its own limit by default.",
        flag="--power-limit", what_if=True,
        page=Page("Power limit", "hardware", "simulate curve capacity",
                  "What each GPU's board may draw; its own limit where none is given.", (10, 5000), "W")),
    Option("gpu_clock_mhz", float, None, "MHZ", "Lock the clock of each GPU; as high as it goes by default.",
        flag="--gpu-clock", what_if=True,
        page=Page("GPU clock", "hardware", RUNS,
                  "Lock the clock of each GPU; as high as it goes where none is given.", (100, 5000), "MHz")),
    workload("api_server", bool, True, "",
        "Requests come as text over HTTP (the default), or as tokens from one program.", off=True,
        also="layouts explain-command", what_if=True, shows_default=False,
        page=Page("API server", "engine", RUNS_AND_PLAN,
                  "Requests come as text over HTTP, or as tokens from one program.")),
    Option("predictor", str, "learned", "NAME", "learned, roofline, or an artefact of your own (.npz).",
        also="kernels layouts explain-command"),
    Option("anchors", Path, None, "DIR", "Measured kernels of this GPU (parquet) that correct its estimates.",
        also="kernels"),
    Option("measurements", Path, None, "DIR", "Your own tables of `infercast measure`, fitted on the spot.",
        also="kernels"),
    Option("kernel_file", list, (), "FILE@FAMILY",
        "A kernel of `infercast kernel fit` in place of a family's (my.json@gemm), or on top (my.json@+gemm).",
        also="kernels", shows_default=False),
    Option("host", str, None, "NAME", "Your CPU: a name of `infercast hosts`, a host.json or a .toml file.",
        catalogue="hosts", also="explain-command",
        page=Page("Host CPU", "hardware", RUNS, "The CPU of the server, by name.")),
    Option("calibration", Path, None, "FILE", "What `infercast calibrate` learned from your own results.",
        also="layouts explain-command"),
)
"""What the engine runs on, and how its kernels are estimated."""

COST = (
    facility("pue", float, None, "X", "Watts of the building for each watt of its servers; 1 if not given.",
        page=Page("PUE", "energy", RUNS_AND_PLAN,
                  "Watts of the building for each watt of its servers; 1 where none is given.", (1.0, 10.0))),
    facility("server", str, None, "KIND", "baseboard, cards, desktop, superchip or rack; default: by the GPU.",
        catalogue="servers",
        page=Page("Server", "energy", RUNS_AND_PLAN,
                  "The kind of server around the GPUs; the usual one of the GPU where none is given.")),
    facility("server_watts", float, None, "W", "Idle power of a server without its GPUs."),
    facility("server_factor", float, None, "X", "Watts of a server per watt of its GPU boards (fans, power supplies)."),
    facility("grid_carbon", float, None, "G", "Grams of CO2 for each kWh of your grid.",
        page=Page("Carbon of the grid", "energy", RUNS_AND_PLAN, "Grams of CO2 for each kWh of electricity.",
                  (0.0, 5000.0), "g/kWh")),
    facility("electricity_price", float, None, "X", "Dollars for each kWh.",
        page=Page("Price of electricity", "energy", RUNS_AND_PLAN, bounds=(0.0, 100.0), unit="$/kWh")),
    decision("slo", str, None, "LIMITS", f"Latency limits (SLO): {EXAMPLE}.",
        page=Page("SLO", "promise", COSTS, "Latency limits, such as ttft_p99<1s,tpot_p95<40ms.")),
    decision("price_per_gpu_hour", float, None, "X", "Dollars per hour of each GPU.",
        page=Page("Price per GPU hour", "money", COSTS,
                  "Dollars per hour of each GPU; the median of published prices by default.",
                  (0, 10000), "$/h")),
    decision("prices", Path, None, "FILE", "Your own prices (TOML): rented GPUs, or what bought ones cost."),
    decision("provider", str, None, "NAME", "Prices of aws, gcp, lambda, ...; default: the median of all.",
        catalogue="providers", page=Page("Provider", "money", COSTS, "Provider of the published prices.")),
    decision("spot", bool, False, "", "Spot prices instead of those on demand.",
        page=Page("Spot prices", "money", COSTS)),
)
"""What stands around the GPUs, what users are promised, and prices."""

OUTPUT = (
    Option("allow_overload", bool, False, "", "Print a saturated run's numbers instead of refusing."),
    Option("steady", bool, False, "", "Leave ramp-up and drain out of latencies and rates.",
        page=Page("Steady state", "traffic", "simulate")),
    Option("breakdown", bool, False, "", "Say where every second goes: kernels, host, waiting, requests."),
    Option("what_if", str, None, "CHANGES",
        "Compare with changes: dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm,quantization=fp8."),
    file("report", Path, None, "FILE", "Also write the run as one HTML page; needs matplotlib."),
    file("trace_out", Path, None, "FILE", "Also write a timeline (.json) for ui.perfetto.dev."),
    file("trace_window", str, "0:60", "A:B", "The seconds of the run that the timeline holds."),
    file("requests_out", Path, None, "FILE", "Also write a row per request (.csv)."),
    file("save_result", Path, None, "FILE", "Also write it as `vllm bench serve --save-result` does; a folder, too."),
    file("save_detailed", bool, False, "", "With every request, as its --save-detailed does."),
)

FILES = (
    file("plot", Path, None, "FILE", "Also draw it: .png, .svg or a page (.html); needs matplotlib."),
    file("csv", Path, None, "FILE", "Also write the rows as a table (.csv)."),
    file("export_autoscaler", Path, None, "FILE", "Also write service-time coefficients (.csv)."),
    file("out", Path, None, "DIR", "Also write what to run next: commands, manifests, tables."),
    file("force", bool, False, "", "Write into a folder that is not empty."),
)

SWEEP = (
    axis("rates", str, None, "A:B:N", "Requests per second: 1:40:8, or 1,5,10,20.",
        page=Page("Rates of the curve", "curve", "curve",
                  "FROM:TO:COUNT or numbers with commas; up to saturation where none are given.", unit="requests/s")),
    axis("concurrencies", str, None, "A:B:N", "Closed loop: numbers of clients, as for --rates."),
)
"""Loads along which a deployment is swept."""

CURVE = (
    Option("curve_requests", int, 300, "N", "Requests of each point of the curve.", flag="--num-requests",
        page=Page("Requests per point", "curve", "curve", bounds=(50, 5000), unit="requests")),
)
"""The page's own form of ``--num-requests``, for each point of a curve."""

ENERGY = (
    axis("power_limits", str, None, "A:B:N", "Watts of a GPU board: 400:700:7, or 400,500,600.",
        page=Page("Power limits to try", "energy", "energy",
                  "FROM:TO:COUNT or numbers with commas; from two fifths of the GPU's own limit where none are given.",
                  unit="W")),
    axis("gpu_clocks", str, None, "A:B:N", "MHz to lock the GPU at instead: 1000:1980:8."),
    decision("least_odds", float, None, "P",
        "How sure the SLO must be to hold; default: 0.8; 0: by the forecast itself.", flag="--odds"),
)

MEMORY = (
    Option("context", int, 2048, None, "Tokens of a typical sequence, to count how many fit.",
        page=Page("Typical sequence", "memory", "memory", bounds=(1, 16777216), unit="tokens")),
)

DAY = (
    workload("day_profile", str, "sine:1.8:14", "SHAPE",
        "Without a trace: flat, or sine:FACTOR[:HOUR] with its peak over the mean and when.",
        page=Page("Shape of the day", "day", "capacity",
                  "flat, or sine:FACTOR[:HOUR] with its peak over the mean and when.")),
    workload("window", float, 60.0, "S", "Seconds of the windows in which the SLO is checked."),
)
"""A day without a trace."""

FLEET = (
    fleet("goal_minutes", float, None, "X", "Share of minutes that must be within the SLO; default: 0.99.",
        page=Page("Goal", "day", "capacity",
                  "Share of minutes that must be within the SLO; 0.99 where none is given.", (0.01, 1.0))),
    fleet("goal_requests", float, None, "X", "In place of it: share of requests that keep every limit."),
    fleet("autoscale_on", str, "utilization", "NAME",
        "utilization or queue: arrival rate over capacity, or requests in each replica."),
    fleet("target", float, None, "X", "Target of each replica; default: the highest that reaches the goal."),
    fleet("interval", float, 30.0, "S", "Seconds from one decision to the next."),
    fleet("up_delay", float, 0.0, "S", "Seconds for which more must be needed before they are started."),
    fleet("down_delay", float, 300.0, "S", "Seconds for which fewer must suffice before some are stopped."),
    fleet("min_replicas", int, 1, "N", "Fewest replicas of an autoscaler."),
    fleet("max_replicas", int, None, "N", "Most replicas of an autoscaler."),
    fleet("load_bandwidth", float, 2.0, "X", "GB/s at which a replica reads its weights."),
    fleet("start_seconds", float, 45.0, "S", "Start-up without weights and CUDA graphs: container, Python."),
    fleet("check", bool, True, "", "Simulate the busiest minutes request by request, too; on by default.", off=True,
        shows_default=False),
)
"""How many replicas there are, and how long one takes to start."""

PLAN = (
    Option("gpu", list, ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"), "GPU,GPU",
        "What to choose from: names or your own TOML files.", catalogue="gpus",
        page=Page("GPUs to choose from", "plan", "plan", "What a plan may choose from.", name="gpus")),
    Option("max_gpus", int, 8, "N", "Most GPUs in all.",
        page=Page("Most GPUs", "plan", "plan", bounds=(1, 128), unit="GPUs")),
    decision("budget", float, None, "X", "Most dollars per hour.",
        page=Page("Budget", "plan", "plan", bounds=(0.01, 1000000), unit="$/h")),
    facility("power_budget", float, None, "KW", "Most kW of all servers at the wall, while GPUs draw most.",
        page=Page("Power budget", "plan", "plan", "Most power of all servers at the wall, while GPUs draw most.",
                  (0.01, 100000.0), "kW")),
    facility("power_limit", list, ("none",), "W,W", "Watts that boards may be held at; none: no limit."),
    decision("objective", str, "cost", "NAME", "What to look for: cost, gpus, energy, latency, throughput.",
        catalogue="objectives", page=Page("Objective", "plan", "plan", "What to look for.")),
    decision("least_odds", float, 0.8, "P", "How sure the SLO must be to hold; 0: by the forecast itself.",
        flag="--odds",
        page=Page("Least odds", "plan", "plan", "How sure the SLO must be to hold; 0: by the forecast itself.",
                  (0.0, 0.999), name="odds")),
    Option("quantization", list, ("none",), "T,T", "Weights: none, fp8, int4, ... or any.", short="-q",
        catalogue="quantizations", page=Page("Formats to choose from", "plan", "plan", name="quantizations")),
    engine("kv_cache_dtype", list, ("auto",), "T,T", "auto, bf16, fp8, or any."),
    engine("engine", list, (DEFAULT_ENGINE,), "NAME,NAME", "Engines with their versions.", catalogue="engines"),
    engine("vary", list, (), "NAME=V,V", "A setting of the engine to try with these values."),
    Option("disaggregate", bool, False, "", "Consider disaggregated prefill and decode pools, too.",
        page=Page("Disaggregated pools", "plan", "plan")),
    Option("network", str, "infiniband-ndr", "NAME", "Between nodes; none: no engine spans two."),
    Option("link", str, "infiniband-ndr", "NAME", "Between two pools."),
    work("time_limit", float, None, "S", "Seconds after which the best so far is the answer; so it is after Ctrl-C.",
        page=Page("Time limit", "plan", "plan", "Seconds after which the best so far is the answer.",
                  (0.1, 86400), "s")),
)

WORK = (
    work("workers", int, None, "N", "Worker processes; default: one per processor for long searches."),
    work("ray", str, None, "ADDRESS", "A Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local."),
    work("resume", Path, None, "FILE", "Save results in this file (JSON lines), and resume from it."),
)
"""What simulates the candidates of a plan."""
# fmt: on

GROUPS: tuple[tuple[Option, ...], ...] = (
    *(PLACE, LAYOUT, WORKLOAD, ENGINE_ARGS, DEPLOYMENT, COST, OUTPUT, FILES),
    *(MEMORY, SWEEP, CURVE, ENERGY, DAY, FLEET, PLAN, WORK),
)
OPTIONS: dict[str, Option] = {option.name: option for group in reversed(GROUPS) for option in reversed(group)}
"""By name; where a group has its own form of an option, the form of the earlier group."""
