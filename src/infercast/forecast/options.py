"""Options by name: a model with a GPU, a load by its rate, a trace by its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from infercast.engines.base import Deployment
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import DeployOptions, GpuSource, ModelOptions, ModelSource, deploy
from infercast.forecast.option_table import OPTIONS, THINK, TOOL_TIME, TURN_LEN
from infercast.models.spec import ModelConfig
from infercast.serve import Workload
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN, LengthDistribution, parse_lengths
from infercast.serve.workload.request import without_too_long
from infercast.serve.workload.synthetic import CLIPPED, ended, synthetic_workload


def random_requests(given: Mapping[str, Any], longest: int, default_count: int | None = None) -> Workload:
    """Requests by options of these names, with default lengths clipped to what the model allows.

    Without ``num_requests`` there are ``default_count``, or the first ones of as many as a steady result takes.
    """
    arrival = given["arrival"]
    rates = given["rate"], given["concurrency"], given.get("session_rate")
    if not any(each is not None for each in rates) and arrival != "burst":
        raise InputError("say how requests arrive: --rate R, --concurrency N, --arrival burst or --trace FILE")
    if given.get("session_rate") is not None and given.get("turns") is None:
        raise InputError("--session-rate needs --turns, how many turns a session has, or --trace with conversations")
    prefix_length = given["prefix_len"]
    inputs, outputs, is_clipped = lengths_within(given["input_len"], given["output_len"], longest - prefix_length)
    common: dict[str, Any] = {
        "arrival": arrival,
        "rate": given["rate"],
        "count": default_count if given["num_requests"] is None else given["num_requests"],
        "concurrency": given["concurrency"],
        "input_lengths": inputs,
        "output_lengths": outputs,
        "burstiness": given["burstiness"],
        "prefix_length": prefix_length,
        "prefix_groups": given["prefix_groups"],
        "seed": given["seed"],
    }
    in_turns = given.get("turns") is not None
    workload = _sessions(given, common) if in_turns else synthetic_workload(**common)
    if is_clipped:
        words = f"{workload.description}{CLIPPED}{longest:,}"
        workload = replace(workload, description=words)
    return without_too_long(workload, longest) if given.get("too_long") == "skip" else workload


def _sessions(given: Mapping[str, Any], common: dict[str, Any]) -> Workload:
    """Random sessions by these options and by ``common`` ones, which other random requests have, too."""
    from infercast.serve.workload.synthetic import session_workload  # noqa: PLC0415 - most runs have none

    return session_workload(
        **common,
        session_rate=given["session_rate"],
        turns=given["turns"],
        turn_lengths=given.get("turn_len") or TURN_LEN,
        think=given.get("think") or THINK,
        tool_share=given.get("tool_share", 0.0),
        tool_time=given.get("tool_time") or TOOL_TIME,
        tool_lengths=given.get("tool_len"),
    )


def taken_by(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of these options, those that a function takes as keywords, but for the engine, which its settings name."""
    known = {*(function.__kwdefaults__ or ()), *ModelOptions.__annotations__} - {"engine"}
    return {name: value for name, value in given.items() if name in known}


