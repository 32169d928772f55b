"""Models, what fits, a deployment, its workload and its speculative decoding, as tables and as plain data."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from infercast.engines.base import Deployment, Engine, engine_of
from infercast.engines.memory import KvLayout
from infercast.engines.speculation import Drafting
from infercast.forecast.option_table import OPTIONS, OURS_ALONE
from infercast.forecast.system import BOTH
from infercast.models import spec
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config, bundled_name
from infercast.report.terminal import Facts, Field, FittingTable, Grid, Printable, Renderers, Section, pick, styled
from infercast.serve.cache.blocks import KvShape
from infercast.serve.workload.request import Workload
from infercast.units import format_bytes, format_count, format_many, format_percent, format_seconds

if TYPE_CHECKING:
    from infercast.forecast.memory import Fit
    from infercast.forecast.run import DraftRun

ASSUMED = "assumed; say what you see with --acceptance"


def layout_dict(layout: ParallelLayout) -> dict[str, Any]:
    sizes = "tensor_parallel_size=tensor pipeline_parallel_size=pipeline data_parallel_size=data"
    return pick(layout, f"{sizes} enable_expert_parallel=experts")


def render_fit(fit: Fit) -> list[Printable]:
    model, memory = fit.model, fit.memory
    engine = engine_of(fit.settings)
    title = f"{model.name} ({model.weights.name}) on {fit.layout.gpus} x {fit.gpu.title}, {engine.name}"
    if fit.layout.gpus != fit.layout.tensor or fit.layout.experts:
        title += f", {fit.layout}"
    rows = [(name, format_bytes(size), format_percent(size / memory.total)) for name, size in _parts(fit)]
    shape = memory.kv.shape
    answers = [
        ("parameters", format_count(spec.parameter_count(model))),
        ("KV cache of a token", f"{_token_cost(memory.kv)} ({model.cache_dtype})"),
        ("KV blocks", f"{memory.num_blocks:,} of {tokens_each(shape)}, {format_bytes(memory.kv.block_bytes)} each"),
        ("longest sequence", f"{fit.longest_sequence:,} tokens"),
        ("most sequences", f"{fit.most_sequences:,} of {fit.context:,} tokens"),
    ]
    if not memory.kv.block_bytes:
        answers[1:] = [("KV cache", "none: a prompt is computed in one step"), answers[3]]
    if shape.num_tables > 1:
        answers.insert(3, ("groups of layers", f"{shape.num_tables}: {_groups(shape)}"))
    if fit.layout.pipeline > 1:
        answers.append(("stage", f"the one of {fit.layout.pipeline} with least room; all have as many blocks"))
        answers.append(("most weights", f"{format_bytes(fit.most_weights)} per GPU, of all stages"))
    stored = spec.weight_bytes(model).total / 2e9
    loaded = (
        f"{format_seconds(fit.load_seconds)} from the host's memory, {format_seconds(stored)} from a store of 2 GB/s"
    )
    answers.append(("loading weights", loaded))
    answers += [("note", note) for note in model.notes]
    answers += release_rows(engine)
    name = engine.bounds[2]
    answers.append(("verdict", fit.problem or f"fits; {name} {fit.settings.max_model_len:,}"))
    divided = Grid(("memory of one GPU", "size", "of total"), rows)
    return [Section(title, divided), Section("What it holds", Facts(answers))]


def release_rows(engine: Engine) -> list[tuple[str, str]]:
    said = f"rules of {engine.name} are not known: those of {engine.rules_from} stand in, intervals are wider"
    return [("release", said)] if engine.rules_from else []


def fit_dict(fit: Fit) -> dict[str, Any]:
    engine = engine_of(fit.settings)
    memory, is_plain = fit.memory, fit.layout.gpus == fit.layout.tensor and not fit.layout.experts
    return {
        **{"engine": engine.name, "engine_rules": engine.rules_from or engine.name},
        **pick(fit, model="model.name", gpu="gpu.name", tensor_parallel_size="layout.tensor"),
        **({} if is_plain else {**layout_dict(fit.layout), "weights_of_fullest_stage": fit.most_weights}),
        **pick(fit, weights="model.weights.name", kv_cache_dtype="model.cache_dtype"),
        "parameters": spec.parameter_count(fit.model),
        "bytes": {name.replace(" ", "_"): size for name, size in _parts(fit)},
        **pick(
            memory, total_bytes="total", kv_bytes_per_token="kv.first_token_bytes",
            kv_bytes_per_token_beyond_windows="kv.token_bytes", num_gpu_blocks="num_blocks",
            block_size="kv.shape.block_size", block_bytes="kv.block_bytes", state_groups="kv.shape.num_state_groups",
            state_bytes_per_sequence="kv.state_bytes",
        ),
        "block_sizes": list(memory.kv.shape.of_tokens.sizes),
        "windows": list(memory.kv.shape.of_tokens.windows),
        **pick(fit, "longest_sequence most_sequences context load_seconds", max_model_len="settings.max_model_len"),
        "fits": not fit.problem,
        "problem": fit.problem or None,
        "assumed": fit.model.assumed or None,
        "notes": list(fit.model.notes),
    }  # fmt: skip


def tokens_each(shape: KvShape) -> str:
    sizes = sorted(set(shape.sizes))
    return "1 token" if sizes == [1] else f"{' or '.join(map(str, sizes))} tokens"


def _token_cost(kv: KvLayout) -> str:
    windows = sorted({window for window in kv.shape.of_tokens.windows if window})
    cost = f"{format_bytes(kv.first_token_bytes)} per GPU"
    if kv.state_bytes:
        cost += f", and {format_bytes(kv.state_bytes)} of a sequence for states"
    if not windows:
        return cost
    ends = " and ".join(f"{window:,}" for window in windows)
    rest = f"{format_bytes(kv.token_bytes)} from there on" if kv.token_bytes else "nothing more from there on"
    return f"{cost} up to {ends} tokens, {rest}"


def _groups(shape: KvShape) -> str:
    tokens, words = shape.of_tokens, []
    if shape.num_state_groups:
        words.append(f"{shape.num_state_groups} x states")
    for (window, size), count in Counter(zip(tokens.windows, tokens.sizes, strict=True)).items():
        kept = "all tokens" if window == 0 else f"chunks of {window:,}" if shape.chunked else f"last {window:,}"
        times = f"{count} x " if count > 1 else ""
        words.append(f"{times}{kept}" + (f" in blocks of {size}" if shape.block_sizes else ""))
    return ", ".join(words)


def _parts(fit: Fit) -> list[tuple[str, float]]:
    memory = fit.memory
    used = memory.needed + memory.kv_bytes
    return [
        ("weights", memory.weights), ("activations", memory.activations), ("CUDA graphs", memory.graphs),
        ("libraries", memory.libraries), *([("recurrent states", memory.states)] if memory.states else []),
        ("KV cache", float(memory.kv_bytes)), ("left free", max(0.0, memory.total - used)),
    ]  # fmt: skip


def drafting_words(drafting: Drafting) -> str:
    acceptance = drafting.acceptance
    own = f" by {drafting.draft.config.name}" if drafting.draft is not None else ""
    source = f" ({acceptance.source}{f'; {ASSUMED}' if acceptance.is_assumed else ''})"
    return f"{drafting.title}{own}, {drafting.num_drafts} a step, acceptance length {acceptance.length:.2f}{source}"


def drafting_dict(drafting: Drafting | None) -> dict[str, Any] | None:
    if drafting is None:
        return None
    acceptance = drafting.acceptance
    return {
        **pick(drafting, "method num_speculative_tokens=num_drafts draft=draft.config.name"),
        "acceptance_rates": list(acceptance.rates),
        **pick(acceptance, "acceptance_length=length acceptance_source=source acceptance_is_assumed=is_assumed"),
        "note": drafting.note or None,
    }


def draft_run_dict(found: DraftRun | None) -> dict[str, Any] | None:
    """The same as plain data, by the words of engines' metrics."""
    if found is None:
        return None
    counted = (
        "num_drafts num_draft_tokens num_accepted_tokens=num_accepted num_accepted_tokens_per_pos=accepted_by_position "
        "mean_acceptance_length=acceptance_length draft_acceptance_rate=acceptance_rate "
        "acceptance_rate_per_pos=rates_by_position"
    )
    rates = "drafted_tokens_per_s=drafted_per_second accepted_tokens_per_s=accepted_per_second decode_gpu_shares=parts"
    return pick(found.counts, counted) | pick(found, rates)


