"""vLLM, release by release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from infercast.engines.deployment import Deployment
from infercast.engines.engine import Engine, Names, Tell
from infercast.engines.memory import Memory
from infercast.engines.vllm import flags
from infercast.engines.vllm.block_size import default_block_size
from infercast.engines.vllm.expert_defaults import EXPERT_LAUNCHES
from infercast.engines.vllm.expert_padding import expert_multiples
from infercast.engines.vllm.graphs import Graphs
from infercast.engines.vllm.host import VllmHost, VllmHostModel, default_host
from infercast.engines.vllm.launches import launch_work
from infercast.engines.vllm.memory import plan_memory
from infercast.engines.vllm.replica import vllm_replica
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, resolve
from infercast.engines.vllm.sharing import shared_seconds
from infercast.engines.vllm.versions import ENGINES, MEASURED
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.feed_forward import Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.serve import Replica
from infercast.serve.step import StepTimer

OLDEST = (7, 0)
"""Compute capability below which vLLM 0.25 does not start: its compiler's kernels (Triton) need Volta."""
FUSING_KERNELS = ("hopper", "blackwell")
"""Where FlashInfer has a kernel for all-reduces that carry a norm, which vLLM then uses."""
NAMES = Names(
    kv_cache_dtypes={
        "auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16",
        "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    },
    dtypes={"auto": "", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16"},
    moe_backends=("auto", "triton", "cutlass", "trtllm", "marlin"),
    all2all_backends=("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"),
)  # fmt: skip


@dataclass(frozen=True)
class Vllm(Engine[EngineSettings, ResolvedSettings]):
    """One release."""

    name: str
    note: str = ""

    title: ClassVar = "vLLM"
    load_balancer: ClassVar = "vllm"
    names: ClassVar = NAMES
    flags: ClassVar = flags.FLAGS
    settings_type: ClassVar = EngineSettings
    host_type: ClassVar = VllmHost
    expert_launches: ClassVar = EXPERT_LAUNCHES

    def settings(self, given: Mapping[str, Any] | None = None, tell: Tell = lambda _: None) -> EngineSettings:
        """Settings from the values of flags; ``tell`` hears what is left aside."""
        return super().settings(flags.settings_of(given or {}, tell))

    def room_for(self, num_tokens: int, num_sequences: int, longest: int) -> dict[str, int]:
        """Settings that allow steps of so many tokens and sequences, each of ``longest`` tokens at most."""
        return {"max_num_batched_tokens": num_tokens, "max_num_seqs": num_sequences, "max_model_len": longest}

    def resolve(self, settings: EngineSettings, model: ModelConfig, gpu: Gpu) -> ResolvedSettings:
        """What vLLM would choose, for its attention kernels among others."""
        block_size = default_block_size(model, gpu)
        return resolve(settings, gpu, model.max_positions, model.architecture, block_size=block_size)

    def describe(self, settings: ResolvedSettings) -> str:
        """The settings that matter most, for people."""
        return (
            f"up to {settings.max_num_batched_tokens:,} tokens, {settings.max_num_seqs:,} sequences per step; "
            f"max_model_len {settings.max_model_len:,}; "
            f"prefix caching {'on' if settings.enable_prefix_caching else 'off'}"
        )

    def shown(self, settings: ResolvedSettings) -> dict[str, Any]:
        """The same by their names."""
        names = (
            "max_num_batched_tokens", "max_num_seqs", "max_model_len", "gpu_memory_utilization",
            "enable_prefix_caching",
        )  # fmt: skip
        return {name: getattr(settings, name) for name in names}

    def plan_memory(self, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> Memory:
        """As its profiling run at the start divides it."""
        return plan_memory(model, layout, gpu, settings)

    def tokens_under_way(self, settings: ResolvedSettings, layout: ParallelLayout) -> int:
        """Those of one step, or of all that are planned before the first has its result."""
        return settings.most_in_flight(layout.pipeline)

    def graphs(self, settings: ResolvedSettings) -> Graphs:
        """The CUDA graphs it records at its start."""
        return Graphs(settings.capture_sizes, settings.max_num_seqs, settings.cudagraph_mode)

    def default_host(self) -> VllmHost:
        """What vLLM 0.25 costs the host it was measured on."""
        return default_host()

    def host_model(self, host: VllmHost, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> VllmHostModel:
        """What a model costs a host."""
        return VllmHostModel(host, launch_work(model, layout, gpu))

    def replica(
        self, deployment: Deployment, settings: ResolvedSettings, timer: StepTimer, *, warmed_up: bool
    ) -> Replica:
        """The engine as the simulation sees it."""
        return vllm_replica(deployment, settings, timer, warmed_up=warmed_up)

    def shared_seconds(self, deployment: Deployment) -> Callable[[float], float]:
        """The experts, and sending tokens to them and back."""
        return shared_seconds(deployment)

    def check_gpu(self, gpu: Gpu) -> None:
        """Refuse a GPU that the engine does not run on."""
        parts = gpu.compute_capability.split(".")
        if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST:
            raise InputError(
                f"vLLM does not run on {gpu.name}: its compute capability is {gpu.compute_capability}, and "
                f"{OLDEST[0]}.{OLDEST[1]} (Volta, such as v100-sxm) is the least"
            )

    def fuses_norms(self, gpu: Gpu) -> bool:
        """Whether its all-reduces carry the norm that follows, unless it is told otherwise."""
        return gpu.kernels in FUSING_KERNELS

    def expert_multiples(self, model: ModelConfig, gpu: Gpu) -> Multiples:
        """What its kernels round the hidden size and the width of experts up to."""
        return expert_multiples(model, gpu)


RELEASES = {name: Vllm(name, "" if name == MEASURED else "rules by its source, costs not measured") for name in ENGINES}
