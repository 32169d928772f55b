"""Every option once: its name, type, default, unit, help, spelling on the command line, and the questions that take it.

The command line, Python keyword checks, what-if changes, the fields of page and HTTP API, and the reference are all
made from the rows of ``data/options.json``. To add an option, add a row (and the code that reads it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from infercast.bundled import DATA
from infercast.engines.base import DEFAULT_ENGINE, FAMILIES, engine_named
from infercast.forecast.slo import EXAMPLE
from infercast.lazy_classes import NamedTuple
from infercast.models.spec import GREEDY, SORTED, TOP_P
from infercast.serve.fleet.router import POLICIES
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.units import whole_number

ROUTINGS = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")
"""How tokens spread over experts: equally likely, in equal counts, or as uneven as measured tables have it."""
SAMPLINGS = (GREEDY, TOP_P, SORTED)  # Tokens are the most likely, by top-p as the release does it, or by sorted logits
TURN_LEN, THINK, TOOL_TIME = "lognormal:120:0.8:4:4000", "exponential:10", "lognormal:2:1"
"""Of later turns of a session, of the time between two, and of tools."""

PAGE_GROUPS = (
    *("model", "hardware", "layout", "engine", "traffic", "sessions", "promise", "money", "energy"),
    *("memory", "curve", "plan", "day"),
)  # Groups of the page's fields, in its order


class Page(NamedTuple):
    """An option as a field of the page and of the HTTP API."""

    label: str
    group: str
    questions: str  # Those with an answer that depends on it
    help: str = ""  # Where it differs from the command line's, which may take files, too
    bounds: tuple[float, float] | tuple[None, None] = (None, None)
    unit: str = ""
    default: Any = ...  # Where it differs from the command line's
    name: str = ""  # Where it differs from the option's


class Option(NamedTuple):
    name: str  # In Python and, of a field, in JSON and in a URL
    type: Any  # ``whole_number`` also takes 32k; ``list`` is of texts
    default: Any  # ``...``: it must be given
    metavar: str | None
    help: str
    panel: str | None = None  # The heading in ``--help``
    flag: str = ""  # Where it is not the name with dashes
    short: str = ""
    off: bool = False  # A switch that has a ``--no-`` form, too
    argument: bool = False  # A word without a flag
    shows_default: bool = True
    catalogue: str = ""  # The list that values come from: for the page, and for completion in a shell
    also: str = ""  # Commands that take these and no others of the group
    python: str = ""  # The keyword in Python, where it is another one
    what_if: bool = False  # Whether ``--what-if`` can change it
    page: Page | None = None

    @property
    def spelled(self) -> str:
        """The flag on the command line; of a switch with two forms, both."""
        flag = self.flag or f"--{self.name.replace('_', '-')}"
        return f"{flag}/--no-{flag[2:]}" if self.off else flag


TYPES: dict[str, Any] = {
    **{"str": str, "int": int, "float": float, "bool": bool, "list": list},
    **{"path": Path, "paths": list[Path], "tokens": whole_number},
}
_WORDS = {
    "engines": " or ".join(FAMILIES),
    "default_engine": DEFAULT_ENGINE,
    "engine_title": engine_named().title,
    "routers": ", ".join(POLICIES),
    "slo_example": EXAMPLE,
    **{"input_len": INPUT_LEN, "output_len": OUTPUT_LEN, "turn_len": TURN_LEN, "think": THINK, "tool_time": TOOL_TIME},
}  # What the file says by the code's own names
_FILE: dict[str, Any] = json.loads(Template((DATA / "options.json").read_text(encoding="utf-8")).substitute(_WORDS))


def _read(rows: Iterable[dict[str, Any]]) -> tuple[Option, ...]:
    found = []
    for row in rows:
        kind, default, page = TYPES[row["type"]], row.get("default"), row.get("page")
        default = tuple(default) if isinstance(default, list) else ... if row.pop("required", False) else default
        if page is not None:
            bounds, questions = tuple(page.get("bounds", (None, None))), page["questions"]
            page = Page(**page | {"bounds": bounds, "questions": _FILE["questions"].get(questions, questions)})
        panel = _FILE["panels"].get(row.get("panel"))
        values = {"metavar": None} | row | {"type": kind, "default": default, "panel": panel, "page": page}
        found.append(Option(**values))
    return tuple(found)


GROUPS = tuple(_read(rows) for rows in _FILE["groups"].values())
PLACE, LAYOUT, WORKLOAD, ENGINE_ARGS, DEPLOYMENT, COST, OUTPUT, FILES, *_others = GROUPS
MEMORY, SWEEP, CURVE, ENERGY, DAY, FLEET, PLAN, TIME, WORK = _others
"""`ENGINE_ARGS` are an engine as a command starts it, `DEPLOYMENT` what it runs on and how its kernels are estimated,
`COST` what stands around the GPUs, what users are promised, and prices, `CURVE` the page's own form of
``--num-requests``, `DAY` a day without a trace, `TIME` how long an answer may take, and `WORK` what simulates the
candidates of a plan.
"""
PARALLEL = "tensor_parallel_size pipeline_parallel_size pp_layer_partition data_parallel_size"
OPTIONS: dict[str, Option] = {option.name: option for group in reversed(GROUPS) for option in reversed(group)}
"""By name; where a group has its own form of an option, the form of the earlier group."""
OURS_ALONE = {
    "network", "pcie_topology", "api_server", "chat", "expert_routing", "sampling", "engine", "prompts_first",
    "cudagraph_mode", "acceptance", "dummy_weights", "host", "predictor", "calibration",
}  # fmt: skip
"""Options of ours that are no flags of an engine."""


def own_options(command: str, **words: str) -> list[Option]:
    """The options of one command, some of them rows of the table or like one; ``words`` are what its code knows."""
    rows = json.loads(Template(json.dumps(_FILE["of_commands"][command])).substitute(words))
    found: list[Option] = []
    for row in rows:
        if isinstance(row, str):
            found.append(OPTIONS[row])
        elif "like" in row:
            kind = {"type": TYPES[row["type"]]} if "type" in row else {}
            found.append(OPTIONS[row.pop("like")]._replace(**row | kind))
        else:
            found += _read([row])
    return found
