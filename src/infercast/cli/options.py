"""Options of commands, made from the table of options, and what the given ones mean: settings, deployment, workload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from infercast import Deployment, Workload
from infercast.cli.outputs import Form, form_of, note
from infercast.engines.base import DEFAULT_ENGINE, FAMILIES, Engine, engine_named
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ, Settings, read_setting
from infercast.errors import InputError, UnknownNameError, need, require
from infercast.forecast.deploy import (
    as_sent,
    deploy,
    image_mix,
    load_model,
    most_image_tokens,
    random_requests,
    taken_by,
)
from infercast.forecast.option_table import OPTIONS, Option
from infercast.forecast.progress import usual_limit
from infercast.hardware import load_gpu
from infercast.predict.fitted import load_artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned, default_artifact
from infercast.predict.roofline import Predictor
from infercast.serve.workload.request import Adapters, check_too_long, refuse_too_long, truncated, without_too_long
from infercast.serve.workload.synthetic import begun_anew, ended, scaled
from infercast.units import AUTO, whole_number

if TYPE_CHECKING:
    from infercast.forecast.calibration import Calibration
    from infercast.forecast.command.flags import Flag

Context = Any  # Typer's, or one with the same values by name and the same word on where they are from
SAID = SimpleNamespace(name="COMMANDLINE")
READERS: dict[Any, Callable[[Any], Any]] = {
    **{int: int, float: float, Form: Form, whole_number: lambda text: AUTO if text == "auto" else whole_number(text)}
}  # How words become values, where they do not stay words
LISTS = (list, list[Path])
OF_FORM = (
    Option("format", Form, ""),
    Option("as_json", bool, "", False, flag="--json"),
    Option("in_full", bool, "", False, flag="--full", short="-v"),
)
Command = TypeVar("Command", bound=Callable[..., None])


def with_options(*groups: Option | Sequence[Option] | str) -> Callable[[Command], Command]:
    """Give a command these options, those of these groups, or of these names, in this order; it gets them as keywords.
    Where two have one name, it takes the first.
    """

    def options() -> list[Option]:
        taken: dict[str, Option] = {}
        for group in groups:
            rows: Sequence[Option] = [group] if isinstance(group, Option) else group  # type: ignore[assignment]
            for option in map(OPTIONS.__getitem__, group.split()) if isinstance(group, str) else rows:
                taken.setdefault(option.name, option)
        return [*taken.values()]

    def extend(function: Command) -> Command:
        function.options = options  # type: ignore[attr-defined] # listed for the command that is run
        return function

    return extend


def is_given(ctx: Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and bool(source.name == SAID.name)


def time_limit_of(ctx: Context) -> float | None:
    """Seconds that an answer may take: as asked, or as is usual on this machine."""
    given: float | None = ctx.params["time_limit"]
    return given if is_given(ctx, "time_limit") or given is None else usual_limit(given)


def plain_call(options: Sequence[Option], words: Sequence[str]) -> dict[str, Any] | None:
    """The keywords that a command is called with, from words without any surprise; None: they are for typer. That knows
    more (help, mistakes, every way to write an option), and takes longer to load than these to read.
    """
    given: dict[str, Any] = {}
    try:
        for option, value in _pairs((*options, *OF_FORM), words):
            if option.type in LISTS:
                given.setdefault(option.name, []).append(value)
            elif option.name in given:
                return None
            else:
                given[option.name] = READERS.get(option.type, lambda value: value)(value)
    except (KeyError, IndexError, ValueError):
        return None
    call = {option.name: given.get(option.name, option.default) for option in options}
    if ... in call.values():
        return None
    call |= {name: [*value] for name, value in call.items() if isinstance(value, tuple)}
    # In a context, several words are a tuple, and paths are words.
    params = call | {option.name: (*(call[option.name] or ()),) for option in options if option.type in LISTS}
    call["ctx"] = SimpleNamespace(params=params, get_parameter_source=lambda name: SAID if name in given else None)
    for option in options:
        if option.type in (Path, list[Path]) and (value := call[option.name]) is not None:
            call[option.name] = Path(value) if option.type is Path else [*map(Path, value)]
    as_json, full = given.get("as_json", False), given.get("in_full", False)
    return {**call, "form": form_of(given.get("format"), as_json=as_json, full=full)}


def _pairs(options: Sequence[Option], words: Sequence[str]) -> Iterator[tuple[Option, Any]]:
    """Options with their values; raises what `plain_call` catches where words are not plain."""
    flags: dict[str, tuple[Option, bool]] = {}
    for option in options:
        on, _, off = option.spelled.partition("/")
        flags |= {name: (option, name != off) for name in (on, off, option.short) if name and not option.argument}
    places = deque(option for option in options if option.argument and option.type not in LISTS)
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield places.popleft(), word
            continue
        option, is_on = flags[flag]
        is_switch = option.type is bool
        value = value if equals or is_switch else next(rest, "-")
        if (is_switch or not word.startswith("--")) if equals else value.startswith("-"):
            raise ValueError(word)
        yield option, is_on if is_switch else value


def known_names(kind: str, text: str, known: Collection[str] | None = None) -> tuple[str, ...]:
    """Names with commas between them, all of which must be known; any is where nothing is said of that."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if known is not None and name not in known:
            raise UnknownNameError(kind, name, known)
    return names


