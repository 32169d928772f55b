"""What flags of SGLang's server set is there."""

from dataclasses import fields

from infercast.engines.base import engine_named
from infercast.engines.sglang.settings import SglangSettings

ENGINE = engine_named("sglang")
FLAGS = ENGINE.flags


def test_settings_are_fields() -> None:
    names = {field.name for field in fields(SglangSettings)}
    assert set(FLAGS.settings.values()) <= names
    # And each can be asked for by a flag, or by an option of every engine.
    assert {*FLAGS.settings.values(), "acceptance", "engine"} == names


def test_lists_are_read() -> None:
    assert ENGINE.settings({"cuda_graph_bs": "1,2,4"}).cuda_graph_bs == (1, 2, 4)
