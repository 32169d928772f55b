"""One published run: what was asked of which engine, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infercast.forecast.command.flags import Reading
from infercast.serve.workload.request import Workload
from infercast.validate.published.flags import ServerFlags

GPUS = {
    "A100-80GB": "a100-sxm",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "B200": "b200-sxm",
    "L40S": "l40s",
    "RTX4090": "rtx-4090",
    "RTX5090": "rtx-5090",
    "RTXA6000": "rtx-a6000",
    "RTXPRO6000": "rtx-pro-6000-server",
}
"""What publishers call a GPU, where it is not one of our names."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run: what was asked of which engine, and what came back, in seconds."""

    run_id: str
    source: str
    gpu: str
    model: str
    dtype: str
    tensor: int
    data: int
    expert_parallel: bool
    version: tuple[int, ...]
    flags: ServerFlags
    workload: Workload
    max_model_len: int | None
    ttft: float | None
    """None where the state of the prefix cache is unknown, too."""
    tpot: float | None
    end_to_end: float | None
    output_tokens_per_second: float | None
    engine: str = "vllm@0.25"
    """Whose rules stand for the stated version."""
    reading: Reading | None = None
    """The flags of the server's command, where the source has it; its words in ``flags`` otherwise."""
    median: bool = False
    """Whether TTFT and TPOT are medians over the requests, not means."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the row says of the server beyond its command, by the engine's names."""
    cache_tokens: int = 0
    """Tokens that the source says its KV cache has room for; 0: it does not say."""
    gaps: bool = False
    """Whether TPOT is the median of all times between tokens, because nothing else was published."""
    steady: bool = False
    """Whether only the time was measured in which as many requests as may run did, and others waited."""
    stand_for: int = 0
    """So many requests were sent, of which the first are simulated; 0: all are."""
    pipeline: int = 1
    instances: int = 1
    """Servers of this kind, each for itself behind a load balancer."""
    copies: int = 1
    """Servers that take turns, of which one is simulated with its part of the requests."""
    gpus: int = 0
    """Stated GPUs, of which a layout may leave some idle."""
    layout_stated: bool = True
    load: str = ""
    """Its kind, in a word."""
    grade: str = ""
    """``A``: settings are known, ``B``: some are implied; ``s`` behind it: with speculative decoding."""
    precision: str = ""
    """As published."""
    chat: bool = False
    """Whether requests are chats, which the server renders by a template."""
    top_p: bool = False
    """Whether tokens are drawn from the most likely ones only."""
    assumptions: tuple[str, ...] = ()
    """What the source does not say and is taken to be so."""
    problem: str = ""
    """Why it cannot be simulated."""

    @property
    def layout(self) -> str:
        """For people: ``TP4``, ``TP8+EP``."""
        parts = [
            f"TP{self.tensor}",
            f"PP{self.pipeline}" if self.pipeline > 1 else "",
            f"DP{self.data}" if self.data > 1 else "",
            "EP" if self.expert_parallel else "",
            f"{self.instances * self.copies} servers" if self.instances * self.copies > 1 else "",
        ]
        return "+".join(part for part in parts if part)