def comma_list(option: str, given: Sequence[str]) -> list[str]:
    """Names with commas between them, or one an option, or both; each counts once."""
    names = [part.strip() for text in given for part in text.split(",")]
    require(names and all(names), option, "be names with commas between them", repr(",".join(given)))
    return list(dict.fromkeys(names))


def choose_predictor(
    name: str, anchors: Path | None, gpu: str, measurements: Path | None = None, engine: str = DEFAULT_ENGINE
) -> str | Predictor:
    """The predictor of a command, with a user's own tables, and corrected by anchors where there are any."""
    if anchors is None and measurements is None:
        return name
    if name == "roofline":
        given = "--anchors" if measurements is None else "--measurements"
        raise InputError(f"{given} improve learned estimates; leave out --predictor roofline")
    if anchors is not None and not anchors.is_dir():
        raise InputError(f"--anchors {anchors} is not a folder")
    need("a model of measured kernels", "fit")
    profile = kernel_profile(engine_named(engine).family)
    artifact = default_artifact() if name == "learned" else load_artifact(Path(name))
    if measurements is not None:
        from infercast.lab.fit.train import fit_sweeps  # noqa: PLC0415 - needs the packages of infercast[fit]

        artifact = artifact.with_models(fit_sweeps(measurements))
    if anchors is None:
        return Learned(artifact, profile)
    from infercast.lab.fit.samples import read_corrections  # noqa: PLC0415 - as above

    return Learned(artifact, profile, corrections=read_corrections(anchors, load_gpu(gpu), artifact, profile))


def settings_of(ctx: Context, **fixed: Any) -> Settings:
    """The settings of an engine that the options of a command ask for; what is not given is the engine's choice.
    ``fixed`` are values that the command itself has for some.
    """
    engine = engine_named(ctx.params.get("engine", DEFAULT_ENGINE))
    # Options of ours go by the names of the default engine.
    known = (engine.flags.options | engine_named().flags.options) - {"engine"}
    given = {name: ctx.params[name] for name in known & {*ctx.params} if is_given(ctx, name)}
    if strange := sorted({*given} - engine.flags.options):
        flag = strange[0].replace("_", "-")
        own = engine.flags.called.get(flag)
        raise InputError(f"--{flag} is no option of {engine.title}; {f'use --{own}' if own else 'leave it out'}")
    given |= dict(_settings_by_name(ctx))
    settings: Settings = engine.settings(given | fixed, note)
    return settings


def _settings_by_name(ctx: Context) -> Iterator[tuple[str, Any]]:
    for text in ctx.params.get("setting") or ():
        name, _, value = text.partition("=")
        yield name, read_setting(engine_named(ctx.params["engine"]).setting_types, name, value)


def longest_asked(ctx: Context) -> int | None:
    """Tokens of the longest sequence that the engine is to serve, under whatever name it has for that."""
    for name, value in _settings_by_name(ctx):
        if name == engine_named(ctx.params["engine"]).bounds[2]:
            return int(value)
    asked: int | None = ctx.params.get("max_model_len")
    return None if asked == AUTO else asked


def deployment_of(
    ctx: Context, gpu: str | None = None, room: Mapping[str, Any] | None = None, **others: Any
) -> partial[Deployment]:
    """What `deploy` is to be called with: options of the command that it takes, and settings of its engine. ``room``:
    settings that the command has itself; ``others`` stand in place of options.
    """
    given = ctx.params
    gpu = gpu or given["gpu"]
    # What a context holds are words, not paths yet.
    anchors, measurements = (None if given[name] is None else Path(given[name]) for name in ("anchors", "measurements"))
    predictor = choose_predictor(given["predictor"], anchors, gpu, measurements, given["engine"])
    if given.get("kernel_file"):
        from infercast.forecast.own_kernel import with_own_kernels  # noqa: PLC0415 - most runs have none

        engine, model = engine_named(given["engine"]).family, load_model(given["model"])
        predictor = with_own_kernels(predictor, given["kernel_file"], engine, model)
    found = taken_by(deploy, given) | {"predictor": predictor, "calibration": calibration_of(given), **others}
    return partial(deploy, given["model"], gpu, settings_of(ctx, **room or {}), **found)


