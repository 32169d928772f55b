"""A model on GPUs under an engine's settings: everything that is known before the first request arrives."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.engines.pipeline import stage_shares
from infercast.engines.timer import KernelTimer
from infercast.engines.vllm.block_size import default_block_size
from infercast.engines.vllm.graphs import Graphs
from infercast.engines.vllm.host import Host, HostModel
from infercast.engines.vllm.launches import launch_work
from infercast.engines.vllm.memory import Memory, require_fit
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, resolve
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.hardware.network import networks
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.models.spread import check_layout, copies_sharing_experts, talking_gpus
from infercast.predict.roofline import Predictor
from infercast.serve.step import HostCost, StepShape


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica, ready to be asked for step times."""

    model: ModelConfig
    gpu: Gpu
    layout: ParallelLayout
    settings: ResolvedSettings
    predictor: Predictor
    host: Host
    memory: Memory
    over_http: bool = False
    """Whether requests come as text to a server, and not as tokens from the same program."""

    @property
    def graphs(self) -> Graphs:
        """The CUDA graphs the engine records at its start."""
        return Graphs(self.settings.capture_sizes, self.settings.max_num_seqs, self.settings.cudagraph_mode)

    @property
    def runs_v2(self) -> bool:
        """Whether the engine runs the model with its V2 model runner."""
        return self.settings.version.runs_v2(self.model.architecture, has_experts=self.model.has_experts)

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

    def host_cost(self, shape: StepShape) -> HostCost:
        """The host's part of a step."""
        launch = self.graphs.launch(shape.num_tokens, shape.is_decode)
        model = HostModel(self.host, launch_work(self.model, self.layout, self.gpu))
        return model.cost(launch, len(shape.new_tokens), shape.num_tokens)

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return launch_work(self.model, self.layout, self.gpu).gap_seconds

    def timer(self) -> KernelTimer:
        """A step timer with every step size priced; it may be called for any batch within the settings."""
        return KernelTimer(
            self.model,
            self.layout,
            self.gpu,
            self.predictor,
            self.graphs,
            self.host,
            max_tokens=self.settings.max_num_batched_tokens,
            max_rows=self.settings.max_num_seqs,
            max_keys=self.settings.max_model_len,
        )


OLDEST = (7, 0)
"""Compute capability below which vLLM 0.25 does not start: its compiler's kernels (Triton) need Volta."""


def check_capability(gpu: Gpu) -> None:
    """Refuse a GPU that the engine does not run on."""
    parts = gpu.compute_capability.split(".")
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST:
        raise InputError(
            f"vLLM does not run on {gpu.name}: its compute capability is {gpu.compute_capability}, and "
            f"{OLDEST[0]}.{OLDEST[1]} (Volta, such as v100-sxm) is the least"
        )


def check_nodes(model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> None:
    """Refuse a layout whose GPUs have nothing to talk over."""
    talking = talking_gpus(model, layout)
    if talking > gpu.gpus_per_node and gpu.network_bandwidth <= 0:
        raise InputError(
            f"layout {layout} needs {talking} GPUs that talk to each other, above the {gpu.gpus_per_node} of a node of "
            f"{gpu.name}; use at most {gpu.gpus_per_node} or name a network ({', '.join(networks())})"
        )


def deploy(
    model: ModelConfig,
    gpu: Gpu,
    settings: EngineSettings,
    layout: ParallelLayout,
    predictor: Predictor,
    host: Host,
    *,
    over_http: bool = False,
) -> Deployment:
    """Put a model on GPUs, or say why it cannot be done."""
    check_capability(gpu)
    check_layout(model, layout)
    check_nodes(model, layout, gpu)
    block_size = default_block_size(model, gpu)
    resolved = resolve(settings, gpu, model.max_positions, model.architecture, block_size=block_size)
    memory = require_fit(model, layout, gpu, resolved)
    machine = host.behind_server() if over_http else host
    return Deployment(model, gpu, layout, resolved, predictor, machine, memory, over_http)
