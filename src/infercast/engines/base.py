"""The engine interface, the engines by name, and a model deployed on GPUs under one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from infercast.bundled import read_data
from infercast.engines.host import DraftPasses, Graphs, HostCosts, HostModel, bundled_host
from infercast.engines.memory import Memory
from infercast.engines.settings import (
    TYPES,
    EngineCommands,
    EngineFlags,
    EngineNames,
    MeasuredSetup,
    Resolved,
    Settings,
    commands_in,
    is_same_version,
    nearest_version,
    version_of,
)
from infercast.engines.speculation import Drafting
from infercast.engines.tables import Table
from infercast.engines.timer import CorrectedTimer, Corrections, DraftingTimer, KernelTimer
from infercast.errors import DoesNotFitError, Fields, FileFormatError, InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.hardware.load import is_modelled, networks
from infercast.lazy_classes import NamedTuple, dataclass, field, fields, replace
from infercast.models.feed_forward import ExpertFeedForward, Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.lower import token_calls
from infercast.models.spec import ModelConfig, check_layout, copies_sharing_experts, talking_gpus
from infercast.ops import MoE, Op
from infercast.predict.estimate import exposed_seconds
from infercast.predict.identity import kernel_profile
from infercast.predict.roofline import Predictor, with_older_kernels
from infercast.serve import Replica
from infercast.serve.step import DraftShape, HostCost, StepShape, StepTimer
from infercast.shown import ResultMixin, verb
from infercast.units import MILLI, format_bytes

Tell = Callable[[str], None]
Version = tuple[int, ...]
FILE_KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
FAMILIES = {"vllm": "infercast.engines.vllm.engine", "sglang": "infercast.engines.sglang.engine"}
"""Modules with the ``RELEASES`` of each engine; a new engine only needs a line here."""
DEFAULT_ENGINE = "vllm@0.33"  # The newest release of the most widely used engine

ABSENT = {
    "TensorRT-LLM": ("tensorrt-llm", "tensorrt_llm", "trtllm", "trt-llm", "trtllm-serve"),
    "TGI": ("tgi", "text-generation-inference"),
    "LMDeploy": ("lmdeploy",),
    "llama.cpp": ("llama.cpp", "llama-cpp", "ollama"),
}  # Engines that are asked for but not modelled, and their names
TOGETHER = ("experts", "experts_dispatch", "experts_combine")


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine(ABC):
    """One release of a serving engine; ``asked`` are settings as a user gives them, ``settings`` have every default."""

    name: str  # With its version: ``vllm@0.25``
    note: str = ""  # Remark on a release whose costs were not measured
    is_measured: bool = True
    """True if its costs were measured; otherwise those of another release are used, with wider intervals."""
    rules_from: str = ""  # The release whose rules stand in for its own, if these are not known
    flags: EngineFlags

    title: ClassVar[str]  # As its makers write it
    close_since: ClassVar[Version] = ()
    """First release close to the measured one: published runs since then are about as far off."""
    load_balancer: ClassVar[str]  # Its default balancer of several replicas, by the names of `serve.fleet.router`
    servers_by_rank: ClassVar[bool] = False  # True if it starts an API server per data-parallel rank, not one for all
    shares_copies: ClassVar[bool] = True  # True if data-parallel ranks share experts, which all-to-all exchange needs
    names: ClassVar[EngineNames]
    commands_file: ClassVar[str] = ""  # Where its commands are, read on first use
    settings_type: ClassVar[type[Any]]
    bounds: ClassVar[tuple[str, str, str]]
    """Settings that limit the tokens and sequences of a step, and the tokens of a sequence."""
    shown: ClassVar[tuple[str, ...]]  # Settings in reports
    oldest_gpu: ClassVar[tuple[tuple[int, int], str]] = ((0, 0), "")  # The lowest compute capability, and an example
    own_drafts: ClassVar[str] = ""  # Flags with which a model's own heads draft, if speculative decoding is modelled
    expert_launches: ClassVar[ExpertLaunches | None] = None  # How it launches Triton's kernel for experts, if tunable
    tuned_since: ClassVar[Mapping[str, Version]] = {}
    """By kernel architecture: the release from which on kernels are as fast as estimated."""
    quicker_experts_since: ClassVar[Version | None] = None
    host_type: ClassVar[type[HostCosts]]

    @property
    def family(self) -> str:
        """The name without the version, also the name of its data folder."""
        return self.name.partition("@")[0]

    @property
    def version(self) -> Version:
        return version_of(self.name)

    @property
    def tied_routers(self) -> tuple[str, ...]:
        """Routers with scores that tie for dummy weights: of ``grouped`` experts, and ``biased`` ones."""
        return "grouped", "biased"

    @property
    def commands(self) -> EngineCommands:
        return commands_in(self.commands_file)

    @property
    def setting_types(self) -> dict[str, type]:
        written = {each.name: str(each.type).removesuffix(" | None") for each in fields(self.settings_type)}
        return {name: TYPES[text] for name, text in written.items() if text in TYPES}

    def settings(self, given: Mapping[str, Any] | None = None, tell: Tell = lambda _: None) -> Any:
        """Settings from flag values by name; ``tell`` receives remarks on what is ignored."""
        return self.settings_type(engine=self.name, **self.settings_from(given or {}, tell))

    @abstractmethod
    def settings_from(self, given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        """Settings fields from flag values; what is not modelled is rejected, or reported to ``tell``."""

    @abstractmethod
    def describe(self, settings: Any) -> str:
        """Settings as text."""

    def room_for(self, *bounds: int) -> dict[str, int]:
        """Settings that allow this many tokens and sequences per step and tokens per sequence."""
        return dict(zip(self.bounds, bounds, strict=True))

    @abstractmethod
    def resolve(self, asked: Any, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, /) -> Any:
        """Fill in the engine's defaults; an error where it would refuse to start."""

    def spread(self, asked: Any, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ParallelLayout:
        """The layout resulting from the given parallel sizes."""
        return layout

    def sizes_for(self, layout: ParallelLayout) -> dict[str, Any]:
        """Options of `build_deployment` and settings by name that yield a layout, without defaults."""
        sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
        found: dict[str, Any] = {f"{name}_parallel_size": size for name, size in sizes.items() if size > 1}
        return {**found, "enable_expert_parallel": True} if layout.experts else found

    def options(
        self, layout: ParallelLayout, quantization: str | None, kv_cache_dtype: str, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Flags of the command that starts it, without dashes; True stands for a flag without a value."""
        found = {name.replace("_", "-"): value for name, value in self.sizes_for(layout).items()}
        if quantization is not None:
            found["quantization"] = quantization
        if kv_cache_dtype != "auto":
            found["kv-cache-dtype"] = self.commands.kv_cache_dtypes.get(kv_cache_dtype, kv_cache_dtype)
        for name, value in settings.items():
            flag = self.commands.dotted.get(name, name.replace("_", "-"))
            if value is not False:
                found[flag] = value
            elif self.commands.negates:
                found[f"no-{flag}"] = True
        return found

    def check_gpu(self, gpu: Gpu) -> None:
        oldest, such_as = self.oldest_gpu
        parts = gpu.compute_capability.split(".")
        if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < oldest:
            raise InputError(
                f"{self.title} does not run on {gpu.name}: its compute capability is {gpu.compute_capability}, and "
                f"{oldest[0]}.{oldest[1]} ({such_as}) is the least"
            )

    @abstractmethod
    def fuses_norms(self, model: ModelConfig, gpu: Gpu) -> bool:
        """True if its all-reduces are fused with the following norm by default."""

    def choose_kernels(self, model: ModelConfig, gpu: Gpu, layout: ParallelLayout, /) -> ModelConfig:
        """The model with kernels selected by more than format and GPU, which are covered by `data/engines`."""
        return model

    def is_new_kernel(self, op: Op, gpu: Gpu) -> bool:
        """True if this release has a new, unmeasured kernel for an operator; an older one stands in."""
        return False

    def has_new_runner(self, model: ModelConfig) -> bool:
        """True if this release launches a model with a runner other than the one with measured host times."""
        return False

    @abstractmethod
    def expert_multiples(self, model: ModelConfig, gpu: Gpu) -> Multiples:
        """Multiples to which its kernels pad the hidden size and the width of experts."""

    @abstractmethod
    def graphs(self, settings: Any) -> Graphs:
        """The CUDA graphs it captures at its start."""

    def drafts(self, asked: Any) -> bool:
        """True if settings ask for speculative decoding."""
        return False

    def most_tokens(self, given: Mapping[str, Any]) -> int:
        """Maximum tokens a step may yield per sequence, from settings by name."""
        return 1

    def drafting(self, settings: Any) -> Drafting | None:
        """Speculative decoding as configured ..."""
        found: Drafting | None = getattr(settings, "drafting", None)
        return found

    def draft_passes(self, deployment: Deployment) -> DraftPasses:
        """... and how its passes are launched, for an engine that can draft."""
        raise NotImplementedError

    def with_settings(self, asked: Any, model: ModelConfig, /) -> ModelConfig:
        """The model with what settings change in it, such as slots for LoRA adapters."""
        return model

    @abstractmethod
    def plan_memory(
        self, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Any, stage: int | None = None, /
    ) -> Memory:
        """How it divides the memory of a GPU of the ``stage``, or that with least room; perhaps without a KV block."""

    def weight_waits(self, deployment: Deployment, tokens: Table, seconds: Table, /) -> Table | None:
        return None

    def check_memory(self, model: ModelConfig, settings: Any, memory: Memory, /) -> None:  # noqa: B027 - most have none
        """Reject a plan with which the engine would not start although sequences fit."""

    def tokens_under_way(self, settings: Any, layout: ParallelLayout) -> int:
        """Tokens in flight per sequence that its blocks must hold beyond its window."""
        return int(settings.max_num_batched_tokens)

    def default_host(self) -> HostCosts:
        """Its costs on the host it was measured on."""
        return bundled_host(self.host_type, self.family, self.version)

    @abstractmethod
    def host_model(
        self, host: Any, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Any, /
    ) -> HostModel:
        """A model's costs on a host of `host_type`."""

    @abstractmethod
    def replica(self, deployment: Deployment, settings: Any, timer: StepTimer, warmed_up: bool) -> Replica:
        """The engine for the simulation, with its limits and scheduling policy; warmed up, or just started."""

    def measured_setup(self, config: Fields) -> MeasuredSetup:
        """Its setup, from the ``config`` of a file of measured runs."""
        raise FileFormatError(config.path, f"holds runs of {config.word('engine')}, whose files cannot be read")

    def before(self, version: Version, model: ModelConfig, /) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Defaults of an older release for a model: settings, and options of `build_deployment`."""
        return {}, {}

    def known_before(self, version: Version, /) -> Sequence[str]:
        """What is known of an older release, in words."""
        return ()

    def fact(self, kind: str) -> Any:
        """What an older release did or took beyond newer ones; 0 for these."""
        return 0

    def as_released(self, host: Any, model: ModelConfig, /, *, chat: bool) -> Any:
        """A host's costs with those that this release had beyond."""
        without_template = ("GptOssForCausalLM",)  # Models with chats that code renders, not a template
        rendered = chat and model.architecture not in without_template
        more, turn = MILLI * self.fact("sequence_ms"), MILLI * self.fact("chat_turn_ms") * rendered
        host = replace(host, process_sequence=host.process_sequence + more) if more else host
        return replace(host, server_turn=host.server_turn + turn, server_work=host.server_work + turn) if turn else host


class Configuration(NamedTuple):
    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int

    def as_file(self) -> dict[str, int]:
        return dict(zip(FILE_KEYS, self, strict=True))

    def __str__(self) -> str:
        group = f", groups of {self.group}" if self.group > 1 else ""
        return f"{self.rows} x {self.columns} x {self.depth}, {self.warps} warps, {self.stages} stages{group}"


class ExpertLaunches(NamedTuple):
    family: str
    folder_variable: str  # The environment variable for the folder of a user's own files
    rule_of_thumb: Callable[[int, int, str], Configuration]  # By tokens, experts and format, without a tuned file
    folder: str = ""  # Of the files, below that
    blocks: str = "[128,128]"  # As their names write blocks of fp8
    called_alike: tuple[str, ...] = ()  # Words in names of devices that stand for the whole name

    @property
    def formats(self) -> Mapping[str, str]:
        return {"bf16": "", "fp8": "fp8_w8a8", "fp8_block": "fp8_w8a8"}

    def device_name(self, gpu: Gpu) -> str:
        """The GPU's name in configuration file names: the driver's, which is the alias with a space in it."""
        name = next((alias for alias in gpu.aliases if " " in alias), None)
        if name is None:
            raise InputError(
                f"it is not known how a driver calls {gpu.name}; give its file an alias such as 'NVIDIA H200'"
            )
        alike = (f"NVIDIA {word}" for word in self.called_alike if word in name.split())
        return next(alike, name).replace(" ", "_")

    def file_name(self, experts: int, inter: int, dtype: str, gpu: Gpu) -> str:
        """The path of a layer's configurations, by experts, their width, format and GPU."""
        written = f",dtype={self.formats[dtype]}" if self.formats[dtype] else ""
        blocks = f",block_shape={self.blocks}" if dtype == "fp8_block" else ""
        return f"{self.folder}E={experts},N={inter},device_name={self.device_name(gpu)}{written}{blocks}.json"

    def has_tuned_file(self, experts: int, inter: int, dtype: str, gpu: Gpu) -> bool:
        """True if the engine's package has a file for such a layer; never for a GPU without a known name in files."""
        name = self.device_name(gpu) if any(" " in alias for alias in gpu.aliases) else ""
        tuned = read_data(f"engines/{self.family}/tuned_experts.toml")
        return inter in tuned.get(name, {}).get(dtype, {}).get(str(experts), [])

    def file_tokens(self, experts: int, dtype: str) -> tuple[int, ...]:
        """Powers of two, and both sides of each edge of the rules of thumb: engines use the nearest entry in a file."""
        most = 16384
        rules = [self.rule_of_thumb(tokens, experts, dtype) for tokens in range(1, most + 1)]
        edges = {tokens for tokens in range(1, most) if rules[tokens - 1] != rules[tokens]}
        powers = {1 << power for power in range(most.bit_length())}
        return tuple(sorted(powers | edges | {tokens + 1 for tokens in edges}))


QUICKER_EXPERTS = 0.94
"""Triton's experts in bf16 on Hopper by releases with PyTorch 2.14, of what is estimated: profiles of qwen3-30b-a3b say
0.93 (decode of 32 sequences) and 0.96 (8,192 prompt tokens) where those of PyTorch 2.11 say 0.97 and 0.99, though alone
both take as long. Steps of both engines on two machines agree."""


def with_quicker_experts(model: ModelConfig) -> ModelConfig:
    def quicker(spec: ExpertFeedForward) -> ExpertFeedForward:
        slower = spec.slower or ((1.0, 1.0),)
        return replace(spec, slower=tuple((tokens, QUICKER_EXPERTS * factor) for tokens, factor in slower))

    return model.with_experts(quicker)


@lru_cache
def untuned_factors(
    model: ModelConfig, spec: ExpertFeedForward, gpu: Gpu, layout: ParallelLayout, family: str
) -> tuple[tuple[float, float], ...]:
    """Token counts with the slowdown factor of experts by the defaults of old releases; empty with a tuned file."""
    weights = model.weights
    kernel = weights.experts_kernel or kernel_profile(family).experts.get(gpu.kernels, {}).get(weights.experts, "")
    if kernel != "triton" or weights.experts != "bf16" or not is_modelled(gpu):
        return ()  # default tiles of block fp8 are as good
    experts = -(-(spec.experts + layout.redundant) // layout.expert_gpus) + (0 if layout.experts else spec.joined)
    inter = layout.share_expert_width(spec.inter)
    launches = engine_named(family).expert_launches
    if launches is None or launches.has_tuned_file(experts, inter, weights.experts, gpu):
        return ()
    from infercast.predict.expert_launch import slowdown  # noqa: PLC0415 - few experts have no tuned file

    layer = MoE(np.ones(1), hidden=model.hidden, inter=inter, experts=experts, topk=spec.topk, gated=spec.gated)
    sizes = sorted({*(1 << power for power in range(16)), experts, experts + 1})
    return tuple((float(tokens), slowdown(tokens, layer, gpu, layout.expert_gpus)) for tokens in sizes)


@cache
def releases_of(family: str) -> dict[str, Engine]:
    """All releases of an engine by name; its code is loaded on first use."""
    found: dict[str, Engine] = import_module(FAMILIES[family]).RELEASES
    return found


def engines() -> dict[str, Engine]:
    return {name: engine for family in FAMILIES for name, engine in releases_of(family).items()}


def newest(name: str) -> str:
    """The newest release of an engine named without a version; any other name unchanged."""
    if name not in FAMILIES:
        return name
    return max(releases_of(name).values(), key=lambda each: each.version).name


@cache
def engine_named(name: str | None = None) -> Engine:
    """The engine of a name (None: the default), or of the nearest release, with a note; an error has near names."""
    name = DEFAULT_ENGINE if name is None else newest(name)
    family = name.partition("@")[0]
    known = releases_of(family) if family in FAMILIES else {}
    if name in known:
        return known[name]
    if (title := absent(name)) is not None:
        raise InputError(f"{title} is not modelled; {what_there_is()}")
    nearest = nearest_version(name, known)
    if nearest is None:
        raise UnknownNameError("engine", name, engines())
    release = known[nearest]
    if is_same_version(name, nearest):
        return replace(release, name=name)
    facts = ", ".join(release.known_before(version_of(name)))
    note = f"with its {facts}; its other" if facts else "its"
    note = f"{note} rules are not known; those of {nearest}, costs not measured"
    return replace(release, name=name, is_measured=False, note=note, rules_from=nearest)


def package_of(engine: Engine) -> str:
    family, _, version = engine.name.partition("@")
    return f"{family}=={version}{'.0' * (2 - version.count('.'))}"


def absent(name: str) -> str | None:
    """The title of an engine that is known by name only."""
    called = name.lower().partition("@")[0]
    return next((title for title, names in ABSENT.items() if called in names), None)


def what_there_is() -> str:
    return f"use --engine {' or '.join(FAMILIES)}, which run many of the same kernels"


def measured_engine(family: str) -> Engine:
    """Any release of an engine: all of them read the same files of measured runs."""
    for engine in engines().values():
        if engine.family == family:
            return engine
    raise UnknownNameError("engine", family, FAMILIES)


def engine_of(settings: Settings) -> Engine:
    engine = engine_named(settings.engine)
    if not isinstance(settings, engine.settings_type):
        raise InputError(
            f"{type(settings).__name__} is not for {engine.name}, which takes {engine.settings_type.__name__}"
        )
    return engine


@dataclass(frozen=True, slots=True, repr=False)
class Deployment(ResultMixin):
    """One replica, ready for step estimates."""

    engine: Engine
    model: ModelConfig
    gpu: Gpu
    layout: ParallelLayout
    settings: Resolved
    predictor: Predictor
    host: HostCosts
    memory: Memory
    over_http: bool = False  # True if requests arrive as text at a server, not as tokens from the same process
    corrections: Corrections | None = None  # Corrections from measured runs; those of the host are in ``host`` already
    asked: Any = field(default=None, compare=False)  # The call of `forecast.deploy.deploy` that made it, if one did

    def _words(self) -> str:
        gpus = f"{self.layout.gpus} x {self.gpu.name}"
        return f"{self.model.name} on {gpus}, {self.engine.name}, {self.layout}"

    @property
    def graphs(self) -> Graphs:
        return self.engine.graphs(self.settings)

    @property
    def drafting(self) -> Drafting | None:
        return self.engine.drafting(self.settings)

    @property
    def crosses_nodes(self) -> bool:
        """True if its GPUs communicate over a network."""
        return talking_gpus(self.model, self.layout) > self.gpu.gpus_per_node

    @property
    def shares_experts(self) -> bool:
        """True if its data-parallel ranks synchronise in expert layers and so step together."""
        return copies_sharing_experts(self.model, self.layout) > 1

    @property
    def stages(self) -> tuple[float, ...] | None:
        """Each pipeline stage's share of a step; None without a pipeline."""
        if self.layout.pipeline == 1:
            return None
        from infercast.engines.stages import stage_shares  # noqa: PLC0415 - most have no stages

        return stage_shares(self)

    @property
    def host_model(self) -> HostModel:
        return self.engine.host_model(self.host, self.model, self.layout, self.gpu, self.settings)

    @property
    def has_default_host(self) -> bool:
        bundled = self.engine.default_host().on_cpu(self.gpu.cpu)
        bundled = bundled.behind_server() if self.over_http else bundled
        return any(self.host == self.engine.as_released(bundled, self.model, chat=chat) for chat in (False, True))

    @property
    def draft_passes(self) -> DraftPasses:
        return self.engine.draft_passes(self)

    def host_cost(self, shape: StepShape) -> HostCost:
        launch, _ = self.graphs.launch(shape.num_tokens, shape.is_decode)
        if isinstance(shape, DraftShape):
            tokens = shape.num_tokens - shape.num_drafts
            plain = self.host_model.cost(launch, shape.num_sequences, tokens, len(shape.prompts))
            passes, prompts = self.draft_passes, bool(shape.prompts)
            return plain.plus(passes.cost(launch, shape.num_next, shape.num_sequences, has_prompts=prompts))
        return self.host_model.cost(launch, len(shape.new_tokens), shape.num_tokens, len(shape.prompts))

    def weight_waits(self, tokens: Table, seconds: Table) -> Table | None:
        return self.engine.weight_waits(self, tokens, seconds)

    def timer(self) -> KernelTimer:
        """A step timer with all step sizes tabulated, for any batch within the settings."""
        timer = KernelTimer(self) if self.drafting is None else DraftingTimer(self)
        if self.gpu.stages:
            from infercast.engines.stages import mixture  # noqa: PLC0415 - as above

            timer = CorrectedTimer(timer, mixture(self))
        if self.corrections is not None and self.corrections.changes_steps:
            return CorrectedTimer(timer, self.corrections)
        return timer

    def replica(self, timer: StepTimer | None = None, *, warmed_up: bool = True) -> Replica:
        """The replica for the simulation; if not warmed up, it has just been started."""
        return self.engine.replica(self, self.settings, timer or self.timer(), warmed_up)

    def simulate(self, workload: Any = None, **options: Any) -> Any:
        """What users see of a workload on it: `infercast.simulate`."""
        return verb("simulate")(self, workload, **options)

    def explain(self, workload: Any = None, **options: Any) -> Any:
        """Where every second of a run goes: `infercast.explain`."""
        return verb("explain")(self, workload, **options)

    def diagnose(self, workload: Any = None, **options: Any) -> Any:
        """Kernels ranked by what users would gain: `infercast.diagnose`."""
        return verb("diagnose")(self, workload, **options)

    def sweep(self, workload: Any = None, **options: Any) -> Any:
        """Points along rates, clients or a setting: `infercast.sweep`."""
        return verb("sweep")(self, workload=workload, **options)

    def capacity(self, slo: Any, traffic: Any = None, **options: Any) -> Any:
        """Replicas of it that keep an SLO over a day of traffic: `infercast.capacity`."""
        return verb("capacity")(self, traffic, slo, **options)

    def step(self, shape: StepShape, **options: Any) -> Any:
        """One step over a batch, kernel by kernel: `infercast.estimate`."""
        return verb("estimate")(shape, self, **options)


def check_nodes(model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> None:
    """Reject a layout that needs a network where there is none, or other stages than those that have GPUs."""
    if gpu.stages and len(gpu.stages) != layout.pipeline:
        raise InputError(f"gpu {gpu.title} is for a pipeline_parallel_size of {len(gpu.stages)}, not {layout.pipeline}")
    talking = talking_gpus(model, layout)
    if talking > gpu.gpus_per_node and gpu.network_bandwidth <= 0:
        raise InputError(
            f"layout {layout} needs {talking} GPUs that talk to each other, above the {gpu.gpus_per_node} of a node of "
            f"{gpu.name}; use at most {gpu.gpus_per_node} or name one with --network ({', '.join(networks())})"
        )


def put_on(
    engine: Engine, model: ModelConfig, gpu: Gpu, settings: Settings, layout: ParallelLayout
) -> tuple[ModelConfig, Resolved]:
    """The model as the engine runs it there, and the resolved settings."""
    for each in gpu.stages or (gpu,):
        engine.check_gpu(each)
    check_layout(model, layout)
    check_nodes(model, layout, gpu)
    model = engine.choose_kernels(model, gpu, layout)
    since = engine.quicker_experts_since
    if since is not None and engine.version >= since and gpu.kernels == "hopper" and model.weights.experts == "bf16":
        model = with_quicker_experts(model)
    model = engine.with_settings(settings, model)
    return model, engine.resolve(settings, model, layout, gpu)


def build_deployment(
    model: ModelConfig, gpu: Gpu, settings: Settings, layout: ParallelLayout, predictor: Predictor,
    host: HostCosts | None = None, *, over_http: bool = False, chat: bool = False, partition: str | None = None,
    must_fit: bool = True,
) -> Deployment:  # fmt: skip
    """Deploy a model on GPUs, or raise the reason why not; ``host``: the measured one, or the GPU's own CPU."""
    engine = engine_of(settings)
    gpu = with_older_kernels(gpu) if engine.version < engine.tuned_since.get(gpu.kernels, ()) else gpu
    placed, resolved = put_on(engine, model, gpu, settings, layout)
    where = placed, layout, gpu, resolved
    memory = require_fit(engine, *where) if must_fit and partition is None else engine.plan_memory(*where)
    machine = host or engine.default_host().on_cpu(gpu.cpu)
    if not isinstance(machine, engine.host_type):
        raise InputError(f"the host {machine.title!r} was fitted for another engine than {engine.name}")
    machine = engine.as_released(machine.behind_server() if over_http else machine, model, chat=chat)
    found = Deployment(engine, placed, gpu, layout, resolved, predictor, machine, memory, over_http)
    if partition is None:
        return found
    from infercast.engines.stages import cut_layout  # noqa: PLC0415 - few pipelines are cut otherwise

    layout = cut_layout(found, partition)
    return build_deployment(
        model, gpu, settings, layout, predictor, host, over_http=over_http, chat=chat, must_fit=must_fit
    )


def shared_seconds(deployment: Deployment) -> Callable[[float], float]:
    """Seconds of a step's shared part, by tokens per rank if all have the same number."""
    most = deployment.settings.max_num_batched_tokens
    fineness = 1.3  # Ratio of consecutive token counts that are estimated; times in between are interpolated linearly
    sizes = np.unique(np.rint(np.geomspace(1, most, 2 + round(np.log(most) / np.log(fineness)))).astype(np.int64))
    seconds = np.zeros(sizes.size)
    for call in token_calls(deployment.model, deployment.layout, sizes):
        if call.name in TOGETHER:
            seconds += np.asarray(exposed_seconds(call, deployment.predictor.seconds(call.op, deployment.gpu)))

    @lru_cache(maxsize=4096)
    def shared(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds))

    return shared


def require_fit(engine: Engine, config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Resolved) -> Memory:
    """The memory plan, or an error with the smallest layout that would fit."""
    memory = engine.plan_memory(config, layout, gpu, settings)
    chunk = engine.tokens_under_way(settings, layout)
    if memory.most_sequences(settings.max_model_len, chunk):
        engine.check_memory(config, settings, memory)
        return memory
    where = f"{layout.replica_gpus} x {gpu.name}"
    remedy = _remedy(engine, config, layout, gpu, settings)
    longest = memory.longest_sequence(chunk)
    if longest == 0:
        raise DoesNotFitError(
            f"{config.name} ({config.weights.name}) does not fit on {where}: weights, activations and graphs need "
            f"{format_bytes(memory.needed)} per GPU, above the {format_bytes(memory.usable)} that are usable; {remedy}"
        )
    raise DoesNotFitError(
        f"one sequence of max_model_len {settings.max_model_len} does not fit in the KV cache of {config.name} on "
        f"{where}, whose {memory.num_blocks} blocks hold {longest} tokens; lower max_model_len, or: {remedy}"
    )


def _remedy(engine: Engine, config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Resolved) -> str:
    """The smallest tensor parallelism within a node that the model allows and that fits, or pipeline parallelism."""
    most_gpus = 1024  # Limit of GPUs per node tried when a model does not fit on fewer
    in_node = min(gpu.gpus_per_node, most_gpus)
    wider = (replace(layout, tensor=size) for size in range(layout.tensor + 1, in_node // layout.pipeline + 1))
    most = layout.pipeline if gpu.stages else in_node // layout.tensor
    deeper = (replace(layout, pipeline=size, cut=()) for size in range(layout.pipeline + 1, most + 1))
    for larger in (*wider, *deeper):
        try:
            check_layout(config, larger)
        except InputError:
            continue
        memory = engine.plan_memory(config, larger, gpu, settings)
        if memory.most_sequences(settings.max_model_len, engine.tokens_under_way(settings, larger)):
            if larger.tensor > layout.tensor:
                return f"tensor_parallel_size={larger.tensor} fits"
            return f"pipeline_parallel_size={larger.pipeline} fits"
    return f"no layout within the {gpu.gpus_per_node} GPUs of a node fits"