def calibration_of(given: Mapping[str, Any]) -> Calibration | None:
    if given.get("calibration") is None:
        return None
    from infercast.forecast.calibration import read_calibration  # noqa: PLC0415 - most commands are given none

    return read_calibration(Path(given["calibration"]))


def refuse_idle_router(ctx: Context) -> None:
    """A load balancer before one replica has no meaning."""
    if ctx.params["router"] is not None and ctx.params["data_parallel_size"] == 1:
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")


SYNTHETIC = (
    "arrival", "burstiness", "input_len", "output_len", "prefix_len", "prefix_groups", "turns", "reuse", "arrivals_of",
)  # fmt: skip
"""What a trace brings along."""
BRINGS = "it brings its own arrivals and lengths; only --rate, --rate-scale and --num-requests change it"


def workload_of(ctx: Context, default_count: int | None = None, *, longest: int | None = None) -> Workload:
    """The workload that the options of a command ask for, of at most ``longest`` tokens. All requests are within the
    model's length; what was clipped, cut or left out for it is in the description.
    """
    given = ctx.params
    num_requests, trace, too_long = given["num_requests"], given["trace"], given["too_long"]
    require(num_requests is None or num_requests >= 1, "--num-requests", "be at least 1", num_requests)
    check_too_long(too_long)
    refuse_idle_options(ctx, _idle(given), trace is not None)
    of_sessions = ("think", "tool_share", "tool_time", "tool_len", "sub_agents")  # options that need --turns
    has_turns = ("turn_len",) if not given.get("reuse") else ()
    if given.get("turns") is None and (idle := [name for name in (*has_turns, *of_sessions) if is_given(ctx, name)]):
        raise InputError(f"--{idle[0].replace('_', '-')} needs --turns, how many turns a session has")
    if not given.get("reuse") and (idle := [name for name in ("reuse_len", "reuse_distance") if is_given(ctx, name)]):
        raise InputError(
            f"--{idle[0].replace('_', '-')} needs --reuse, the share of prompts that begin as an earlier one"
        )
    asked = longest_asked(ctx)
    require(asked is None or asked >= 1, "max_model_len", "be at least 1", asked)
    # What is pooled takes no position.
    pooled = 0 if longest or asked else load_model(given["model"]).pools
    longest = longest or asked or load_model(given["model"]).max_positions + pooled
    mix = image_mix(given.get("images"), load_model(given["model"]))
    longest -= most_image_tokens(mix)
    replays = trace is not None
    workload = replayed(Path(trace), given, longest) if replays else random_requests(
        given, longest, default_count, named=longest - pooled
    )  # fmt: skip
    if too_long == "truncate":
        workload = truncated(workload, longest)
    else:
        refuse_too_long(workload, longest)
    workload = labelled(workload, given)
    workload = as_sent(workload, mix, given)
    return ended(workload, given.get("declared_output_len"), given.get("ignore_eos"))


def _idle(given: dict[str, Any]) -> tuple[str, ...]:
    """Options that change nothing, as far as that can be known before a trace is read."""
    if given["trace"] is None:
        return "rate_scale", "follow_sessions"
    by_chance = any(given.get(name) for name in ("class_", "adapters", "session_rate"))
    return SYNTHETIC if by_chance else (*SYNTHETIC, "seed")


def replayed(path: Path, given: dict[str, Any], longest: int) -> Workload:
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415 - most runs replay none

    workload = read_trace(path, follow=given.get("follow_sessions", False))
    if given["too_long"] == "skip":
        workload = without_too_long(workload, longest)
    if given.get("concurrency") is not None or given.get("session_rate") is not None:
        workload = scaled(workload, limit=given["num_requests"])
        rate = given.get("session_rate")
        option = "--concurrency" if rate is None else "--session-rate"
        if not workload.in_turns:
            raise InputError(f"{option} has no meaning with --trace: {BRINGS}, or --follow-sessions")
        if given["rate"] is not None or given["rate_scale"] != 1.0:
            raise InputError(f"{option} says how sessions begin; leave out --rate and --rate-scale")
        return begun_anew(workload, session_rate=rate, concurrency=given.get("concurrency"), seed=given["seed"])
    return scaled(workload, rate_scale=given["rate_scale"], rate=given["rate"], limit=given["num_requests"])


def labelled(workload: Workload, given: Mapping[str, Any]) -> Workload:
    """The same requests in the classes and with the adapters that the options ask for."""
    texts = given.get("class_") or []
    if texts or workload.has("slo_class"):
        from infercast.serve.workload.classes import parse_class, with_classes  # noqa: PLC0415 - few runs have any

        workload = with_classes(workload, [parse_class(text) for text in texts], seed=given["seed"])
    if given.get("adapters") is not None:
        from infercast.serve.workload.classes import with_adapters  # noqa: PLC0415 - few runs have any

        mix = Adapters(given["adapters"], given["adapter_skew"], given["adapter_share"])
        return with_adapters(workload, mix, seed=given["seed"])
    if given.get("adapter_skew", 1.0) != 1.0 or given.get("adapter_share", 1.0) != 1.0:
        raise InputError("--adapter-skew and --adapter-share need --adapters, the number of adapters")
    return workload


