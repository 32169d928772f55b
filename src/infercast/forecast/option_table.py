"""Every option once: its name, type, default, unit, help, spelling on the command line, and its field on the page.

The command line, Python keyword checks, what-if changes, the fields of page and HTTP API, and the reference are all
made from these rows. To add an option, add a row to the group that the commands take, and the code that reads it;
options of one command alone are rows of the same kind in the module of that command.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from infercast.engines.base import DEFAULT_ENGINE, FAMILIES, engine_named
from infercast.forecast.slo import EXAMPLE
from infercast.models.spec import GREEDY, SORTED, TOP_P
from infercast.serve.fleet.router import POLICIES
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.units import whole_number

ROUTINGS = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")
"""How tokens spread over experts: equally likely, in equal counts, or as uneven as measured tables have it."""
SAMPLINGS = (GREEDY, TOP_P, SORTED)  # Tokens are the most likely, by top-p as the release does it, or by sorted logits
TURN_LEN, THINK, TOOL_TIME = "lognormal:120:0.8:4:4000", "exponential:10", "lognormal:2:1"
"""Of later turns of a session, of the time between two, and of tools."""
FITS, RUNS = "simulate energy memory curve capacity", "simulate energy curve capacity"
"""Questions of the page that depend on what is deployed, and those of them that also depend on how it runs."""
PAGE_GROUPS = {
    **dict.fromkeys(("model", "hardware", "layout", "engine"), FITS),
    **{"traffic": "simulate energy curve plan", "sessions": "simulate energy plan"},
    **dict.fromkeys(("promise", "money", "energy"), f"{RUNS} plan"),
    **{"memory": "memory", "curve": "curve", "plan": "plan", "day": "capacity"},
}
"""Groups of the page's fields, in its order, with the questions that depend on most fields of the group."""


class Page(NamedTuple):
    """An option as a field of the page and of the HTTP API."""

    label: str
    group: str
    help: str = ""  # Where it differs from the command line's, which may take files, too
    bounds: tuple[float, float] | tuple[None, None] = (None, None)
    unit: str = ""
    questions: str = ""  # Those with an answer that depends on it, where they are not those of its group
    default: Any = ...  # Where it differs from the command line's
    name: str = ""  # Where it differs from the option's


class Option(NamedTuple):
    name: str  # In Python and, of a field, in JSON and in a URL
    type: Any  # ``whole_number`` also takes 32k; ``list`` is of texts
    help: str
    default: Any = None  # ``...``: it must be given
    metavar: str = ""  # Where it is not the usual one of its type
    panel: str | None = None  # The heading in ``--help``
    flag: str = ""  # Where it is not the name with dashes
    short: str = ""
    off: bool = False  # A switch that has a ``--no-`` form, too
    argument: bool = False  # A word without a flag
    shows_default: bool = True
    catalogue: str = ""  # The list that values come from: for the page, and for completion in a shell
    what_if: bool = False  # Whether ``--what-if`` can change it
    page: Page | None = None

    @property
    def value_name(self) -> str:
        """What stands for a value in ``--help``."""
        usual = {int: "N", whole_number: "N", float: "X", str: "NAME", Path: "FILE"}
        return self.metavar or usual.get(self.type, "")

    @property
    def spelled(self) -> str:
        """The flag on the command line; of a switch with two forms, both."""
        flag = self.flag or f"--{self.name.replace('_', '-')}"
        return f"{flag}/--no-{flag[2:]}" if self.off else flag


engine = partial(Option, panel=f"Engine ({engine_named().title}'s names and defaults)")
switch = partial(Option, panel="Engine switches", off=True, shows_default=False)
workload = partial(Option, panel="Workload")
session = partial(Option, panel="Sessions, classes and adapters", shows_default=False)
facility, decision = partial(Option, panel="Energy"), partial(Option, panel="SLO and cost")
file, axis = partial(Option, panel="Files"), partial(Option, panel="What changes")
fleet, work = partial(Option, panel="Fleet"), partial(Option, panel="Workers")
change = partial(Option, panel="Kernels that nobody has")

