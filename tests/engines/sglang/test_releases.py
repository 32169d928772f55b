"""Rules of SGLang by release."""

import pytest

from infercast.engines.base import engine_named, engines
from infercast.engines.sglang.settings import rules_of
from infercast.serve.scheduler.base import PrefillRules


def test_a_name_without_a_version_is_the_newest_release() -> None:
    assert engine_named("sglang").name == "sglang@0.5.23"
    measured = {name for name, engine in engines().items() if engine.is_measured and name.startswith("sglang@")}
    assert measured == {"sglang@0.5.16", "sglang@0.5.23"}
    assert sum(name.startswith("sglang@") for name in engines()) == 8


@pytest.mark.parametrize(
    ("version", "number"), [("0.5.9", 0), ("0.5.16", 0), ("0.5.17", 2), ("0.5.20", 4), ("0.5.21", 5), ("0.5.22", 11)]
)
def test_rules_are_added_release_by_release(version: str, number: int) -> None:
    assert sum(rules_of(f"sglang@{version}")) == number


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.6.0"])
def test_the_newest_has_them_all(version: str) -> None:
    assert rules_of(f"sglang@{version}") == PrefillRules(*[True] * len(PrefillRules._fields))