def refuse_idle_options(ctx: Context, names: tuple[str, ...], replays: bool) -> None:
    """An option that would change nothing is refused, never ignored."""
    for name in names:
        if is_given(ctx, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} has no meaning with --trace: {BRINGS}" if replays else f"{option} needs --trace"
            )


def translated(arguments: list[str], own: Iterable[Option] = ()) -> tuple[list[str], list[str]]:
    """A command's words with the engine's spelling made ours, and remarks on flags that were left out. As to the
    engines ``--max_num_seqs`` is ``--max-num-seqs``. ``own``: options of the command.
    """
    named = _named(arguments)
    taken = {flag for option in (*own, *OF_FORM) for flag in option.spelled.split("/")}
    engine = _engine(named)
    kept: list[str] = []
    remarks: list[str] = []
    ignored: list[str] = []
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("--") or word == "--":
            kept.append(word)
            continue
        flag, equals, text = word.partition("=")
        name = flag[2:].replace("_", "-") if "." not in flag else flag[2:]
        ours = engine.flags.other_names.get(name, name).removeprefix("no-").replace("-", "_")
        if ours in OPTIONS or f"--{name}" in taken:
            kept += _ours(name, text if equals else None, words, engine)
        elif (found := _of_engine(f"--{name}", text if equals else None, words, engine)) is None:
            _refuse_foreign(name, engine, named)
            kept.append(f"--{name}{equals}{text}")
        elif found.status == READ:
            kept += _read(found)
        elif found.status == IGNORED:
            ignored.append(f"--{found.name}")
        elif found.status == NOT_MODELLED:
            remarks.append(f"--{found.name} is not modelled: {found.note}")
    if ignored:
        remarks.insert(0, f"no forecast depends on {', '.join(ignored)}; left out")
    return kept, remarks


def _ours(name: str, value: str | None, words: deque[str], engine: Engine) -> list[str]:
    """An option of ours, perhaps under the engine's name; the engine may take several values behind it."""
    numbers = []
    while value is None and name in engine.flags.lists and words and words[0].replace(",", "").isdigit():
        numbers.append(words.popleft())
    name = engine.flags.other_names.get(name, name)
    return [f"--{name}" if value is None else f"--{name}={value}", *([",".join(numbers)] if numbers else [])]


def _read(found: Flag) -> list[str]:
    """A flag of the engine that is an option of ours by another form, or a setting."""
    if found.field in OPTIONS:
        return [f"--{found.name if isinstance(found.value, bool) else found.field.replace('_', '-')}", *found.words]
    value = ("on" if found.value else "off") if isinstance(found.value, bool) else ",".join(found.words)
    return ["--setting", f"{found.field}={value}"]


def _of_engine(written: str, value: str | None, words: deque[str], engine: Engine) -> Flag | None:
    """What becomes of a flag that is no option of ours; None where the engine does not know it either."""
    from infercast.forecast.command import flags  # noqa: PLC0415 - few commands have such flags

    known = flags.known_flags(engine)
    if known.parted(written)[1]:
        merged = flags.with_keys([written if value is None else f"{written}={value}", *words], known)
        words.clear()
        words.extend(merged)
        return flags.Flag(written, (), "")
    return flags.read_flag(written, value, words, engine, known, strict=True) if known.knows(written) else None


def _refuse_foreign(name: str, engine: Engine, named: list[str]) -> None:
    from infercast.forecast.command.flags import known_flags  # noqa: PLC0415 - as above

    for other in (engine_named(family) for family in FAMILIES if family != engine.family):
        if known_flags(other).knows(f"--{name}"):
            own = engine.flags.called.get(name)
            called = f"{engine.title} calls it --{own}" if own else f"{engine.title} has no such flag"
            first = any(each.partition("@")[0] == other.family for each in named)
            where = ", and flags are for the engine that is named first" if first else f": add --engine {other.family}"
            raise InputError(f"--{name} is a flag of {other.title}{where}; {called}")


def _named(arguments: list[str]) -> list[str]:
    """The engines that the words name, with commas between them."""
    named = ""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--engine" or word.startswith("--engine="):
            named = word.partition("=")[2] or after
    return [part.strip() for part in named.split(",") if part.strip()]


def _engine(named: list[str]) -> Engine:
    """The engine that the flags are for: the first named; an unknown one is the command's to refuse."""
    try:
        return engine_named(named[0] if named else None)
    except InputError:
        return engine_named()
