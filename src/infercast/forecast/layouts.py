"""Every way to put a model on so many GPUs, compared by the price of two steps.

No run is simulated. A layout is judged by one step that computes a prompt and one that decodes a full batch: while a
sequence produces its ``output`` tokens, every other sequence of the batch is replaced once on average, so each of its
tokens waits for ``batch / output`` prompts on top of its own step. Intervals are of these sums: what prices and host
may be off by, and what an engine that was not measured may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp, inf, log

from infercast.engine.deployment import Deployment, check_nodes
from infercast.engine.settings import EngineSettings
from infercast.errors import DoesNotFitError, InputError
from infercast.forecast.deploy import GpuSource, ModelSource, deploy, load_model
from infercast.forecast.kernels import StepCost, decode_shape, prefill_shape, price_shape
from infercast.forecast.uncertainty import most_gain, spread_of, step_uncertainty, widened
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.pcie import with_topology
from infercast.models.layout import ParallelLayout, check_layout
from infercast.models.spec import ExpertFeedForward, ModelConfig
from infercast.predict.default import make_predictor
from infercast.predict.estimate import basis_of, kind_of
from infercast.predict.ordering import ordering
from infercast.predict.roofline import Predictor
from infercast.records import dataclass

USUAL_BUDGET, SMALL_BUDGET = 8192, 2048
"""Most tokens in a step by default, and the same on small GPUs."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a layout is judged by."""

    concurrency: int = 64
    """Sequences that run at once on all GPUs together."""
    num_input: int = 1024
    num_output: int = 256

    @property
    def longest(self) -> int:
        """Tokens of a whole sequence."""
        return self.num_input + self.num_output


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """One layout on one kind of GPU; times in seconds."""

    gpu: Gpu
    layout: ParallelLayout
    weights: float = 0.0
    """Bytes a GPU."""
    kv_tokens: int = 0
    """Tokens that the caches of all copies hold together."""
    batch: int = 0
    """Sequences of one copy: its share of the load, or what its cache or a step holds."""
    ttft: float = 0.0
    """One prompt alone."""
    ttft_width: float = 0.0
    """Logarithm of the upper end of its 80 % interval, as a factor."""
    tpot: float = 0.0
    """Under the load."""
    tpot_width: float = 0.0
    """The same of this and, upside down, of throughput."""
    output_tokens_per_second: float = 0.0
    problem: str = ""
    """Why it cannot be done."""
    gain: float = inf
    """Logarithm of how many times shorter times can be."""
    source: str = ""
    """What the weakest of the prices that count rests on: one of `SOURCES`."""

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked beside an estimate."""
        return kind_of(self.source)

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """What one GPU contributes."""
        return self.output_tokens_per_second / self.layout.gpus

    @property
    def ttft_interval(self) -> tuple[float, float]:
        """80 % interval of one prompt alone."""
        return self.ttft * self._least(self.ttft_width), self.ttft * exp(self.ttft_width)

    @property
    def tpot_interval(self) -> tuple[float, float]:
        """80 % interval under the load."""
        return self.tpot * self._least(self.tpot_width), self.tpot * exp(self.tpot_width)

    @property
    def output_tokens_per_second_interval(self) -> tuple[float, float]:
        """80 % interval of the throughput."""
        rate = self.output_tokens_per_second
        return rate * exp(-self.tpot_width), rate / self._least(self.tpot_width)

    def _least(self, width: float) -> float:
        """The lower end of a time's interval, as a factor: nothing is below what the hardware allows."""
        return exp(-min(width, self.gain))


