"""States: read from JSON and from URLs, and written as URLs and as commands that give the same answer."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from infercast.cli.app import make_app
from infercast.cli.main import run
from infercast.errors import InputError
from infercast.forecast.option_table import OPTIONS
from infercast.web.answers import answer, catalogue
from infercast.web.state import (
    BY_NAME,
    FIELDS,
    NAMES,
    NUMBER,
    SWITCH,
    WHOLE,
    Field,
    from_query,
    read_asked,
    read_state,
    to_command,
    to_query,
)


def values_of(field: Field) -> st.SearchStrategy[Any]:
    words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1, max_size=30)
    words = words.filter(str.isprintable)
    if field.kind == SWITCH:
        return st.booleans()
    if field.kind == WHOLE:
        return st.integers(int(field.low or 0), int(field.high or 10))
    if field.kind == NUMBER:
        return (
            st.floats(field.low, field.high)
            .map(lambda value: float(f"{value:.12g}"))
            .filter(
                lambda value: field.low <= value <= field.high  # type: ignore[operator]
            )
        )
    return st.lists(words.filter(lambda text: not {*text} & {",", ";"}), max_size=3) if field.kind == NAMES else words


states = st.fixed_dictionaries({}, optional={field.name: values_of(field) for field in FIELDS})


@settings(max_examples=15)
@given(states)
def test_a_state_survives_its_url(given: dict[str, Any]) -> None:
    state = read_state(given)
    assert from_query(to_query(state)) == state
    assert json.loads(json.dumps(state)) == state


def test_defaults_leave_urls_empty() -> None:
    assert to_query(read_state({})) == ""
    assert from_query("") == read_state({})
    assert to_command(read_state({})) == "infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12"


def test_no_rate_where_something_else_says_how_requests_arrive() -> None:
    assert read_state({})["rate"] == 12
    for fields in ({"concurrency": 8}, {"session_rate": 1.0, "turns": "4"}, {"arrival": "burst"}):
        state = read_state(fields)
        assert state["rate"] is None
        assert "rate=" not in to_query(state).replace("session_rate=", "")


def test_defaults_are_those_of_the_command_line() -> None:
    for name, field in BY_NAME.items():
        if name in OPTIONS and name not in ("model", "gpu", "rate", "gpu_memory_utilization"):
            ours, theirs = field.default, OPTIONS[name].default
            assert ours == theirs or ours is None, name  # nothing is said, and the command line has the same


def test_every_field_is_explained_and_its_lists_exist() -> None:
    known = catalogue()
    for field in FIELDS:
        assert field.label
        assert field.help.endswith("."), field.name
        of_engines = ("kv_cache_dtypes", "settings")
        assert not field.catalogue or field.catalogue in known or field.catalogue in of_engines


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"colour": 1}, "unknown field 'colour'"),
        ({"rate": "fast"}, "rate must be a number from 0.001 to 10000, not 'fast'"),
        ({"rate": float("nan")}, "rate must be a number"),
        ({"rate": -1}, "not -1"),
        ({"num_requests": 10**9}, "num_requests must be a whole number from 1 to 5000"),
        ({"num_requests": 1.5}, "not 1.5"),
        ({"tensor_parallel_size": True}, "not True"),
        ({"spot": "yes"}, "spot must be true or false"),
        ({"gpus": "l40s"}, "gpus must be a list of at most 32 texts"),
        ({"model": "x" * 500}, "model must be a text of at most 400 characters"),
        ({"model": "a\nb"}, "on one line"),
        ({"model": None}, "model must be"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as problem:
        read_state(given)
    assert words in str(problem.value)


def test_a_model_may_be_a_checkpoint_s_name_and_never_a_file_here(tmp_path: Path) -> None:
    assert read_asked({"state": {"model": "meta-llama/Llama-3.1-8B-Instruct"}}).model == "llama-3.1-8b"
    assert read_asked({"state": {"model": "/models/Qwen3-32B-AWQ"}}).model == "/models/Qwen3-32B-AWQ"
    folder = tmp_path / "Qwen3-32B-AWQ"
    folder.mkdir()
    for name in (str(folder), "Qwen3-9B"):
        with pytest.raises(InputError, match="unknown model"):
            _ = read_asked({"state": {"model": name}}).model


@pytest.mark.parametrize("query", ["rate=1&rate=2", "colour=red", "spot=perhaps", "num_requests=ten", "a" * 9000])
def test_bad_urls_are_refused(query: str) -> None:
    with pytest.raises(InputError):
        from_query(query)


SMALL = {"num_requests": 40, "max_num_seqs": 64}
COMMANDS = [
    ("simulate", SMALL | {"slo": "ttft_p99<1s", "price_per_gpu_hour": 2.5, "pue": 1.3, "power_limit_w": 500.0}),
    ("simulate", SMALL | {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "l40s", "quantization": "fp8"}),
    ("simulate", SMALL | {"concurrency": 8, "max_num_seqs": 4, "enable_prefix_caching": False, "enforce_eager": True}),
    ("simulate", SMALL | {"data_parallel_size": 2, "router": "round_robin", "prefix_len": 100, "prefix_groups": 3}),
    ("simulate", SMALL | {"engine": "sglang@0.5.16", "max_num_seqs": 16, "settings": ["page_size=16"]}),
    ("simulate", SMALL | {"turns": "3", "session_rate": 1.0, "think": "2", "input_len": "300", "output_len": "50"}),
    ("simulate", SMALL | {"rate": 300.0, "output_len": "40", "router": "round_robin", "host": "epyc-9654"}),
    ("memory", {"model": "llama-3.3-70b", "tensor_parallel_size": 4, "max_model_len": 8192}),
    ("curve", {"rates": "4,8", "curve_requests": 60, "max_num_seqs": 64, "slo": "ttft_p99<1s"}),
]


@pytest.mark.parametrize(("question", "given"), COMMANDS)
def test_the_command_gives_the_same_answer(
    question: str, given: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answer(question, {"state": given})
    monkeypatch.setattr(sys, "argv", [*shlex.split(found["command"]), "--json"])
    with pytest.raises(SystemExit) as end:
        run()
    out, err = capsys.readouterr()
    assert not end.value.code, err
    printed = json.loads(out)
    ours = found[{"simulate": "forecast"}.get(question, question)]
    assert {name: ours[name] for name in printed} == printed


EVERYTHING = {
    field.name: {SWITCH: True, WHOLE: field.high or 7, NUMBER: field.high, NAMES: ["a=1", "b"]}.get(field.kind, "text")
    for field in FIELDS
}


@pytest.mark.parametrize("question", ["simulate", "memory", "curve", "plan", "capacity", "energy"])
def test_every_option_of_a_command_is_one_of_its_own(question: str) -> None:
    """All fields at once, which no command would answer: only the words are read here."""
    words = shlex.split(to_command(read_state(EVERYTHING | {"engine": "vllm"}), question))[1:]
    group: Any = get_command(make_app(words[0]))
    asked = group.commands[words[0]].make_context(words[0], words[1:])
    said = {name for name in asked.params if asked.get_parameter_source(name).name == "COMMANDLINE"}
    assert len(said) >= sum(question in field.questions for field in FIELDS) - 1