# A row has as many lines as it needs: what it is, and below that its field on the page.
# fmt: off
PLACE = (
    Option("model", str, "Bundled name, Hugging Face id, config.json or a folder with one.", ..., metavar="MODEL",
           argument=True, catalogue="models",
           page=Page("Model", "model", "A bundled model by name or Hugging Face id.", questions=f"{FITS} plan",
                     default="llama-3.1-8b")),
    Option("gpu", str,
           "Bundled name (see `infercast gpus`) or your own TOML file; 2xh200-sxm+2xa100-sxm: one for each stage.", ...,
           metavar="GPU", catalogue="gpus", page=Page("GPU", "hardware", "A bundled GPU by name.", default="h200-sxm")),
)
LAYOUT = (
    engine("tensor_parallel_size", int, "GPUs that share every layer.", 1, short="-tp", what_if=True,
           page=Page("Tensor parallel", "layout", bounds=(1, 64), unit="GPUs")),
    engine("pipeline_parallel_size", int, "Stages of layers, one after the other.", 1, short="-pp", what_if=True,
           page=Page("Pipeline parallel", "layout", bounds=(1, 32), unit="stages")),
    engine("pp_layer_partition", str,
           "Layers of each stage (20,20,21,19), or auto: the cut whose slowest stage is quickest.", metavar="LAYERS"),
    engine("data_parallel_size", int, "Replicas of the model behind a load balancer.", 1, short="-dp", what_if=True,
           page=Page("Data parallel", "layout", bounds=(1, 32), unit="replicas")),
    Option("router", str,
           f"Load balancer of several replicas: {', '.join(POLICIES)}; default: the engine's, least_loaded for pools.",
           catalogue="routers",
           page=Page("Load balancer", "layout", "Of several replicas; the engine's own by default.",
                     questions="simulate energy curve")),
)
WORKLOAD = (
    workload("rate", float, "Requests per second; a trace's arrivals are scaled to it.", metavar="R", short="-r",
             page=Page("Request rate", "traffic", "Requests that arrive per second.", (0.001, 10000), "requests/s",
                       questions="simulate energy plan capacity", default=12.0)),
    workload("arrival", str, "poisson, gamma, constant or burst (all at once).", "poisson", catalogue="arrivals",
             page=Page("Arrivals", "traffic", "How requests arrive.")),
    workload("burstiness", float, "Gamma arrivals: 1 is Poisson, less is burstier.", 1.0,
             page=Page("Burstiness", "traffic", bounds=(0.01, 100))),
    workload("concurrency", int, "Closed loop: clients that each wait for their answer before they send again.",
             page=Page("Clients", "traffic", bounds=(1, 4096), unit="clients", questions="simulate energy")),
    workload("num_requests", int, "Requests in all; default: as many as a steady result takes, or the whole trace.",
             short="-n",
             page=Page("Requests", "traffic", "Requests in all; as many as a steady result takes if left empty.",
                       (1, 5000), "requests", questions="simulate energy plan")),
    workload("input_len", str, "Prompt tokens: 512, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MIN:MAX].", INPUT_LEN,
             metavar="LENGTH",
             page=Page("Prompt tokens", "traffic", "512, uniform:MIN:MAX or lognormal:MEAN:SIGMA[:MIN:MAX].",
                       unit="tokens", questions=f"{RUNS} plan")),
    workload("output_len", str, "Output tokens, in the same forms; with ,cap=N (max_tokens) shorter ones end by EOS.",
             OUTPUT_LEN, metavar="LENGTH",
             page=Page("Output tokens", "traffic", unit="tokens", questions=f"{RUNS} plan")),
    workload("declared_output_len", int,
             "Longest answer that clients ask for (max_tokens); shorter ones end by EOS. Default: the answer."),
    workload("ignore_eos", bool,
             "Answers end at max_tokens, as in benchmarks, or by EOS; default: a trace's by EOS, random ones do not.",
             off=True),
    workload("prefix_len", int, "Tokens that prompts share at their start.", 0,
             page=Page("Shared prefix", "traffic", bounds=(0, 1000000), unit="tokens")),
    workload("prefix_groups", int, "Number of different shared starts.", 1,
             page=Page("Shared prefixes", "traffic", bounds=(1, 100000))),
    workload("arrivals_of", Path, "Arrive as recorded in a trace: its minutes in random order; --rate scales them."),
    workload("reuse", float, "Share of prompts that begin as an earlier one, with --turn-len new tokens.", 0.0),
    workload("reuse_len", str, "How many tokens these have in common with it, behind --prefix-len.",
             "lognormal:2000:1", metavar="LENGTH"),
    workload("reuse_distance", str, "How many tokens of other requests were sent in between.",
             "lognormal:1000000:1.5", metavar="LENGTH"),
    workload("images", str,
             "Images of each request, on average, by size: 1:1024x1024, or 0.3:512x512,2:1920x1080; of sessions in the "
             "first prompt.", metavar="N:WxH"),
    workload("trace", Path, "Replay a trace: Azure, Mooncake, AIPerf, WEKA, conversations, spans, or plain CSV/JSONL."),
    workload("rate_scale", float, "Replay a trace this many times as fast.", 1.0),
    workload("too_long", str, "Requests above max_model_len: refuse, truncate (the prompt first) or skip.", "refuse",
             metavar="HOW"),
    workload("seed", int, "Same seed, same result.", 0,
             page=Page("Seed", "traffic", bounds=(0, 2147483647), questions=f"{RUNS} plan")),
    session("turns", str,
            "Requests are turns of sessions: this many each, 5 or uniform:2:10. Prompts hold the whole history. With "
            "--concurrency, this many sessions run at a time.", metavar="LENGTH",
            page=Page("Turns per session", "sessions", "Requests are turns of sessions: 5, or uniform:2:10.")),
    session("session_rate", float, "Sessions that begin per second, in place of --rate.", metavar="R",
            page=Page("Session rate", "sessions", "Sessions that begin per second, in place of a request rate.",
                      (0.0001, 1000), "sessions/s")),
    session("turn_len", str, f"New tokens of each later turn; default {TURN_LEN}.", TURN_LEN, metavar="LENGTH",
            page=Page("Tokens of later turns", "sessions",
                      "New tokens of each later turn, as prompt tokens are written.", unit="tokens", default=None)),
    session("think", str,
            "From an answer to the next turn: 8, uniform:MIN:MAX, exponential:MEAN, lognormal:MEAN:SIGMA; "
            f"default {THINK}.", THINK, metavar="SECONDS",
            page=Page("Time between turns", "sessions",
                      "Seconds from an answer to the next turn: 8, uniform:MIN:MAX or exponential:MEAN.", unit="s",
                      default=None)),
    session("tool_share", float, "Agents: share of later turns that are a tool's result, 0 to 1.", 0.0),
    session("tool_time", str, f"How long a tool runs; default {TOOL_TIME}.", TOOL_TIME, metavar="SECONDS"),
    session("tool_len", str, "Tokens of a tool's result; default: --turn-len.", metavar="LENGTH"),
    session("sub_agents", str,
            "Agents: share of later turns that wait for sub-agents, how many at once, calls of each: 0.2:3:4[:fork].",
            metavar="SHARE:N:CALLS"),
    session("follow_sessions", bool,
            "With --trace: turns follow the answer before; where ends are recorded, after the same answers and pauses.",
            False),
    session("client_timeout", str, "How long clients wait for a whole answer before they leave: 30s.", metavar="TIME"),
    session("retries", int, "How often a client that left sends its request again.", 0),
    session("cancel", str, "Share of requests whose clients leave for good, and when: 0.1@2s.", metavar="SHARE@TIME"),
    session("class_", list,
            "A kind of traffic by name, share, priority and SLO in seconds: chat:0.7:priority=0:ttft=0.5,tpot=0.05; "
            "again for each. Priorities count with --scheduling-policy priority.", (), metavar="CLASS", flag="--class"),
    session("adapters", int, "LoRA adapters that requests ask for; needs --enable-lora."),
    session("adapter_skew", float, "Zipf: the k-th adapter as often as 1 / k^X; default 1, 0: alike.", 1.0),
    session("adapter_share", float, "Share of requests that ask for one; default all.", 1.0),
)
ENGINE_ARGS = (
    Option("quantization", str, "Weights other than the checkpoint's: fp8, int8, int4, mxfp4, nvfp4, ...", metavar="T",
           short="-q", catalogue="quantizations", what_if=True,
           page=Page("Weights", "model", "Format of the weights, where it is not the checkpoint's own.")),
    engine("dtype", str, "Of weights that are not quantised: auto, bfloat16 or float16.", "auto", metavar="T",
           what_if=True),
    engine("kv_cache_dtype", str, "auto, bf16 or fp8.", "auto", metavar="T", catalogue="kv_cache_dtypes", what_if=True,
           page=Page("KV cache format", "engine", "Format of keys and values.")),
    engine("enable_expert_parallel", bool, "Spread experts over the GPUs of all replicas.", False, short="-ep",
           what_if=True, page=Page("Expert parallel", "layout")),
    engine("moe_backend", str, "Kernels of experts: auto, triton, cutlass, trtllm, marlin.", "auto", what_if=True),
    engine("language_model_only", bool, "Leave the encoder of images out of memory.", False),
    engine("hf_overrides", str, 'Fields of the config to replace: {"num_hidden_layers": 8}.', metavar="JSON"),
    engine("mamba_cache_dtype", str, "Of states of recurrent layers: auto, float32, float16 ...", "auto", metavar="T"),
    engine("mamba_ssm_cache_dtype", str, "Of their matrices alone; default: the model's.", "auto", metavar="T"),
    engine("gdn_prefill_backend", str, "Scans of gated delta nets: triton, flashinfer; by GPU.", "auto"),
    engine("runner", str, "generate, or pooling: a vector or a score for each prompt.", "auto"),
    engine("task", str, "generate, or what pooling is for: embed, classify, score or reward.", "auto"),
    Option("network", str, "Between nodes: infiniband-ndr, roce-400, ..., or your TOML; none by default.",
           catalogue="networks", what_if=True,
           page=Page("Network", "hardware", "Between nodes, for layouts of more GPUs than one node has.")),
    engine("engine", str, f"{' or '.join(FAMILIES)}, the newest or as {DEFAULT_ENGINE}; two with a comma are compared.",
           DEFAULT_ENGINE, catalogue="engines",
           page=Page("Engine", "engine", "The serving engine and its release.", questions=f"{FITS} plan")),
    engine("max_num_batched_tokens", whole_number,
           "Most tokens in one step; default: 8192, 16384 from 160 GiB, 2048 on small GPUs.",
           page=Page("Tokens per step", "engine", bounds=(1, 1048576), unit="tokens")),
    engine("max_num_seqs", whole_number, "Most sequences in one step; default: 1024, on small GPUs 256.",
           page=Page("Sequences per step", "engine", bounds=(1, 16384), unit="sequences")),
    engine("max_model_len", whole_number,
           "Longest sequence, also as 32k or 32K, or auto: all that fits; default: all the model allows.",
           page=Page("Longest sequence", "engine", "Tokens of the longest sequence, prompt and answer together.",
                     (1, 16777216), "tokens", questions=f"{FITS} plan")),
    engine("gpu_memory_utilization", float, "Share of GPU memory the engine takes.", 0.92,
           page=Page("Share of GPU memory", "engine", bounds=(0.05, 1.0))),
    engine("block_size", int, "Tokens in a KV block; default: 16, or what MLA's kernels need.",
           page=Page("KV block", "engine", bounds=(1, 1024), unit="tokens")),
    switch("enable_prefix_caching", bool,
           "Prefix caching; default: on, unless the engine leaves it off for a model with recurrent layers.",
           page=Page("Prefix caching", "engine", "Keep KV blocks of prompts that others begin with, too.")),
    switch("async_scheduling", bool, "Plan a step ahead; on by default.", True,
           page=Page("Asynchronous scheduling", "engine")),
    switch("enable_chunked_prefill", bool, "Split prompts over steps; on by default.", True,
           page=Page("Chunked prefill", "engine")),
    engine("long_prefill_token_threshold", int, "Most tokens of one prompt in a step; 0: no such limit.", 0),
    engine("num_gpu_blocks_override", int, "KV blocks, in place of what fits in memory."),
    engine("compilation_config", str,
           "JSON; cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size are read.", metavar="JSON",
           short="-cc"),
    engine("cudagraph_capture_sizes", str,
           "Tokens of the steps that CUDA graphs are recorded for; default: the engine's list.", metavar="N,N"),
    engine("max_cudagraph_capture_size", int, "The largest of them."),
    engine("kv_offloading_size", float,
           "GiB of the host's memory for a second tier of the KV cache, for all GPUs of an engine together.",
           metavar="GIB", page=Page("KV cache in host memory", "engine", bounds=(0.1, 65536), unit="GiB")),
    engine("kv_offloading_backend", str, "What keeps that tier; native is modelled.", "native"),
    engine("kv_transfer_config", str,
           "JSON; the OffloadingConnector with cpu_bytes_to_use, block_size, offload_prompt_only and store_threshold "
           "is read.", metavar="JSON"),
    engine("speculative_config", str,
           "Speculative decoding: '{\"method\": \"mtp\", \"num_speculative_tokens\": 2}'; ngram, eagle, eagle3, mtp, "
           "draft_model.", metavar="JSON",
           page=Page("Speculative decoding", "engine", 'As JSON: {"method": "mtp", "num_speculative_tokens": 2}.',
                     questions=f"{FITS} plan")),
    engine("acceptance", str,
           "Drafts that are accepted: a length (2.4), a rate (0.7), rates by position (0.8,0.6), a published curve, or "
           "a line of the engine's log.", metavar="TEXT",
           page=Page("Accepted drafts", "engine", "A length (2.4), a rate (0.7) or rates by position (0.8,0.6).",
                     questions=f"{FITS} plan")),
    engine("scheduling_policy", str,
           "fcfs, or priority: by the priorities of requests; shortest_prompt or deadline (of --class) sets them.",
           "fcfs"),
    engine("decode_context_parallel_size", int, "Only 1 is modelled.", 1, short="-dcp"),
    engine("enforce_eager", bool, "No CUDA graphs.", False,
           page=Page("No CUDA graphs", "engine", "Launch every kernel by itself.")),
    engine("setting", list, "Any other setting of the engine, by its own name.", (), metavar="NAME=VALUE",
           catalogue="settings",
           page=Page("Other settings", "engine", "Any other setting of the engine as NAME=VALUE.", name="settings")),
)
DEPLOYMENT = (
    engine("all2all_backend", str, "Between replicas that share experts: deepep_low_latency, ...", what_if=True),
    workload("expert_routing", str, "How tokens spread over experts: uniform, balanced, power_law_1.2.", "uniform",
             what_if=True),
    workload("sampling", str,
             "Tokens by greedy choice, by top_p as the release does it, or sorted: top-p over all logits in order.",
             "greedy"),
    Option("pcie_topology", str,
           "Between GPUs of a node without NVLink: switch, sockets or host; left open by default.",
           catalogue="pcie_topologies", what_if=True, page=Page("PCIe topology", "hardware", questions=f"{RUNS} plan")),
    Option("power_limit_w", float, "What each GPU's board may draw; its own limit by default.", metavar="WATTS",
           flag="--power-limit", what_if=True,
           page=Page("Power limit", "hardware", bounds=(10, 5000), unit="W", questions="simulate curve capacity")),
    Option("gpu_clock_mhz", float, "Lock the clock of each GPU; as high as it goes by default.", metavar="MHZ",
           flag="--gpu-clock", what_if=True,
           page=Page("GPU clock", "hardware", bounds=(100, 5000), unit="MHz", questions=RUNS)),
    workload("api_server", bool, "Requests come as text over HTTP (the default), or as tokens from one program.", True,
             off=True, shows_default=False, what_if=True, page=Page("API server", "engine", questions=f"{RUNS} plan")),
    workload("chat", bool, "Requests are chats, which the server renders by a template.", False, what_if=True),
    Option("predictor", str, "learned, roofline, or an artefact of your own (.npz).", "learned"),
    Option("anchors", Path, "Measured kernels of this GPU (parquet) that correct its estimates.", metavar="DIR"),
    Option("measurements", Path, "Your own tables of `infercast measure`, fitted on the spot.", metavar="DIR"),
    Option("kernel_file", list,
           "A kernel of `infercast kernel fit` in place of a family's (my.json@gemm), or on top (my.json@+gemm).", (),
           metavar="FILE@FAMILY", shows_default=False),
    change("drop", str, "Kernels of a step to do without: NAME, or NAME+NAME.", metavar="NAMES", what_if=True),
    change("fuse", str, "Neighbours as one kernel, by what need not move: gate_up_proj+activation; more after a ;.",
           metavar="NAMES", what_if=True),
    change("overlap", str, "Kernels side by side, as well as the GPU could: experts+shared_down_proj; more after a ;.",
           metavar="NAMES", what_if=True),
    change("at_ceiling", str, "Kernels as good as the best of their shape: NAME, NAME+NAME, or all.", metavar="NAMES",
           what_if=True),
    Option("host", str, "Your CPU: a name of `infercast hosts`, a host.json or a .toml file.", catalogue="hosts",
           page=Page("Host CPU", "hardware", "The CPU of the server, by name.", questions=RUNS)),
    Option("calibration", Path, "What `infercast calibrate` learned from your own results."),
)
COST = (
    facility("pue", float, "Watts of the building for each watt of its servers; 1 if not given.",
             page=Page("PUE", "energy", bounds=(1.0, 10.0))),
    facility("server", str, "baseboard, cards, desktop, module, superchip or rack; by default that of the GPU.",
             metavar="KIND", catalogue="servers", page=Page("Server", "energy")),
    facility("server_watts", float, "Idle power of a server without its GPUs.", metavar="W"),
    facility("server_factor", float, "Watts of a server per watt of its GPU boards (fans, power supplies)."),
    facility("grid_carbon", float, "Grams of CO2 for each kWh of your grid.", metavar="G",
             page=Page("Carbon of the grid", "energy", bounds=(0.0, 5000.0), unit="g/kWh")),
    facility("electricity_price", float, "Dollars for each kWh.",
             page=Page("Price of electricity", "energy", bounds=(0.0, 100.0), unit="$/kWh")),
    decision("slo", str, f"Latency limits (SLO): {EXAMPLE}.", metavar="LIMITS",
             page=Page("SLO", "promise", "Latency limits, such as ttft_p99<1s,tpot_p95<40ms.")),
    decision("price_per_gpu_hour", float, "Dollars per hour of each GPU.",
             page=Page("Price per GPU hour", "money",
                       "Dollars per hour of each GPU; the median of published prices by default.", (0, 10000), "$/h")),
    decision("prices", Path, "Your own prices (TOML): rented GPUs, or what bought ones cost."),
    decision("provider", str, "Prices of aws, gcp, lambda, ...; default: the median of all.", catalogue="providers",
             page=Page("Provider", "money")),
    decision("spot", bool, "Spot prices instead of those on demand.", False, page=Page("Spot prices", "money")),
)
OUTPUT = (
    Option("allow_overload", bool, "Print a saturated run's numbers instead of refusing.", False),
    Option("steady", bool, "Leave ramp-up and drain out of latencies and rates.", False,
           page=Page("Steady state", "traffic", questions="simulate")),
    Option("breakdown", bool, "Say where every second goes: kernels, host, waiting, requests.", False),
    Option("what_if", str, "Compare with changes: dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm,quantization=fp8.",
           metavar="CHANGES"),
    file("report", Path, "Also write the run as one HTML page; needs matplotlib."),
    file("trace_out", Path, "Also write a timeline (.json) for ui.perfetto.dev."),
    file("trace_window", str, "The seconds of the run that the timeline holds.", "0:60", metavar="A:B"),
    file("requests_out", Path, "Also write a row per request (.csv)."),
    file("save_result", Path,
         f"Also write it as `{engine_named().family} bench serve --save-result` does; a folder, too."),
    file("save_detailed", bool, "With every request, as its --save-detailed does.", False),
)
FILES = (
    file("plot", Path, "Also draw it: .png, .svg or a page (.html); needs matplotlib."),
    file("csv", Path, "Also write the rows as a table (.csv)."),
    file("export_autoscaler", Path, "Also write service-time coefficients (.csv)."),
    file("out", Path, "Also write what to run next: commands, manifests, tables.", metavar="DIR"),
    file("force", bool, "Write into a folder that is not empty.", False),
)
MEMORY = (
    Option("context", int, "Tokens of a typical sequence, to count how many fit.", 2048,
           page=Page("Typical sequence", "memory", bounds=(1, 16777216), unit="tokens")),
)
SWEEP = (
    axis("rates", str, "Requests per second: 1:40:8, or 1,5,10,20.", metavar="A:B:N",
         page=Page("Rates of the curve", "curve",
                   "FROM:TO:COUNT or numbers with commas; up to saturation where none are given.", unit="requests/s")),
    axis("concurrencies", str, "Closed loop: numbers of clients, as for --rates.", metavar="A:B:N"),
)
CURVE = (
    Option("curve_requests", int, "Requests of each point of the curve.", 300, flag="--num-requests",
           page=Page("Requests per point", "curve", bounds=(50, 5000), unit="requests")),
)
ENERGY = (
    axis("power_limits", str, "Watts of a GPU board: 400:700:7, or 400,500,600.", metavar="A:B:N",
         page=Page("Power limits to try", "energy",
                   "FROM:TO:COUNT or numbers with commas; from two fifths of the GPU's own limit where none are given.",
                   unit="W", questions="energy")),
    axis("gpu_clocks", str, "MHz to lock the GPU at instead: 1000:1980:8.", metavar="A:B:N"),
    decision("least_odds", float, "How sure the SLO must be to hold; default: 0.8; 0: by the forecast itself.",
             metavar="P", flag="--odds"),
)
DAY = (
    workload("day_profile", str, "Without a trace: flat, or sine:FACTOR[:HOUR] with its peak over the mean and when.",
             "sine:1.8:14", metavar="SHAPE",
             page=Page("Shape of the day", "day", "flat, or sine:FACTOR[:HOUR] with its peak over the mean and when.")),
    workload("window", float, "Seconds of the windows in which the SLO is checked.", 60.0, metavar="S"),
)
FLEET = (
    fleet("goal_minutes", float, "Share of minutes that must be within the SLO; default: 0.99.",
          page=Page("Goal", "day", bounds=(0.01, 1.0))),
    fleet("goal_requests", float, "In place of it: share of requests that keep every limit."),
    fleet("autoscale_on", str, "utilization or queue: arrival rate over capacity, or requests in each replica.",
          "utilization"),
    fleet("target", float, "Target of each replica; default: the highest that reaches the goal."),
    fleet("interval", float, "Seconds from one decision to the next.", 30.0, metavar="S"),
    fleet("up_delay", float, "Seconds for which more must be needed before they are started.", 0.0, metavar="S"),
    fleet("down_delay", float, "Seconds for which fewer must suffice before some are stopped.", 300.0, metavar="S"),
    fleet("min_replicas", int, "Fewest replicas of an autoscaler.", 1),
    fleet("max_replicas", int, "Most replicas of an autoscaler."),
    fleet("fail", str,
          "Replicas that fail: which and when (0@60s), for how long (0@60s+300s), or how often any does (mtbf=2h).",
          metavar="WHEN"),
    fleet("load_bandwidth", float, "GB/s at which a replica reads its weights.", 2.0),
    fleet("start_seconds", float, "Start-up without weights and CUDA graphs: container, Python.", 45.0, metavar="S"),
    fleet("check", bool, "Simulate the busiest minutes request by request, too; on by default.", True, off=True,
          shows_default=False),
)
PLAN = (
    Option("gpu", list, "What to choose from: names or your own TOML files.",
           ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"), metavar="GPU,GPU", catalogue="gpus",
           page=Page("GPUs to choose from", "plan", "What a plan may choose from.", name="gpus")),
    Option("max_gpus", int, "Most GPUs in all.", 8, page=Page("Most GPUs", "plan", bounds=(1, 128), unit="GPUs")),
    decision("budget", float, "Most dollars per hour.",
             page=Page("Budget", "plan", bounds=(0.01, 1000000), unit="$/h")),
    facility("power_budget", float, "Most kW of all servers at the wall, while GPUs draw most.", metavar="KW",
             page=Page("Power budget", "plan", bounds=(0.01, 100000.0), unit="kW")),
    facility("power_limit", list, "Watts that boards may be held at; none: no limit.", ("none",), metavar="W,W"),
    decision("objective", str, "What to look for: cost, gpus, energy, latency, throughput.", "cost",
             catalogue="objectives", page=Page("Objective", "plan")),
    decision("least_odds", float, "How sure the SLO must be to hold; 0: by the forecast itself.", 0.8, metavar="P",
             flag="--odds", page=Page("Least odds", "plan", bounds=(0.0, 0.999), name="odds")),
    Option("quantization", list, "Weights: none, fp8, int4, ... or any.", ("none",), metavar="T,T", short="-q",
           catalogue="quantizations", page=Page("Formats to choose from", "plan", name="quantizations")),
    engine("kv_cache_dtype", list, "auto, bf16, fp8, or any.", ("auto",), metavar="T,T"),
    engine("engine", list, "Engines with their versions.", (DEFAULT_ENGINE,), metavar="NAME,NAME", catalogue="engines"),
    engine("vary", list, "A setting of the engine to try with these values.", (), metavar="NAME=V,V"),
    Option("disaggregate", bool, "Consider disaggregated prefill and decode pools, too.", False,
           page=Page("Disaggregated pools", "plan")),
    Option("network", str, "Between nodes; none: no engine spans two.", "infiniband-ndr"),
    Option("link", str, "Between two pools.", "infiniband-ndr"),
)
TIME = (
    Option("time_limit", float, "Seconds for which the answer is refined; it is then what is known so far.", 10.0,
           metavar="S",
           page=Page("Time limit", "traffic", bounds=(0.1, 86400), unit="s", questions=f"{RUNS} plan")),
    Option("no_cache", bool, "Compute again what was asked before on this machine.", False),
)
WORK = (
    work("workers", int, "Worker processes; default: one per processor for long searches."),
    work("ray", str, "A Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local.", metavar="ADDRESS"),
    work("resume", Path, "Save results in this file (JSON lines), and resume from it."),
)
# fmt: on
GROUPS = (
    *(PLACE, LAYOUT, WORKLOAD, ENGINE_ARGS, DEPLOYMENT, COST, OUTPUT, FILES),
    *(MEMORY, SWEEP, CURVE, ENERGY, DAY, FLEET, PLAN, TIME, WORK),
)
PARALLEL = "tensor_parallel_size pipeline_parallel_size pp_layer_partition data_parallel_size"
OPTIONS: dict[str, Option] = {option.name: option for group in reversed(GROUPS) for option in reversed(group)}
"""By name; where a group has its own form of an option, the form of the earlier group."""
OURS_ALONE = {
    "network", "pcie_topology", "api_server", "chat", "expert_routing", "sampling", "engine", "prompts_first",
    "cudagraph_mode", "acceptance", "dummy_weights", "host", "predictor", "calibration",
    "drop", "fuse", "overlap", "at_ceiling",
}  # fmt: skip
"""Options of ours that are no flags of an engine."""
