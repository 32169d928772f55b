"""The table of options agrees with the code that takes them."""

import inspect
from pathlib import Path
from typing import Any

from infercast.cli.outputs import WINDOW as TRACE_WINDOW
from infercast.engines.base import engine_named
from infercast.forecast.autoscaling import MEASURES, WINDOW, Autoscaler
from infercast.forecast.deploy import OWN, DeployOptions, LoadOptions, RunOptions, deploy, taken_by
from infercast.forecast.fleet import LOAD_BANDWIDTH, OTHER_SECONDS
from infercast.forecast.memory import fit_memory
from infercast.forecast.option_table import GROUPS, OPTIONS, PAGE_GROUPS, PLAN, WORKLOAD
from infercast.forecast.plan.question import OBJECTIVES
from infercast.forecast.plan.request import USUAL_GPUS
from infercast.forecast.system import DEFAULT_LINK
from infercast.units import GIGA, whole_number

PYTHON_ONLY = {"settings", "fuse_allreduce_rms"}
ROWS = [option for group in GROUPS for option in group]


def test_rows_are_whole(every: Any) -> None:
    def check(option: Any) -> None:
        assert option.type in (str, int, float, bool, list, Path, whole_number)
        assert option.help.endswith((".", "..."))
        assert option.page is None or option.page.group in PAGE_GROUPS

    every(ROWS, check)


def test_no_group_has_an_option_twice() -> None:
    for group in GROUPS:
        assert len({option.name for option in group}) == len(group)


def test_python_takes_the_options_of_the_table() -> None:
    assert set(RunOptions.__annotations__) - PYTHON_ONLY <= {option.name for option in ROWS}
    assert set(LoadOptions.__annotations__) <= {option.name for option in WORKLOAD}


def test_keywords_of_deploy_are_options_with_the_defaults_of_the_table() -> None:
    assert set(DeployOptions.__annotations__) - PYTHON_ONLY <= set(OPTIONS)
    shown = inspect.signature(deploy).parameters
    assert {*shown} == {"model", "gpu", "settings", "options", *OWN}
    for name in set(OWN) - PYTHON_ONLY - {"engine"}:
        assert shown[name].default == OPTIONS[name].default, name


def test_every_setting_among_the_options_is_one_of_the_engine() -> None:
    engine = engine_named()
    for option in ROWS:
        known = engine.setting_types.get(option.name)
        if known in (int, float, bool, str) and option.type is not list and option.name != "engine":
            assert known is (int if option.type is whole_number else option.type), option.name


def test_literals_are_those_of_the_code() -> None:
    rules = Autoscaler()
    defaults = {
        "autoscale_on": rules.measure,
        "target": rules.target,
        "interval": rules.interval,
        "up_delay": rules.up_delay,
        "down_delay": rules.down_delay,
        "min_replicas": rules.least,
        "max_replicas": rules.most,
        "load_bandwidth": LOAD_BANDWIDTH / GIGA,
        "start_seconds": OTHER_SECONDS,
        "window": WINDOW,
        "trace_window": TRACE_WINDOW,
        "link": DEFAULT_LINK,
    }
    assert {name: OPTIONS[name].default for name in defaults} == defaults
    plan = {option.name: option for option in PLAN}
    assert plan["gpu"].default == USUAL_GPUS
    assert plan["network"].default == DEFAULT_LINK
    assert " or ".join(MEASURES) in OPTIONS["autoscale_on"].help
    assert ", ".join(OBJECTIVES) in plan["objective"].help


def test_functions_get_the_options_that_they_take() -> None:
    given = {"tensor_parallel_size": 2, "dtype": "auto", "engine": "vllm", "context": 8, "rate": 1.0}
    assert taken_by(deploy, given) == {"tensor_parallel_size": 2, "dtype": "auto"}
    assert taken_by(fit_memory, given) == {"tensor_parallel_size": 2, "dtype": "auto", "context": 8}
