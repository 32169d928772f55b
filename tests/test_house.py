"""What must not grow unseen: declarations, constants, flags, and names that were given up or mean two things."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from infercast.engines.vllm.versions import EngineVersion
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy, PrefillRules
from infercast.serve.simulation import scheduler_of
from infercast.serve.step import constant_timer

SOURCE = Path(__file__).parents[1] / "src" / "infercast"
MEASURED = {"fitted", "runs", "models", "gpus", "prices", "lab", "hosts", "arguments"}
GIVEN_UP = {
    "Answer", "Bundle", "Chosen", "Cohort", "Commands", "Delivery", "Effect", "FirstCome", "Flags", "Inbox", "Line",
    "Looks", "Meaning", "Meeting", "Move", "Names", "News", "Plotted", "PrefillFirst", "Seen", "Served", "Shown",
    "Site", "Timetable", "_Pass", "_give_up", "_put", "_take_in", "_time_beside", "_time_decodes", "beside", "tell",
}  # fmt: skip
"""Names that the field has better words for; none of them is left. `deploy` stays: it is one of the ten verbs."""


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def declared_lines() -> int:
    """Lines of data files that are written by hand and are no measurements."""
    folder = SOURCE / "data"
    found = (path for path in folder.rglob("*") if path.suffix in (".json", ".toml", ".yaml", ".yml"))
    kept = (path for path in found if path.stem != "arguments" and not MEASURED & {*path.relative_to(folder).parts})
    return sum(path.read_text("utf-8").count("\n") for path in kept)


def constants() -> Iterator[str]:
    for tree in trees().values():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            yield from (each.id for each in targets if isinstance(each, ast.Name) and each.id.isupper())


def classes_twice() -> set[tuple[str, str]]:
    """(layer, name) of public classes that are defined in two modules of one layer."""
    seen: set[tuple[str, str]] = set()
    twice: set[tuple[str, str]] = set()
    for path, tree in trees().items():
        names = {(path.relative_to(SOURCE).parts[0], node.name) for node in tree.body if isinstance(node, ast.ClassDef)}
        names = {each for each in names if not each[1].startswith("_")}
        twice |= seen & names
        seen |= names
    return twice


def old_names() -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef)
    return GIVEN_UP & {node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, kinds)}


def flags_of(policy: FcfsPolicy | PrefillFirstPolicy) -> int:
    scheduler = scheduler_of(Replica(timer=constant_timer(1.0), policy=policy, num_blocks=100))
    return sum(isinstance(value, bool) for value in vars(scheduler).values())


COUNTS = {
    "declarative lines": (declared_lines, 6023),
    "module constants": (lambda: sum(1 for _ in constants()), 1185),
    "class names twice in one layer": (lambda: len(classes_twice()), 0),
    "old names": (lambda: len(old_names()), 0),
    "flags of a release of vLLM": (lambda: [*EngineVersion.__annotations__.values()].count("bool"), 0),
    "flags of FirstCome": (lambda: [each.type for each in fields(FcfsPolicy)].count("bool"), 16),
    "flags of PrefillFirst": (lambda: [each.type for each in fields(PrefillFirstPolicy)].count("bool"), 3),
    "flags of PrefillRules": (lambda: len(PrefillRules._fields), 14),
    "flags of the scheduler": (lambda: flags_of(FcfsPolicy(max_num_batched_tokens=8, max_num_seqs=8)), 3),
    "flags of the prefill-first scheduler": (lambda: flags_of(PrefillFirstPolicy(max_running_requests=8)), 3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_there_are_no_more_than_before(name: str) -> None:
    count, most = COUNTS[name]
    assert count() <= most, f"{name}: lower the number here if there are fewer, and say why if there have to be more"
