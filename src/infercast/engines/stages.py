"""The stages of a pipeline: what each takes on its GPU, and the cut of the layers that makes the slowest one quickest.

A step is a sum over layers, the embedding, the head with sampling and drafts, and what is sent to the next stage, so
the best cut into contiguous parts is found exactly, by dynamic programming.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from infercast.engines.tables import Table, products_of
from infercast.engines.timer import Corrections, Factor, TimedDeployment
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple, replace
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, step_calls, token_calls
from infercast.models.spec import stage_layers
from infercast.ops import Call
from infercast.predict.board_power import THROTTLED, throttle
from infercast.predict.estimate import exposed_seconds

OUTSIDE = ("embedding", "hyper_head", "final_norm")  # Kernels by tokens that no layer has, in their order


class StepKind(NamedTuple):
    sequences: int
    new_tokens: int  # Of each sequence ...
    context: int  # ... and its tokens after the step
    times: float = 1.0  # How many of these steps are counted

    @property
    def batch(self) -> tuple[Table, Table]:
        return np.full(self.sequences, self.new_tokens), np.full(self.sequences, self.context)


DECODE, PROMPT = StepKind(32, 1, 1024), StepKind(1, 1024, 1024)  # Decoding: where the LM head is weighed against layers


def request_steps(num_input: int, num_output: int, batch: int) -> tuple[StepKind, StepKind]:
    """What a request is for a stage: its prompt alone in a step, and its share of the decode steps of a batch."""
    prompt = StepKind(1, max(2, num_input), max(2, num_input), float(num_input > 0))
    return prompt, StepKind(batch, 1, num_input + num_output // 2 + 1, num_output / batch)


def stage_shares(deployment: TimedDeployment) -> tuple[float, ...]:
    """Each stage's share of a step's GPU time; the LM head and all drafts belong to the last."""
    model, layout, gpu = deployment.model, deployment.layout, deployment.gpu
    if len(model.stacks) > 1 or gpu.stages:
        seconds = stage_seconds(deployment, DECODE)
        return tuple(each / sum(seconds) for each in seconds)
    whole = _seconds(deployment, step_calls(model, layout, *DECODE.batch, sampled=DECODE.sequences), gpu)
    last, drafts = _seconds(deployment, head_calls(model, layout, DECODE.sequences), gpu), _drafts(deployment)
    last = (last + drafts) / (whole + drafts)
    shares = [(1 - last) * count / model.layers for count in stage_layers(model.layers, layout)]
    shares[-1] += last
    return tuple(shares)


def mixture(deployment: TimedDeployment) -> Corrections:
    """How many times as long as on GPUs like the first steps take on those that the stages have."""
    alike: TimedDeployment = replace(deployment, gpu=replace(deployment.gpu, stages=()))  # type: ignore[type-var]
    both = [sum(stage_seconds(deployment, kind)) / sum(stage_seconds(alike, kind)) for kind in (PROMPT, DECODE)]
    return Corrections(prompts=Factor(both[0], 0.0), decodes=Factor(both[1], 0.0))


def stage_seconds(deployment: TimedDeployment, kind: StepKind) -> list[float]:
    costs = stage_costs(deployment, (kind._replace(times=1.0),))
    ends = np.cumsum((0, *stage_layers(deployment.model.layers, deployment.layout)))
    return [float(costs[stage, ends[stage], ends[stage + 1]]) for stage in range(len(costs))]


def stage_costs(deployment: TimedDeployment, work: Sequence[StepKind]) -> Table:
    """Seconds of all steps in ``work`` by stage, its first layer, and the one behind its last; inf without a layer."""
    model, layout, gpu = deployment.model, deployment.layout, deployment.gpu
    last, devices = layout.pipeline - 1, [gpu.at(stage) for stage in range(layout.pipeline)]
    costs = np.zeros((last + 1, model.layers + 1, model.layers + 1))
    for kind in work:
        calls = token_calls(model, layout, kind.sequences * kind.new_tokens)
        sent = next(replace(call, count=1) for call in calls if call.name == "stage_send")
        on = {device: _costs_on(deployment, kind, device) for device in {*devices}}
        for stage, device in enumerate(devices):
            until, before, behind = on[device]
            fixed = behind if stage == last else _sending(deployment, sent, device, devices[stage + 1])
            costs[stage] += kind.times * (until[None, :] - until[:, None] + fixed + (0.0 if stage else before))
        costs[last] += kind.times * (_drafts(deployment) if kind.new_tokens == 1 else 0.0)
    costs[:, np.tri(model.layers + 1, dtype=bool)] = np.inf
    return costs


def _costs_on(deployment: TimedDeployment, kind: StepKind, gpu: Gpu) -> tuple[Table, float, float]:
    """On one GPU: seconds of the layers before each, of the embedding, and of what is behind the last layer."""
    model, alone = deployment.model, replace(deployment.layout, pipeline=1, cut=())
    tokens, order = kind.sequences * kind.new_tokens, np.array(model.layer_stacks)
    whole, inner = token_calls(model, alone, tokens), []
    for stack in model.stacks:
        single = replace(model, stacks=(replace(stack, layers=1),), order=())
        calls = [call for call in token_calls(single, alone, tokens) if call.name not in OUTSIDE]
        inner.append(calls + attention_calls(single, alone, *kind.batch))
    each = np.array([_seconds(deployment, calls, gpu) for calls in inner])[order]
    if kind.new_tokens > 1:  # the power limit, as the whole model feels it
        slower = throttle(gpu, float(products_of(whole)), float(each.sum()))
        each = np.array([_seconds(deployment, calls, gpu, slower) for calls in inner])[order]
    before, *behind = [call for call in whole if call.name in OUTSIDE]
    behind += head_calls(model, alone, kind.sequences)
    return np.cumsum([0.0, *each]), _seconds(deployment, [before], gpu), _seconds(deployment, behind, gpu)


def _sending(deployment: TimedDeployment, sent: Call, *ends: Gpu) -> float:
    """To the next stage: between different GPUs over the network, else over PCIe, as the slower of both has it."""
    if ends[0].name != ends[1].name:
        sent = replace(sent, op=replace(sent.op, gpus=2))  # type: ignore[type-var]
        ends = tuple(replace(at, gpus_per_node=2 - bool(at.network_bandwidth), nvlink_bandwidth=0.0) for at in ends)
    return max(_seconds(deployment, [sent], end) for end in ends)


def _seconds(deployment: TimedDeployment, calls: list[Call], gpu: Gpu, slower: float = 1.0) -> float:
    each = [(call, exposed_seconds(call, deployment.predictor.seconds(call.op, gpu))) for call in calls]
    return sum(float(np.ravel(one)[0]) * (slower if call.op.family in THROTTLED else 1.0) for call, one in each)


def _drafts(deployment: TimedDeployment) -> float:
    drafting, layout = deployment.drafting, deployment.layout
    if drafting is None or drafting.draft is None:
        return 0.0
    draft, alone, many = drafting.draft, replace(layout, tensor=drafting.tensor, pipeline=1), DECODE.sequences
    calls = [
        *draft.pass_calls(alone, many), *draft.attention_calls(alone, *DECODE.batch), *draft.head_calls(alone, many),
    ]  # fmt: skip
    return drafting.passes * _seconds(deployment, calls, deployment.gpu.at(layout.pipeline - 1))


def best_cut(costs: Table, usual: Sequence[int]) -> tuple[int, ...]:
    """Layers of each stage: of the cuts with the quickest slowest stage, the one nearest to the usual; empty: none."""
    slowest, _ = _cheapest(costs, np.maximum)
    if np.isinf(slowest):
        return ()
    layers = np.arange(costs.shape[1])
    off = (layers[None, None, :] - layers[None, :, None] - np.array(usual)[:, None, None]) ** 2.0
    return _cheapest(np.where(costs <= slowest * (1 + 1e-9), off, np.inf), np.add)[1]


def _cheapest(costs: Table, joined: Callable[[Table, Table], Table]) -> tuple[float, tuple[int, ...]]:
    best, starts = costs[0, 0], []
    for stage in costs[1:]:
        ways = joined(best[:, None], stage)
        starts.append(ways.argmin(axis=0))
        best = ways.min(axis=0)
    ends = [costs.shape[1] - 1]
    for start in reversed(starts):
        ends.insert(0, int(start[ends[0]]))
    return float(best[-1]), tuple(np.diff([0, *ends]).tolist())


def cut_layout(deployment: TimedDeployment, partition: str, work: Sequence[StepKind] = ()) -> ParallelLayout:
    """The layout with layers cut into stages: ``20,20,21,19``, or ``auto``, the best cut for ``work`` that fits."""
    model, layout = deployment.model, replace(deployment.layout, cut=())
    usual, parts = stage_layers(model.layers, layout), partition.split(",")
    if layout.pipeline == 1:
        raise InputError(f"pp_layer_partition {partition} needs a pipeline_parallel_size of 2 or more")
    cut = tuple(int(part) if part.strip().isdecimal() and len(part) < 9 else 0 for part in parts)
    if partition == "auto":
        cut = _balanced_cut(deployment, usual, work or request_steps(1024, 256, 32))
    elif len(cut) != layout.pipeline or sum(cut) != model.layers or min(cut) < 1:
        raise InputError(
            f"pp_layer_partition {partition} must be auto, or a number of layers above 0 for each of {layout.pipeline} "
            f"stages, {model.layers} in all, such as {','.join(map(str, usual))}"
        )
    return replace(layout, cut=() if cut == usual else cut)


def _balanced_cut(deployment: Any, usual: tuple[int, ...], work: Sequence[StepKind]) -> tuple[int, ...]:
    engine, settings, layout = deployment.engine, deployment.settings, deployment.layout
    layers, last = deployment.model.layers, layout.pipeline - 1
    longest = settings.max_model_len, engine.tokens_under_way(settings, layout)

    def is_too_large(stage: int, start: int, end: int) -> bool:
        held = np.bincount([0, last, stage], [start, layers - end, end - start], last + 1).astype(int)
        placed = deployment.model, replace(layout, cut=tuple(held.tolist())), deployment.gpu, settings, stage
        return not engine.plan_memory(*placed).most_sequences(*longest)

    cut = best_cut(costs := stage_costs(deployment, work), usual)
    ends = np.cumsum((0, *cut)).tolist()
    if not any(is_too_large(stage, ends[stage], ends[stage + 1]) for stage in range(len(cut))):
        return cut
    for stage in range(layout.pipeline):
        for start in range(layers) if stage else (0,):
            possible = [*range(start + 1, layers + 1)] if stage < last else [layers]
            fitting = bisect_left(possible, True, key=partial(is_too_large, stage, start))  # more layers need more
            costs[stage, start, possible[fitting:]] = np.inf
    return best_cut(costs, usual) or usual
