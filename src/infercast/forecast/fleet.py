"""Replicas of several kinds behind one load balancer, from words: ``2xh100-sxm:tp=2 + 4xl40s:quantization=fp8``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from infercast.engines.base import Deployment
from infercast.errors import InputError
from infercast.forecast.deploy import call_of, deploy_changed, parse_changes
from infercast.forecast.system import System, fleet_of

Group = tuple[str, partial[Deployment], int]  # As it was written, the call that deploys one replica, and how many


def parse_fleet(text: str, deploy_on: Callable[[str], partial[Deployment]]) -> list[Group]:
    """``deploy_on``: the call of `deploy` with a GPU and what is said for all groups."""
    found: list[Group] = []
    short = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization"}
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:([1-9]\d*)\s*x\s*)?([^:=,\s]+)\s*(?::(.+))?", part)
        if match is None:
            raise InputError(
                f"fleet {text!r} must be groups of replicas as COUNTxGPU:OPTION=VALUE,... with + between them, such as "
                "2xh100-sxm:tp=2 + 4xl40s:quantization=fp8"
            )
        name, asked = part.strip(), deploy_on(match[2])
        if match[3] is not None:
            words = (each.strip().partition("=") for each in match[3].split(","))
            try:
                changes = parse_changes(",".join(f"{short.get(one, one)}{sign}{value}" for one, sign, value in words))
            except InputError as problem:
                raise InputError(f"fleet: {str(problem).removeprefix('what-if ')}") from None
            if changes.gpu is not None or changes.router is not None:
                raise InputError(f"fleet group {name!r} takes options of its replicas; the GPU is before the colon")
            asked = call_of(deploy_changed(asked, changes))
        same = sum(each.partition(" #")[0] == name for each, *_ in found)
        found.append((f"{name} #{same + 1}" if same else name, asked, int(match[1] or 1)))
    return found


def deployed(groups: Sequence[Group], router: str | None = None) -> System:
    return fleet_of([(name, call(), count) for name, call, count in groups], router)
