"""What is known of a board's power: metered ones as they are, others scaled by their datasheets.

Of two boards that are alike in a thing, both have it in the same measure:

- idle and active power go with silicon x clock on one side, with the TDP on the other: their geometric mean; boards
  with GDDR idle lower;
- energy of an operation goes with TDP / (tensor rate x what is left of the clock under load): boards are built so that
  their tensor cores can just be fed;
- energy of a byte goes with that to the power of `BYTES_FOLLOW`, because part of it is the memory's own, which is alike
  in all stacked memories; GDDR's pins cost `GDDR_PICOJOULES` more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log
from typing import Any

from infercast.bundled import read_data
from infercast.hardware import Gpu, load_gpu

REFERENCE = "h200-sxm"
"""The board that others are scaled from: its joules were counted."""
BYTES_FOLLOW = 0.7
GDDR_PICOJOULES = 30.0
GDDR_IDLE = 0.6
"""What a board with GDDR idles at, as a share of what one with stacked memory would: published runs of an RTX 5060 Ti,
a 5070 Ti and a 5090 draw 5, 12 and 18 % less than without it."""
MOST_WORK = 4.0
"""Chips without tensor cores spend far more on an operation, but not on a byte."""
PICO = 1e-12
SIBLINGS = {"blackwell": ("b200-sxm",), "blackwell-ultra": ("b200-sxm",), "hopper": ("h200-sxm", "h100-sxm")}
"""Architectures of which boards were metered; of several the one with the nearest bandwidth is taken."""
SPREAD = {"sibling": 0.12, "unseen": 0.2, "typical": 0.25}
"""Standard deviation of the logarithm of a run's power, where a board was not metered."""


@dataclass(frozen=True, slots=True)
class Board:
    """One board at the clock that it runs at while nothing holds it back; energies in joules."""

    idle_watts: float
    active_watts: float
    flop: float
    dram: float
    l2: float
    spread: float
    source: str


@cache
def energy_data() -> dict[str, Any]:
    """All that energy.toml says."""
    return read_data("energy.toml")


def board_of(gpu: Gpu, known: str | None = None) -> Board:
    """What is known of a GPU's board; ``known``: scaled from that one, whatever else is known."""
    boards = energy_data()["boards"]
    if known is None and gpu.name in boards:
        return _read(gpu.name, boards[gpu.name].get("source", "measured"))
    sibling = _sibling(gpu)
    base = known or sibling or REFERENCE
    source = "sibling" if base == sibling else "unseen" if gpu.vendor == "NVIDIA" else "typical"
    return _scaled(_read(base, source), load_gpu(base), gpu)


def _sibling(gpu: Gpu) -> str | None:
    """The metered board of the same architecture, if there is one."""
    names = SIBLINGS.get(gpu.architecture, ())
    return min(names, key=lambda name: abs(log(load_gpu(name).dram_bandwidth / gpu.dram_bandwidth)), default=None)


def _read(name: str, source: str) -> Board:
    boards = energy_data()["boards"]
    row: dict[str, float] = {**boards.get(boards[name].get("base"), {}), **boards[name]}
    return Board(
        idle_watts=row["idle_watts"],
        active_watts=row["active_watts"],
        flop=row["flop"] * PICO,
        dram=row["dram"] * PICO,
        l2=row["l2"] * PICO,
        spread=SPREAD.get(source, row["spread"]),
        source=source,
    )


def _scaled(board: Board, known: Gpu, gpu: Gpu) -> Board:
    """A board as another GPU would have it."""
    chip = (_silicon(gpu) * gpu.boost_clock) / (_silicon(known) * known.boost_clock)
    power = (chip * gpu.tdp / known.tdp) ** 0.5
    work = _fed(gpu) / _fed(known)
    pins = GDDR_PICOJOULES * PICO * ((gpu.memory == "gddr") - (known.memory == "gddr"))
    moved = min(work, MOST_WORK) ** BYTES_FOLLOW
    rest = GDDR_IDLE ** ((gpu.memory == "gddr") - (known.memory == "gddr"))
    return Board(
        idle_watts=board.idle_watts * power * rest,
        active_watts=board.active_watts * power,
        flop=board.flop * work,
        dram=board.dram * moved + pins,
        l2=board.l2 * moved,
        spread=board.spread,
        source=board.source,
    )


def _silicon(gpu: Gpu) -> float:
    """Square millimetres of its multiprocessors with their share of the die."""
    return float(energy_data()["silicon"][gpu.architecture]) * gpu.sms


def _fed(gpu: Gpu) -> float:
    """Joules of TDP for each operation of the tensor cores."""
    return float(gpu.tdp / (max(gpu.whole_tensor_flops, gpu.dense_flops("bf16")) * gpu.sustained_fraction**0.5))
