"""Flags of SGLang's server stand in one place each, and what they set is there."""

from dataclasses import fields
from itertools import combinations

from infercast.engines.registry import engine_named
from infercast.engines.sglang.settings import SglangSettings

ENGINE = engine_named("sglang")
FLAGS, COMMANDS = ENGINE.flags, ENGINE.commands


def test_every_flag_has_one_place() -> None:
    places = [
        set(FLAGS.switches), set(FLAGS.values), set(FLAGS.settings), set(FLAGS.not_modelled), set(FLAGS.other_names),
        set(COMMANDS.unmodelled), set(COMMANDS.other_meaning),
    ]  # fmt: skip
    for one, other in combinations(places, 2):
        assert not one & other
    # 460 of its server with their aliases, less those that are options of ours under the same name, and ten of its
    # benchmark and short forms.
    assert sum(map(len, places)) > 470


def test_settings_are_fields() -> None:
    names = {field.name for field in fields(SglangSettings)}
    assert set(FLAGS.settings.values()) <= names
    assert {*FLAGS.settings.values(), "engine"} == names  # and each can be asked for by a flag


def test_lists_are_read() -> None:
    assert ENGINE.settings({"cuda_graph_bs": "1,2,4"}).cuda_graph_bs == (1, 2, 4)
