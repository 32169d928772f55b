"""The state of the page, a dictionary of all fields: its JSON, URL and command line, and what it simulates."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from infercast.engines.base import Deployment, Engine, engine_named
from infercast.engines.settings import Settings, read_setting
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.cost import Tariff, facility_of, slo_of, tariff_of
from infercast.forecast.deploy import deploy, load_model, random_requests, taken_by
from infercast.forecast.energy import Facility
from infercast.forecast.option_table import GROUPS as OPTION_GROUPS
from infercast.forecast.option_table import PAGE_GROUPS, Option, Page
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.slo import Slo
from infercast.forecast.system import System, system_of
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.host import host_cpu
from infercast.models.library import bundled_config, bundled_name, checkpoint
from infercast.models.read import read_object
from infercast.serve import Workload
from infercast.serve.workload.request import refuse_too_long
from infercast.units import whole_number

TEXT, WHOLE, NUMBER, SWITCH, NAMES = "text", "whole", "number", "switch", "names"
"""Kinds of values: a string, an integer, a float, true or false, and several strings."""
SIMULATE, MEMORY, CURVE, PLAN, CAPACITY, ENERGY = "simulate", "memory", "curve", "plan", "capacity", "energy"
KINDS = {str: TEXT, int: WHOLE, whole_number: WHOLE, float: NUMBER, bool: SWITCH, list: NAMES}
LARGEST_CONFIG = 256 * 1024
OF_SYSTEMS = ("model", "hardware", "layout", "engine")  # groups of fields that say what serves requests
KEPT_SYSTEMS, KEPT_CAPACITIES = 8, 256
"""Deployments with their step times that are kept for the next question about them, and what they serve at most."""
PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_capacities: dict[str, float] = {}


class Field(NamedTuple):
    name: str  # In a URL, in JSON and, with few exceptions, in Python
    kind: str
    label: str
    group: str
    help: str
    questions: tuple[str, ...]  # Those with an answer that depends on it
    option: str = ""  # Of the command line; of a switch that can be turned off, both words with a slash between them
    default: Any = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    catalogue: str = ""
    setting: bool = False  # Whether it is a setting of the default engine; others have other names for some

    @staticmethod
    def of(option: Option, page: Page) -> Field:
        setting = option.name in engine_named().flags.options - {"engine"}
        default = option.default if page.default is ... else page.default
        low, high = page.bounds
        return Field(
            name=page.name or option.name, kind=KINDS[option.type], label=page.label, group=page.group,
            help=page.help or option.help, questions=tuple((page.questions or PAGE_GROUPS[page.group]).split()),
            option="" if option.argument else option.spelled, default=None if setting else default, low=low, high=high,
            unit=page.unit, catalogue=option.catalogue, setting=setting,
        )  # fmt: skip


FIELDS = tuple(
    sorted(
        (Field.of(option, option.page) for group in OPTION_GROUPS for option in group if option.page is not None),
        key=lambda field: [*PAGE_GROUPS].index(field.group),
    )
)
BY_NAME = {field.name: field for field in FIELDS}
State = dict[str, Any]
COMMANDS = {CURVE: "sweep"}  # commands of questions, where their names differ
MOST_NAMES = 32
LONGEST_TEXT = 400
LONGEST_QUERY = 8000
TRUE, FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
BETWEEN = {"settings": ";"}  # what stands between several names where a name may hold commas itself


def default_of(field: Field, given: Mapping[str, Any]) -> Any:
    """What a field is where it is not given; there is no rate where something else says how requests arrive."""
    other_loads = ("concurrency", "session_rate")  # fields that say how much is sent in place of a rate
    if field.name == "rate" and (given.get("arrival") == "burst" or any(given.get(name) for name in other_loads)):
        return None
    return list(field.default) if field.kind == NAMES else field.default


def read_state(given: Mapping[str, Any]) -> State:
    """A whole state from the fields that are given; an error names the field, its value and what it may be."""
    if not isinstance(given, Mapping):
        raise InputError(f"a state must be an object of fields, not a {type(given).__name__}")
    for name in given:
        if name not in BY_NAME:
            raise UnknownNameError("field", str(name)[:80], BY_NAME)
    read = {name: _checked(BY_NAME[name], value) for name, value in given.items()}
    return {field.name: read.get(field.name, default_of(field, read)) for field in FIELDS}


def from_query(query: str) -> State:
    """The state that a URL's query says; several names have commas between them."""
    if len(query) > LONGEST_QUERY:
        raise InputError(f"a URL's query may have {LONGEST_QUERY} characters, not {len(query)}")
    try:
        pairs = parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=len(FIELDS))
    except ValueError:
        raise InputError(f"a URL's query may have {len(FIELDS)} fields at most") from None
    given: dict[str, Any] = {}
    for name, text in pairs:
        if name not in BY_NAME:
            raise UnknownNameError("field", name[:80], BY_NAME)
        if name in given:
            raise InputError(f"{name} stands in the URL twice; say it once")
        given[name] = _from_text(BY_NAME[name], text)
    return read_state(given)


