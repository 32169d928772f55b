"""What moved between two records of a board: better, worse, new and gone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from groups import QUANTITIES, over_sources

MOVED = 0.005
"""Errors that differ by less are the same."""
SHOWN = 15


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines for people: how medians moved, and the runs that moved most."""
    before, after = old["runs"], new["runs"]
    both = [key for key in after if key in before]
    told = [f"{len(both)} runs in both, {len(after) - len(both)} new, {len(before) - len(both)} gone"]
    for grade in ("A", "B"):
        for quantity, title in QUANTITIES.items():
            pairs = [
                (abs(before[key][quantity]["error"]), abs(after[key][quantity]["error"]))
                for key in both
                if after[key]["grade"] == grade and quantity in before[key] and quantity in after[key]
            ]
            if pairs:
                told.append(f"grade {grade} {title}: {_line(pairs)}")
    for quantity, title in QUANTITIES.items():
        ends = [
            over_sources([run for run in runs.values() if run["grade"] == "A"], quantity) for runs in (before, after)
        ]
        if None not in ends:
            told.append(f"grade A {title}, median over sources: {ends[0]:.1%} -> {ends[1]:.1%}")
    return told + _runs(before, after, both)


def _line(pairs: list[tuple[float, float]]) -> str:
    better = sum(new < old - MOVED for old, new in pairs)
    worse = sum(new > old + MOVED for old, new in pairs)
    middles = median(old for old, _ in pairs), median(new for _, new in pairs)
    return f"median {middles[0]:.1%} -> {middles[1]:.1%}; {better} better, {worse} worse of {len(pairs)}"


def _runs(before: Mapping[str, Any], after: Mapping[str, Any], both: list[str]) -> list[str]:
    """The runs that moved most, either way."""
    moves = sorted(
        (abs(after[key][name]["error"]) - abs(before[key][name]["error"]), key, name)
        for key in both
        for name in QUANTITIES
        if name in before[key] and name in after[key]
    )
    shown = [move for move in moves[:SHOWN] if move[0] < -MOVED] + [move for move in moves[-SHOWN:] if move[0] > MOVED]
    return [
        f"{'better' if move < 0 else 'worse '} {QUANTITIES[name]:8s} {before[key][name]['error']:+.0%} -> "
        f"{after[key][name]['error']:+.0%}  {after[key]['gpu']} {after[key]['model']} {after[key]['load']}  {key}"
        for move, key, name in shown
    ]
