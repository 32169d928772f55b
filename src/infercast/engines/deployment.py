"""A model on GPUs under an engine's settings: everything that is known before the first request arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.engines.corrections import CorrectedTimer, Corrections
from infercast.engines.engine import Graphs, HostModel
from infercast.engines.host import HostCosts
from infercast.engines.memory import Memory, require_fit
from infercast.engines.pipeline import stage_shares
from infercast.engines.registry import AnyEngine, engine_of
from infercast.engines.settings import Resolved, Settings
from infercast.engines.speculation import Drafting
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.hardware.network import networks
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.models.spread import check_layout, copies_sharing_experts, talking_gpus
from infercast.predict.roofline import Predictor
from infercast.serve import Replica
from infercast.serve.step import DraftShape, HostCost, StepShape, StepTimer
from infercast.shown import Answer


@dataclass(frozen=True, slots=True, repr=False)
class Deployment(Answer):
    """One replica, ready to be asked for step times."""

    engine: AnyEngine
    model: ModelConfig
    gpu: Gpu
    layout: ParallelLayout
    settings: Resolved
    predictor: Predictor
    host: HostCosts
    memory: Memory
    over_http: bool = False
    """Whether requests come as text to a server, and not as tokens from the same program."""
    corrections: Corrections | None = None
    """What measured runs of it say of its times; the host has what is the host's already."""

    def _words(self) -> str:
        gpus = f"{self.layout.gpus} x {self.gpu.name}"
        return f"{self.model.name} on {gpus}, {self.engine.name}, {self.layout}"

    @property
    def graphs(self) -> Graphs:
        """The CUDA graphs the engine records at its start."""
        return self.engine.graphs(self.settings)

    @property
    def drafting(self) -> Drafting | None:
        """Speculative decoding; None without it."""
        found: Drafting | None = self.engine.drafting(self.settings)
        return found

    @property
    def crosses_nodes(self) -> bool:
        """Whether its GPUs talk to each other over a network."""
        return talking_gpus(self.model, self.layout) > self.gpu.gpus_per_node

    @property
    def shares_experts(self) -> bool:
        """Whether its copies meet in layers of experts and so step together."""
        return copies_sharing_experts(self.model, self.layout) > 1

    @property
    def stages(self) -> tuple[float, ...] | None:
        """The share of a step that each stage of a pipeline takes; None without one."""
        if self.layout.pipeline == 1:
            return None
        return stage_shares(self.model, self.layout, self.gpu, self.predictor)

    @property
    def host_model(self) -> HostModel:
        """What the model costs the host."""
        return self.engine.host_model(self.host, self.model, self.layout, self.gpu, self.settings)

    @property
    def has_default_host(self) -> bool:
        """Whether nobody said which host this is."""
        bundled = self.engine.default_host()
        return self.host == (bundled.behind_server() if self.over_http else bundled)

    def host_cost(self, shape: StepShape) -> HostCost:
        """The host's part of a step."""
        launch, _ = self.graphs.launch(shape.num_tokens, shape.is_decode)
        if isinstance(shape, DraftShape):
            tokens = shape.num_tokens - shape.num_drafts
            plain = self.host_model.cost(launch, shape.num_sequences, tokens, len(shape.prompts))
            assert self.engine.draft_passes is not None
            passes, prompts = self.engine.draft_passes(self), bool(shape.prompts)
            return plain.plus(passes.cost(launch, shape.num_next, shape.num_sequences, has_prompts=prompts))
        return self.host_model.cost(launch, len(shape.new_tokens), shape.num_tokens, len(shape.prompts))

    def _drafting_timer(self) -> KernelTimer:
        from infercast.engines.drafting_timer import DraftingTimer  # noqa: PLC0415 - most engines do not draft

        return DraftingTimer(self)

    def timer(self) -> KernelTimer:
        """A step timer with every step size estimated; it may be called for any batch within the settings."""
        timer = KernelTimer(self) if self.drafting is None else self._drafting_timer()
        if self.corrections is not None and self.corrections.changes_steps:
            return CorrectedTimer(timer, self.corrections)
        return timer

    def replica(self, timer: StepTimer | None = None, *, warmed_up: bool = True) -> Replica:
        """What the simulation sees of it; an engine that is not warmed up has just been started."""
        return self.engine.replica(self, self.settings, timer or self.timer(), warmed_up)


def check_nodes(model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> None:
    """Refuse a layout whose GPUs have nothing to talk over."""
    talking = talking_gpus(model, layout)
    if talking > gpu.gpus_per_node and gpu.network_bandwidth <= 0:
        raise InputError(
            f"layout {layout} needs {talking} GPUs that talk to each other, above the {gpu.gpus_per_node} of a node of "
            f"{gpu.name}; use at most {gpu.gpus_per_node} or name a network ({', '.join(networks())})"
        )


def put_on(
    engine: AnyEngine, model: ModelConfig, gpu: Gpu, settings: Settings, layout: ParallelLayout
) -> tuple[ModelConfig, Resolved]:
    """The model as the engine runs it there, with room for adapters, and the settings that it chooses."""
    engine.check_gpu(gpu)
    check_layout(model, layout)
    check_nodes(model, layout, gpu)
    model = engine.choose_kernels(model, gpu, layout)
    if (slots := engine.adapters(settings, model, layout)) is not None:
        model = replace(model, adapters=slots)
    return model, engine.resolve(settings, model, layout, gpu)


def deploy(
    model: ModelConfig,
    gpu: Gpu,
    settings: Settings,
    layout: ParallelLayout,
    predictor: Predictor,
    host: HostCosts | None = None,
    *,
    over_http: bool = False,
) -> Deployment:
    """Put a model on GPUs, or say why it cannot be done. ``host`` of None is the one the engine was measured on."""
    engine = engine_of(settings)
    model, resolved = put_on(engine, model, gpu, settings, layout)
    memory = require_fit(engine, model, layout, gpu, resolved)
    machine = host or engine.default_host()
    if not isinstance(machine, engine.host_type):
        raise InputError(f"the host {machine.title!r} was fitted for another engine than {engine.name}")
    return Deployment(
        engine,
        model,
        gpu,
        layout,
        resolved,
        predictor,
        machine.behind_server() if over_http else machine,
        memory,
        over_http,
    )