def lengths_within(input_len: str, output_len: str, room: int) -> tuple[LengthDistribution, LengthDistribution, bool]:
    """Lengths of prompts and answers, and whether the default ones were clipped to what the model allows."""
    inputs, outputs = parse_lengths(input_len, "--input-len"), parse_lengths(output_len, "--output-len")
    if inputs.maximum + outputs.maximum <= room:
        return inputs, outputs, False
    asked_for = inputs, outputs
    if output_len == OUTPUT_LEN:
        outputs = _clipped(outputs, room // 4 if input_len == INPUT_LEN else room - inputs.maximum)
    if input_len == INPUT_LEN:
        inputs = _clipped(inputs, room - outputs.maximum)
    return inputs, outputs, (inputs, outputs) != asked_for


def _clipped(lengths: LengthDistribution, most: int) -> LengthDistribution:
    """The same up to ``most`` tokens; where there is no room at all they stay, and requests are found too long."""
    if most < 1:
        return lengths
    return lengths._replace(minimum=min(lengths.minimum, most), maximum=min(lengths.maximum, most))


Deployable = Deployment | ModelSource
"""A deployment, or a model that is deployed with ``gpu`` and the options of `deploy`."""
Servable = Workload | str | PathLike[str] | None
"""A workload, the file of a trace, or None: random requests by ``rate`` or ``concurrency``."""


class Load(TypedDict, total=False):
    """What `synthetic_workload` takes, in its units: requests per second, tokens."""

    arrival: str
    rate: float
    count: int
    concurrency: int
    input_lengths: LengthDistribution | str | int
    output_lengths: LengthDistribution | str | int
    burstiness: float
    prefix_length: int
    prefix_groups: int
    declared_length: int
    ignore_eos: bool
    seed: int


class Asked(Load, DeployOptions, total=False):
    """Both."""


PYTHON_NAMES = {option.spelled[2:].replace("-", "_"): option.python or option.name for option in OPTIONS.values()}
"""Keywords by what the command line calls them."""
OF_TRACES = {"rate", "count", "declared_length", "ignore_eos"}
"""What can be changed of a trace."""


def asked_run(
    deployment: Deployable, workload: Servable, gpu: GpuSource | None, options: Mapping[str, Any]
) -> tuple[Deployment, Workload]:
    """The deployment and the workload that a caller means."""
    _check_options(options, Asked.__annotations__)
    load = {name: value for name, value in options.items() if name in Load.__annotations__}
    others = {name: value for name, value in options.items() if name not in load}
    found = asked_deployment(deployment, gpu, others)
    return found, asked_workload(workload, load, found.settings.max_model_len)


def asked_deployment(deployment: Deployable, gpu: GpuSource | None, options: Mapping[str, Any]) -> Deployment:
    """A deployment as it is, or a model on a GPU."""
    if isinstance(deployment, Deployment):
        given = [*(["gpu"] if gpu is not None else []), *options]
        if given:
            raise InputError(f"{given[0]} is an option of deploy, and {deployment!r} is deployed already; leave it out")
        return deployment
    if not isinstance(deployment, (str, Path, Mapping, ModelConfig)):
        raise InputError(
            f"a simulation needs a deployment or a model with gpu=..., not {short(deployment)}; "
            "infercast.deploy(model, gpu) makes one"
        )
    if gpu is None:
        raise InputError(
            f"{short(deployment)} is a model, which needs a GPU to run on: gpu='h200-sxm', say "
            "(infercast.gpu_names() lists them), or infercast.deploy(model, gpu)"
        )
    _check_options(options, DeployOptions.__annotations__)
    return deploy(deployment, gpu, **options)


def _check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    for name in options:
        if name in known:
            continue
        here = PYTHON_NAMES.get(name, "")
        hint = "; an engine's own settings go into settings=infercast.EngineSettings(...)"
        raise UnknownNameError("option", name, known, hint, near=[here] if here in known else None)


def asked_workload(workload: Servable, load: Mapping[str, Any], longest: int) -> Workload:
    """A workload as it is, the requests of a trace, or random ones of at most ``longest`` tokens."""
    if workload is None:
        return _random(dict(load), longest)
    if isinstance(workload, (str, PathLike)):
        return _trace(workload, load)
    if not isinstance(workload, Workload):
        raise InputError(
            f"a simulation needs a workload, not {short(workload)}; infercast.synthetic_workload, read_trace and "
            "workload_from_requests make one"
        )
    if load:
        raise InputError(
            f"{next(iter(load))} says how requests are made, and there is a workload already; leave it out"
        )
    return workload


def _random(load: dict[str, Any], longest: int) -> Workload:
    if load.get("rate") is None and load.get("concurrency") is None and load.get("arrival") != "burst":
        raise InputError("say how requests arrive: rate=12 per second, concurrency=32 clients, or a workload")
    asked = load.get("input_lengths", INPUT_LEN), load.get("output_lengths", OUTPUT_LEN)
    if all(isinstance(each, (str, int)) for each in asked):
        room = longest - load.get("prefix_length", 0)
        load["input_lengths"], load["output_lengths"], _ = lengths_within(str(asked[0]), str(asked[1]), room)
    return synthetic_workload(**load)


def _trace(path: str | PathLike[str], load: Mapping[str, Any]) -> Workload:
    from infercast.serve.workload.synthetic import scaled  # noqa: PLC0415 - most runs replay no trace
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415

    for name in load:
        if name not in OF_TRACES:
            raise InputError(f"{name} has no meaning with a trace, which brings its own; rate and count change it")
    workload = scaled(read_trace(path), rate=load.get("rate"), limit=load.get("count"))
    return ended(workload, load.get("declared_length"), load.get("ignore_eos"))


def short(value: Any) -> str:
    """A value and its type, in a few words."""
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
