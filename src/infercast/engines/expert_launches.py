"""How an engine launches Triton's kernel for routed experts: its rules of thumb, and the files that override them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from infercast.hardware import Gpu

FILE_KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


class Configuration(NamedTuple):
    """One launch configuration."""

    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int

    def as_file(self) -> dict[str, int]:
        """As files have it."""
        return dict(zip(FILE_KEYS, self, strict=True))

    def __str__(self) -> str:
        group = f", groups of {self.group}" if self.group > 1 else ""
        return f"{self.rows} x {self.columns} x {self.depth}, {self.warps} warps, {self.stages} stages{group}"


class ExpertLaunches(NamedTuple):
    """An engine's choice."""

    formats: Mapping[str, str]
    """What the kernel multiplies in, and how a configuration file's name says it."""
    folder_variable: str
    """The environment variable that names the folder of a user's own files."""
    rule_of_thumb: Callable[[int, int, str], Configuration]
    """By tokens, experts and format, without a tuned file."""
    file_tokens: Callable[[int, str], tuple[int, ...]]
    """Numbers of tokens that a file needs, by experts and format."""
    file_name: Callable[[int, int, str, Gpu], str]
    """Where the engine looks for a layer's configurations, by experts, their width, format and GPU."""
    has_tuned_file: Callable[[int, int, str, Gpu], bool]
    """Whether its package has a file for such a layer."""