def to_query(state: Mapping[str, Any]) -> str:
    pairs = [(field.name, _as_text(field, state[field.name])) for field in FIELDS if _is_other(field, state)]
    return urlencode(pairs, safe=":,<=/@")


def to_command(state: Mapping[str, Any], question: str = SIMULATE, *, config: bool = False) -> str:
    """The command line that answers the same question; ``config``: of a config.json in place of a known model."""
    dropped = "./config.json"  # what stands for a dropped config in a command
    words = ["infercast", COMMANDS.get(question, question), dropped if config else state["model"]]
    engine = engine_named(state["engine"])
    for field in FIELDS:
        if question not in field.questions or field.name == "model" or _is_idle(field, state):
            continue
        value = state[field.name]
        if field.name == "settings":
            words += [word for each in value for word in (field.option, each)]
        elif field.setting and field.name not in engine.flags.options:
            words += ["--setting", f"{own_name(field.name, engine)}={_as_text(field, value)}"]
        elif field.kind == SWITCH:
            on, _, off = field.option.partition("/")
            words += [on if value else off] if value or off else []
        else:
            words += [field.option, _as_text(field, value)]
    return shlex.join(words)


def own_name_of(name: str, engine: Engine) -> str | None:
    """An engine's name of one of our settings; bounds of steps and sequences have a name in each."""
    bounds = dict(zip(engine_named().bounds, engine.bounds, strict=True))
    return name if name in engine.flags.options else bounds.get(name)


def own_name(name: str, engine: Engine) -> str:
    if (found := own_name_of(name, engine)) is not None:
        return found
    own = engine.flags.called.get(name.replace("_", "-"))
    instead = f"give {own.replace('-', '_')} in settings" if own else "leave it out"
    raise InputError(f"{name} is no setting of {engine.title}; {instead}")


def _is_idle(field: Field, state: Mapping[str, Any]) -> bool:
    """Whether a command is the same without a field: the command line refuses what changes nothing."""
    if field.name == "router":
        return state["router"] is None or state["data_parallel_size"] == 1
    if field.name in ("gpu", "gpus", "rates", "power_limits"):
        return not state[field.name]
    if field.name == "rate":
        return state["rate"] is None
    return field.name != "curve_requests" and not _is_other(field, state)


def _is_other(field: Field, state: Mapping[str, Any]) -> bool:
    return bool(state[field.name] != default_of(field, state))


def _checked(field: Field, value: Any) -> Any:
    if value is None or value == "":
        if field.kind != NAMES and (field.default is None or field.name == "rate"):
            return None
        raise InputError(f"{field.name} must be {_wanted(field)}, not empty")
    if not _is_valid(field, value):
        raise _wrong(field, value)
    return {WHOLE: int, NUMBER: float, NAMES: list}.get(field.kind, lambda same: same)(value)