def compare_layouts(
    model: ModelSource,
    gpus: Sequence[GpuSource],
    *,
    num_gpus: Iterable[int] = (1, 2, 4, 8),
    load: Load | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    network: str | None = None,
    pcie_topology: str | None = None,
    predictor: str | Predictor = "learned",
) -> tuple[LayoutCost, ...]:
    """Price every layout that the model allows on every kind and number of GPUs, also those that do not fit."""
    load = load or Load()
    for name in ("concurrency", "num_input", "num_output"):
        if getattr(load, name) < 1:
            raise InputError(f"{name} must be at least 1, not {getattr(load, name)}")
    counts = sorted(set(num_gpus))
    if not counts or counts[0] < 1:
        raise InputError(f"numbers of GPUs must be at least 1, not {counts}")
    config = load_model(model, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    if load.longest > config.max_positions:
        raise InputError(
            f"num_input {load.num_input} + num_output {load.num_output} are above the {config.max_positions} positions "
            f"of {config.name}; shorten one of them"
        )
    chosen = make_predictor(predictor) if isinstance(predictor, str) else predictor
    loaded = [each if isinstance(each, Gpu) else load_gpu(each) for each in gpus]
    devices = [with_topology(with_network(each, network), pcie_topology) for each in loaded]
    return tuple(
        _price(config, device, layout, load, chosen)
        for device in devices
        for count in counts
        for layout in valid_layouts(config, count, device)
    )


def valid_layouts(config: ModelConfig, num_gpus: int, gpu: Gpu) -> Iterator[ParallelLayout]:
    """Layouts over exactly so many GPUs that the model's dimensions and the GPUs' links allow."""
    has_experts = any(isinstance(stack.feed_forward, ExpertFeedForward) for stack in config.stacks)
    for tensor in _divisors(num_gpus):
        for pipeline in _divisors(num_gpus // tensor):
            for experts in (False, True) if has_experts and num_gpus > 1 else (False,):
                layout = ParallelLayout(tensor, pipeline, num_gpus // tensor // pipeline, experts=experts)
                try:
                    check_layout(config, layout)
                    check_nodes(layout, gpu)
                except InputError:
                    continue
                yield layout


def _divisors(number: int) -> list[int]:
    return [size for size in range(number, 0, -1) if number % size == 0]


def _price(config: ModelConfig, gpu: Gpu, layout: ParallelLayout, load: Load, predictor: Predictor) -> LayoutCost:
    """One layout: its memory, and its two steps."""
    # Every running sequence needs a token of a step, so no more run than a step has.
    share = min(-(-load.concurrency // layout.data), USUAL_BUDGET)
    budget = None if share <= SMALL_BUDGET else USUAL_BUDGET
    try:
        deployment = deploy(
            config,
            gpu,
            EngineSettings(budget, max_num_seqs=share, max_model_len=load.longest),
            tensor_parallel_size=layout.tensor,
            pipeline_parallel_size=layout.pipeline,
            data_parallel_size=layout.data,
            enable_expert_parallel=layout.experts,
            predictor=predictor,
        )
    except DoesNotFitError as problem:
        return LayoutCost(gpu, layout, problem=str(problem))
    memory = deployment.memory
    batch = min(share, memory.most_sequences(load.longest, chunk=1))
    # Stages work on different parts of the batch; a token passes through all of them.
    part = -(-batch // layout.pipeline)
    decode = price_shape(deployment, decode_shape(part, load.num_input + load.num_output // 2))
    prompts = _prompt_steps(deployment, load.num_input)
    ttft = sum(step.seconds for step in prompts)
    waiting = batch / load.num_output * ttft / min(batch, layout.pipeline)
    tpot = decode.seconds + waiting
    prompt_end, decode_end = (
        step_uncertainty(step, across_nodes=deployment.crosses_nodes) for step in (prompts[0], decode)
    )
    about = widened(prompt_end, decode_end, spread_of(deployment))
    prompt_width, decode_width = (
        _width(prompts[0], about.prompts, about.host),
        _width(decode, about.decodes, about.host),
    )
    return LayoutCost(
        gpu=gpu,
        layout=layout,
        weights=memory.weights,
        kv_tokens=layout.data * memory.num_blocks * memory.kv.shape.block_size // len(memory.kv.shape.windows),
        batch=batch,
        ttft=ttft,
        ttft_width=prompt_width,
        tpot=tpot,
        tpot_width=(waiting * prompt_width + decode.seconds * decode_width) / tpot,
        output_tokens_per_second=layout.data * batch / tpot,
        gain=most_gain(deployment, (decode, *prompts)),
        source=basis_of(
            (kernel.estimate.source, kernel.seconds) for step in (decode, *prompts) for kernel in step.kernels
        ),
    )


def _prompt_steps(deployment: Deployment, num_input: int) -> list[StepCost]:
    """One prompt alone, in as many steps as the engine cuts it into."""
    most = deployment.settings.max_num_batched_tokens
    return [
        price_shape(deployment, prefill_shape(min(most, num_input - done), done)) for done in range(0, num_input, most)
    ]


def _width(step: StepCost, gpu: float, host: float) -> float:
    """How far a step may be off, as a logarithm: its GPU or its host at the upper end, whichever takes longer."""
    upper = max(float(step.gpu.seconds) * exp(gpu) + step.gap_seconds, step.host_seconds * exp(host))
    return log(upper / step.seconds)


def comparison_notes(costs: Iterable[LayoutCost]) -> list[str]:
    """What to know before comparing these GPUs: kernels that are known to be out of order, or were put in order."""
    gpus = {cost.gpu.name: cost.gpu for cost in costs}
    return [*ordering().notes([*gpus.values()])] if len(gpus) > 1 else []


def ranked(costs: Iterable[LayoutCost]) -> list[LayoutCost]:
    """Best first: most output tokens a GPU. Bounds come after all estimates, and what does not fit last."""
    return sorted(
        costs, key=lambda cost: (bool(cost.problem), cost.kind == "bound", -cost.output_tokens_per_second_a_gpu)
    )
