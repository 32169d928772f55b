"""Flags of SGLang's server stand in one place each, and what they set is there."""

from dataclasses import fields
from itertools import combinations

import pytest

from infercast.engines.base import Engine, engine_named
from infercast.engines.sglang.settings import SglangSettings

ENGINE = engine_named("sglang")
FLAGS = ENGINE.flags


def places_of(engine: Engine) -> list[set[str]]:
    flags, commands = engine.flags, engine.commands
    return [
        set(flags.switches), set(flags.values), set(flags.settings), set(flags.not_modelled), set(flags.other_names),
        set(commands.unmodelled), set(commands.other_meaning),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_flag_has_one_place(name: str) -> None:
    for one, other in combinations(places_of(engine_named(name)), 2):
        assert not one & other


def test_flags_of_the_server_are_known() -> None:
    # 460 of its server with their aliases, less those that are options of ours under the same name, and ten of its
    # benchmark and short forms.
    assert sum(map(len, places_of(ENGINE))) > 470


def test_settings_are_fields() -> None:
    names = {field.name for field in fields(SglangSettings)}
    assert set(FLAGS.settings.values()) <= names
    assert {*FLAGS.settings.values(), "engine"} == names  # and each can be asked for by a flag


def test_lists_are_read() -> None:
    assert ENGINE.settings({"cuda_graph_bs": "1,2,4"}).cuda_graph_bs == (1, 2, 4)
