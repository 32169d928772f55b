"""Every format of weights that a release lists is read, taken as the nearest one, or refused with a reason."""

import json

import pytest

from infercast.bundled import DATA
from infercast.engines.base import engine_named
from infercast.errors import UnsupportedModelError
from infercast.forecast.deploy import load_model


def listed(engine: str) -> list[str]:
    tables = json.loads((DATA / "engines" / engine / "arguments.json").read_text("utf-8"))
    rows = tables if isinstance(tables, list) else [row for table in tables.values() for row in table]
    return sorted({name for row in rows if isinstance(row, list) and row[:1] == ["quantization"] for name in row[5]})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_listed_format_is_unknown(engine: str) -> None:
    names, refused = listed(engine), {}
    for name in names:
        try:
            load_model("qwen3-30b-a3b", quantization=name, engine=engine_named(engine))
        except UnsupportedModelError as problem:
            refused[name] = f"{problem}"
    assert len(names) > 20
    assert len(refused) < 15
    assert all("names a way to store weights" in each or " is for " in each for each in refused.values())


def test_what_stands_for_a_format_is_said() -> None:
    model = load_model("qwen3-8b", quantization="bitsandbytes")
    assert model.weights.name == "int4"
    assert model.assumed.startswith("quantization bitsandbytes is taken as int4: ")
    assert model.assumed in model.notes