def flag_words(options: Mapping[str, Any]) -> list[str]:
    """Words of a command line, from flags without dashes; True stands for a flag without a value."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in options.items()}
    return [str(word) for name in values for word in (f"--{name}", *values[name]) if word is not True]


def repository_of(model: str) -> str:
    """The name that an engine loads a model by: that on Hugging Face, where it is known."""
    if bundled_name(model) is None:
        return model
    source = str(bundled_config(model)["infercast"].get("source", ""))
    found = re.search(r"huggingface\.co/([\w.-]+/[\w.-]+)", source)
    return found[1] if found else model


def serve_command(deployment: Deployment, role: str = BOTH) -> str:
    """The command that starts the engine as it was simulated; ``role`` names one of two pools."""
    engine, model, layout, settings = deployment.engine, deployment.model, deployment.layout, deployment.settings
    usual = engine.resolve(engine.settings(), model, layout, deployment.gpu)
    names = {*engine.flags.settings.values(), *OPTIONS, *engine.shown}  # flags of the engine, by its names or ours
    names = names - OURS_ALONE | {*engine.commands.dotted}
    flags = [each.name for each in fields(engine.settings_type) if each.name in names]
    changed = {name: given for name in flags if (given := getattr(settings, name)) != getattr(usual, name)}
    changed |= {"scheduling_policy": "priority"} if "scheduling_policy" in changed else {}  # of whatever clients send
    name = None if bundled_name(model.name) is None else engine.commands.on_the_fly.get(model.weights.name)
    is_own = name is not None and "quantization_config" in bundled_config(model.name)
    cache = model.cache_dtype if model.cache_dtype == "fp8" else "auto"
    options = engine.options(layout, None if is_own else name, cache, changed)
    joined = engine.commands.disaggregated
    options |= {joined["flag"]: joined[role]} if role in joined else {}
    options |= engine.commands.pooling if model.pools else {}
    cut = f"{engine.commands.layer_partition}={','.join(map(str, layout.cut))} " if layout.cut else ""
    return cut + shlex.join([*engine.commands.serve, repository_of(model.name), *flag_words(options)])


def deployment_facts(deployment: Deployment) -> list[tuple[str, str]]:
    model, gpu, memory = deployment.model, deployment.gpu, deployment.memory
    shape, layout, drafting = memory.kv.shape, deployment.layout, deployment.drafting
    unfitted = " (default; not fitted to your machine)" if deployment.has_default_host else ""
    rows = [
        ("model", f"{model.name} ({format_count(spec.parameter_count(model))} parameters, {model.layers} layers)"),
        ("weights", f"{model.weights.name}, {format_bytes(memory.weights)} per GPU"),
        ("GPU", f"{deployment.layout.gpus} x {gpu.title} ({gpu.name})"),
        (
            "KV cache",
            f"{memory.num_blocks:,} blocks of {tokens_each(shape)}, {format_bytes(memory.kv_bytes)}, "
            f"{model.cache_dtype}",
        ),
        ("engine", f"{deployment.engine.name}: {deployment.engine.describe(deployment.settings)}"),
        *([("", deployment.engine.note)] if deployment.engine.note else []),
        *([] if drafting is None else [("drafts", drafting_words(drafting))]),
        *([("", drafting.note)] if drafting is not None and drafting.note else []),
        ("host", f"{deployment.host.title}{unfitted}"),
        ("clients", "over HTTP to the API server" if deployment.over_http else "in one program with the engine"),
        ("kernel latencies", deployment.predictor.describe(gpu)),
        *([("calibration", f"{deployment.corrections}")] if deployment.corrections is not None else []),
    ]
    if layout.pipeline > 1 or layout.data > 1 or layout.experts:  # the number of GPUs does not say it all
        rows.insert(3, ("layout", _layout(deployment)))
    rows += [("note", note) for note in model.notes]
    return rows


def memory_words(deployment: Deployment) -> str:
    memory, each = deployment.memory, " per GPU" if deployment.layout.gpus > 1 else ""
    held = f"{format_bytes(memory.kv_bytes)} of KV cache ({memory.num_tokens:,} tokens)"
    held = held if memory.kv_bytes else "no KV cache"
    return f"it fits: {format_bytes(memory.weights)} of weights and {held}{each}"


def _layout(deployment: Deployment) -> str:
    layout = deployment.layout
    parts = [f"{layout.tensor} GPUs share every layer"] if layout.tensor > 1 else []
    parts += [f"{layout.pipeline} stages"] if layout.pipeline > 1 else []
    parts += [f"{layout.data} replicas"] if layout.data > 1 else []
    if layout.experts:
        parts.append(f"experts spread over {layout.expert_gpus} GPUs")
    elif deployment.shares_experts:
        parts.append(f"every expert split over {layout.gpus_per_expert} GPUs")
    return f"{layout}: {', '.join(parts)}"


def workload_dict(workload: Workload) -> dict[str, Any]:
    cut = pick(workload, "truncated=num_truncated skipped=num_skipped")
    return {"description": workload.description, "requests": len(workload.requests), **cut}


def render_workload(workload: Workload) -> list[Printable]:
    requests = workload.requests
    tokens = [sum(each) for each in ((one.num_input for one in requests), (one.num_output for one in requests))]
    rows = [("requests", f"{len(requests):,}"), ("tokens", "{:,} input, {:,} output".format(*tokens))]
    if workload.concurrency is not None:
        rows.append(("clients", f"{workload.concurrency:,} in a closed loop"))
    return [Facts(rows)]


def deployment_dict(deployment: Deployment) -> dict[str, Any]:
    model, memory = deployment.model, deployment.memory
    return {
        "engine": deployment.engine.name, "engine_rules": deployment.engine.rules_from or deployment.engine.name,
        "engine_note": deployment.engine.note or None,
        **pick(model, model="name", architecture="architecture", weights="weights.name", kv_cache_dtype="cache_dtype"),
        "parameters": spec.parameter_count(model), "gpu": deployment.gpu.name, **layout_dict(deployment.layout),
        **pick(memory, weight_bytes="weights", num_gpu_blocks="num_blocks", block_size="kv.shape.block_size"),
        **{name: getattr(deployment.settings, name) for name in deployment.engine.shown},
        "speculation": drafting_dict(deployment.drafting), "api_server": deployment.over_http,
        "assumed": model.assumed or None, "notes": list(model.notes),
    }  # fmt: skip


ENDINGS = "For(CausalLM|ConditionalGeneration)$"  # of names of architectures
MODEL_FIELDS: tuple[Field[spec.ModelConfig], ...] = (
    Field("", lambda model: model.name, "name"),
    Field("", lambda model: re.sub(ENDINGS, "", model.architecture), "architecture", rank=4, words=True),
    Field("", lambda model: format_count(spec.parameter_count(model)), "total"),
    Field("", lambda model: format_count(spec.active_parameter_count(model)), "active"),
    Field("", lambda model: f"{model.layers}", "layers", rank=3),
    Field("", lambda model: model.stacks[0].mixer.label, "heads", rank=2, words=True),
    Field("", lambda model: model.weights.name, "weights", rank=1, words=True),
)


def render_models(models: Iterable[spec.ModelConfig]) -> list[Printable]:
    legend = "active: parameters one token uses. heads: query/key-value x width; of a latent (MLA); of a state."
    return [FittingTable(MODEL_FIELDS, list(models)), styled(legend, style="dim")]


def render_model(model: spec.ModelConfig) -> list[Printable]:
    weights = spec.weight_bytes(model)
    parameters, active = (format_count(count(model)) for count in (spec.parameter_count, spec.active_parameter_count))
    rows = [
        ("architecture", model.architecture), ("parameters", f"{parameters}, {active} per token"),
        ("weights", f"{model.weights.name}, {format_bytes(weights.total)}"), ("hidden size", f"{model.hidden:,}"),
        ("vocabulary", f"{model.vocabulary:,}{' (head shares the embedding)' if model.tied_embedding else ''}"),
        ("positions", f"{model.max_positions:,}"),
        *([("layer inputs", f"{model.layer_inputs:,} values a token, from a table")] if model.layer_inputs else []),
        ("KV cache", model.cache_dtype),
        *(
            (f"{stack.layers} layers", f"{stack.mixer.description}; {stack.feed_forward.description}")
            for stack in model.stacks
        ),
        *_prediction_rows(model), *(("note", note) for note in model.notes),
    ]  # fmt: skip
    return [Section(model.name, Facts(rows))]


def _prediction_rows(model: spec.ModelConfig) -> list[tuple[str, str]]:
    part = model.prediction
    if part is None:
        return []
    halves = [half for stack in part.stacks for half in (stack.mixer, stack.feed_forward) if not half.is_empty]
    counted = format_count(spec.prediction_parameter_count(model))
    words = "; ".join(half.description for half in halves)
    return [("prediction", f"{format_many(part.heads, 'head')}, {counted} parameters: {words}")]


def model_dict(model: spec.ModelConfig) -> dict[str, Any]:
    counts = {"parameters": spec.parameter_count(model), "active_parameters": spec.active_parameter_count(model)}
    values = asdict(model)
    values["stacks"] = _named_stacks(values["stacks"])
    if values["prediction"]:
        values["prediction"]["stacks"] = _named_stacks(values["prediction"]["stacks"])
        counts["prediction_parameters"] = spec.prediction_parameter_count(model)
    return {**values, **counts, "weight_bytes": spec.weight_bytes(model).total}


def _named_stacks(stacks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON keeps the name `attention` for every mixer."""
    names = {"mixer": "attention"}
    return [{names.get(name, name): value for name, value in stack.items()} for stack in stacks]


RENDERERS = {
    "Deployment": Renderers(deployment_dict, lambda deployment: [Facts(deployment_facts(deployment))]),
    "Fit": Renderers(fit_dict, render_fit),
    "ModelConfig": Renderers(model_dict, render_model),
    "Workload": Renderers(workload_dict, render_workload),
}
