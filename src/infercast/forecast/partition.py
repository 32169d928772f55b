"""What the stages of a pipeline take, cut as the engine does and by estimated time, and what the better cut saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from infercast.engines.base import Deployment
from infercast.engines.settings import Settings
from infercast.engines.stages import StepKind, cut_layout, request_steps, stage_seconds
from infercast.errors import DoesNotFitError, InputError, require
from infercast.forecast.deploy import GpuSource, ModelSource, deploy
from infercast.lazy_classes import replace
from infercast.models.spec import stage_layers
from infercast.shown import ResultMixin


class Cut(NamedTuple):
    """By stage; times are of its GPU, in seconds, without the host."""

    layers: tuple[int, ...]
    request_seconds: list[float]  # Both steps below, decode steps by the request's share of the batch
    prefill_seconds: list[float]  # The step of a prompt
    decode_seconds: list[float]  # A decode step
    weight_bytes: list[float]
    kv_tokens: list[int]  # Room of the KV cache; an engine takes that of the stage with least
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class Partition(ResultMixin):
    """A pipeline under the engine's own cut and another one."""

    deployment: Deployment
    usual: Cut  # The engine's own
    cut: Cut  # The one that was asked for, or the best
    num_input: int  # Tokens of a prompt
    num_output: int  # Tokens of an answer
    batch: int  # Sequences of a decode step

    @property
    def saved_share(self) -> float:
        """Share of the slowest stage's time, which paces a full pipeline, that the cut saves."""
        return 1.0 - max(self.cut.request_seconds) / max(self.usual.request_seconds)

    def _words(self) -> str:
        cuts = [",".join(map(str, each.layers)) for each in (self.cut, self.usual)]
        where = f"{self.deployment.model.name} on {self.deployment.gpu.title}, {self.deployment.layout}"
        return f"{where}: {cuts[0]} saves {self.saved_share:.1%} against {cuts[1]}"

    def document(self) -> dict[str, Any]:
        deployment, about, found = self.deployment, dict[str, Any](), dict[str, Any]()
        stages: list[dict[str, Any]] = [{"gpu": deployment.gpu.at(at).name} for at in range(len(self.cut.layers))]
        for of, cut in (("default_", self.usual), ("", self.cut)):
            slowest, busy = max(cut.request_seconds), sum(cut.request_seconds) / len(stages)
            found |= {
                f"{of}partition": ",".join(map(str, cut.layers)), f"{of}slowest_stage_seconds": slowest,
                f"{of}requests_per_second": 1.0 / slowest, f"{of}output_tokens_per_second": self.num_output / slowest,
                f"{of}bubble_share": 1.0 - busy / slowest, f"{of}kv_tokens": min(cut.kv_tokens), f"{of}fits": cut.fits,
            }  # fmt: skip
            for name in Cut._fields[: 2 if of else -1]:
                for stage, value in zip(stages, getattr(cut, name), strict=True):
                    stage[f"{of}{name}"] = value
        about |= {"model": deployment.model.name, "engine": deployment.engine.name, "layout": str(deployment.layout)}
        about |= {"input_len": self.num_input, "output_len": self.num_output, "batch": self.batch}
        setting = f"{deployment.engine.commands.layer_partition}={found['partition']}"
        return about | found | {"saved_time_share": self.saved_share, "set": setting, "stages": stages}


def estimate_partition(
    model: ModelSource,
    gpu: GpuSource,
    settings: Settings | None = None,
    *,
    input_len: int = 1024,
    output_len: int = 256,
    batch: int = 32,
    pp_layer_partition: str | None = None,
    **options: Any,
) -> Partition:
    """Cut a model into pipeline stages so that the slowest is quickest, or as ``pp_layer_partition`` says.

    What counts is the time that a stage spends on a request: its prompt of ``input_len`` tokens, and ``output_len``
    decode steps that it shares with a ``batch``; 0 leaves one of both out. ``options`` are those of `deploy`.
    """
    for name, value, least in (("input_len", input_len, 0), ("output_len", output_len, 0), ("batch", batch, 1)):
        require(least <= value <= 1 << 20, name, f"be from {least} to {1 << 20:,}", value)
    if not input_len + output_len or options.get("pipeline_parallel_size", 1) < 2:
        raise InputError("a partition needs tokens of requests, and a pipeline_parallel_size of 2 or more")
    asked = "auto" if pp_layer_partition is None else pp_layer_partition
    try:
        found = deploy(model, gpu, settings, **options)
    except DoesNotFitError:  # perhaps cut otherwise
        found = deploy(model, gpu, settings, pp_layer_partition=asked, **options)
    longest, most = found.settings.max_model_len, found.settings.max_num_seqs
    if input_len + output_len > longest or batch > most:
        asked_for = f"input_len {input_len}, output_len {output_len} or batch {batch}"
        raise InputError(f"{asked_for} is above what the engine takes, {longest} tokens and {most} sequences")
    work = request_steps(input_len, output_len, batch)
    layouts = replace(found.layout, cut=()), cut_layout(found, asked, work)
    usual, cut = (_cut(replace(found, layout=layout), work) for layout in layouts)
    return Partition(found, usual, cut, input_len, output_len, batch)


def _cut(deployment: Deployment, work: tuple[StepKind, StepKind]) -> Cut:
    engine, settings, layout, model = deployment.engine, deployment.settings, deployment.layout, deployment.model
    prompt, decode = (stage_seconds(deployment, kind) for kind in work)
    whole = [work[0].times * one + work[1].times * other for one, other in zip(prompt, decode, strict=True)]
    memories = [engine.plan_memory(model, layout, deployment.gpu, settings, at) for at in range(layout.pipeline)]
    held = [each.weights for each in memories], [each.num_tokens for each in memories]
    chunk = engine.tokens_under_way(settings, layout)
    fits = all(each.most_sequences(settings.max_model_len, chunk) for each in memories)
    return Cut(stage_layers(model.layers, layout), whole, prompt, decode, *held, fits)