def _is_valid(field: Field, value: Any) -> bool:
    if field.kind == SWITCH:
        return isinstance(value, bool)
    if field.kind == NAMES:
        return isinstance(value, (list, tuple)) and len(value) <= MOST_NAMES and all(map(_is_text, value))
    if field.kind not in (WHOLE, NUMBER):
        return _is_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    low, high = (default if end is None else end for end, default in ((field.low, -math.inf), (field.high, math.inf)))
    return low <= value <= high and (field.kind == NUMBER or value == int(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


def _from_text(field: Field, text: str) -> Any:
    if text == "":
        return [] if field.kind == NAMES else None
    if field.kind == SWITCH:
        if text.lower() not in (*TRUE, *FALSE):
            raise _wrong(field, text)
        return text.lower() in TRUE
    if field.kind == NAMES:
        return text.split(BETWEEN.get(field.name, ","))
    if field.kind not in (WHOLE, NUMBER):
        return text
    try:
        return int(text) if field.kind == WHOLE else float(text)
    except ValueError:
        raise _wrong(field, text) from None


def _as_text(field: Field, value: Any) -> str:
    if value is None:
        return ""
    if field.kind == SWITCH:
        return "on" if value else "off"
    if field.kind == NAMES:
        return BETWEEN.get(field.name, ",").join(value)
    return f"{value:.12g}" if field.kind == NUMBER else str(value)


def _wanted(field: Field) -> str:
    if field.kind == SWITCH:
        return "true or false"
    if field.kind == NAMES:
        return f"a list of at most {MOST_NAMES} texts"
    if field.kind not in (WHOLE, NUMBER):
        return f"a text of at most {LONGEST_TEXT} characters on one line"
    what = "a whole number" if field.kind == WHOLE else "a number"
    return what if field.low is None else f"{what} from {field.low:g} to {field.high:g}"


def _wrong(field: Field, value: Any) -> InputError:
    shown = repr(value)
    return InputError(f"{field.name} must be {_wanted(field)}, not {shown[:60]}{'...' if len(shown) > 60 else ''}")


class Asked(NamedTuple):
    """A state, and the config.json that stands in place of its model, if any."""

    state: State
    config: Mapping[str, Any] | None = None

    @property
    def model(self) -> str | Mapping[str, Any]:
        """What `deploy` takes for a model: a bundled name, or what a config.json holds."""
        if self.config is not None:
            return self.config
        model = str(self.state["model"])
        name = bundled_name(model)
        if name is None and (os.path.exists(model) or checkpoint(model) is None):  # files of this machine are not read
            bundled_config(model)  # says what may have been meant
        return name or model

    @property
    def engine(self) -> Engine:
        return engine_named(self.state["engine"])

    @property
    def slo(self) -> Slo | None:
        return slo_of(self.state)

    @property
    def tariff(self) -> Tariff:
        return tariff_of(self.state)

    @property
    def facility(self) -> Facility:
        return facility_of(self.state)


def read_asked(document: Mapping[str, Any]) -> Asked:
    """What a request asks for: ``state`` (fields) or ``query`` (those of a URL), and ``config``."""
    if not isinstance(document, Mapping):
        raise InputError(f"a request must be a JSON object, not a {type(document).__name__}")
    if "state" in document and "query" in document:
        raise InputError("state and query say the same in two ways; give one of them")
    query = document.get("query")
    if query is not None and not isinstance(query, str):
        raise InputError("query must be the text after the question mark of a URL")
    given, config = document.get("state", {}), document.get("config")
    if isinstance(given, Mapping) and "config" in given:
        given, config = {name: value for name, value in given.items() if name != "config"}, given["config"]
    state = from_query(query) if query is not None else read_state(given)
    if config is not None:
        if not isinstance(config, Mapping):
            raise InputError(f"config must be the object that a config.json holds, not a {type(config).__name__}")
        if len(json.dumps(config)) > LARGEST_CONFIG:
            raise InputError(f"config is larger than {LARGEST_CONFIG // 1024} KiB, too large for a config.json")
    if state.get("host") is not None:
        host_cpu(state["host"])  # By its name: no file of this machine is read
    return Asked(state, config)


def known_gpu(name: str) -> str:
    if name.endswith(".toml") or "/" in name or "\\" in name:
        raise UnknownNameError("GPU", name, gpu_names())
    return load_gpu(name).name


def settings_of(asked: Asked) -> Settings:
    """The settings of the engine; those that are not given are its own choice."""
    state, engine = asked.state, asked.engine
    names = [field.name for field in FIELDS if field.setting and state[field.name] is not None]
    given = {own_name(name, engine): state[name] for name in names}
    for text in state["settings"]:
        name, _, value = text.partition("=")
        if name in given:
            raise InputError(f"{name} is given twice; leave it out of settings")
        given[name] = read_setting({**engine.setting_types, "engine": str}, name, value)
    if "engine" in given:
        raise InputError("engine is a field of its own; leave it out of settings")
    if (text := given.get("speculative_config")) is not None:
        check_draft(text)
    settings: Settings = engine.settings(given)
    return settings


def check_draft(text: str) -> None:
    """Refuse a draft model that is the name of a file."""
    model = read_object(text, "speculative_config").get("model")
    if model is None:
        return
    if not isinstance(model, str) or not (bundled_name(model) or PUBLISHED.fullmatch(model)) or os.path.exists(model):
        raise InputError(f"speculative_config: model must be a bundled model or a published id, not {model!r}")


def deployment_of(asked: Asked) -> partial[Deployment]:
    state = asked.state
    return partial(deploy, asked.model, known_gpu(state["gpu"]), settings_of(asked), **taken_by(deploy, state))


def system_asked(asked: Asked) -> System:
    """The system; cached with its step times for bundled models, not for a dropped config."""
    state = asked.state
    if asked.config is not None:
        return _system(asked)
    names = [field.name for field in FIELDS if field.group in OF_SYSTEMS]
    return _kept_system(json.dumps({name: state[name] for name in names}, sort_keys=True))


@lru_cache(KEPT_SYSTEMS)
def _kept_system(key: str) -> System:
    return _system(Asked(read_state(json.loads(key))))


def _system(asked: Asked) -> System:
    router = asked.state["router"] if asked.state["data_parallel_size"] > 1 else None
    return system_of(deployment_of(asked)(), router)


def capacity_known(asked: Asked, system: System, workload: Workload) -> Callable[[], float]:
    """Capacity of a system for such requests, cached: it does not depend on their rate."""
    work_out = partial(most_requests_per_second, system, workload)
    if asked.config is not None:
        return work_out
    fields = [field.name for field in FIELDS if field.group in (*OF_SYSTEMS, "traffic") and field.name != "rate"]
    key = json.dumps([asked.state[name] for name in fields])

    def known() -> float:
        if key not in _capacities:
            _capacities[key] = work_out()
            while len(_capacities) > KEPT_CAPACITIES:
                _capacities.pop(next(iter(_capacities)))
        return _capacities[key]

    return known


def longest_of(asked: Asked) -> int:
    told = getattr(settings_of(asked), asked.engine.bounds[2], None)
    return told or load_model(asked.model).max_positions


def workload_of(asked: Asked, longest: int | None = None, **others: Any) -> Workload:
    """Requests of at most ``longest`` tokens; ``others`` replace fields."""
    longest = longest or longest_of(asked)
    workload = random_requests({**asked.state, **others}, longest)
    refuse_too_long(workload, longest)
    return workload
