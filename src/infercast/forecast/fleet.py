"""Replicas of several kinds behind one load balancer, from words: ``2xh100-sxm:tp=2 + 4xl40s:quantization=fp8``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import mul

from infercast.engines.base import Deployment
from infercast.errors import InputError, require
from infercast.forecast.deploy import call_of, deploy_changed, parse_changes
from infercast.forecast.steady import full_rate
from infercast.forecast.system import System, fleet_of
from infercast.serve import Workload

Group = tuple[str, partial[Deployment], range]
"""A kind of replicas as it was written, the call that deploys one, and how many there may be."""


def parse_fleet(text: str, deploy_on: Callable[[str], partial[Deployment]]) -> list[Group]:
    """``deploy_on``: the call of `deploy` with a GPU and what is said for all groups."""
    found: list[Group] = []
    short = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization"}
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)(?:-(\d+))?\s*x\s*)?(([^:=,\s]+)\s*(?::(.+))?)", part)
        if match is None:
            raise InputError(
                f"fleet {text!r} must be groups of replicas as COUNTxGPU:OPTION=VALUE,... with + between them, such as "
                "2xh100-sxm:tp=2 + 4xl40s:quantization=fp8"
            )
        name, asked = match[3].strip(), deploy_on(match[4])
        least, most = int(match[1] or 1), int(match[2] or match[1] or 1)
        require(most >= max(least, 1), "fleet", "have a replica of each group, or numbers such as 0-4x", repr(part))
        if match[5] is not None:
            words = (each.strip().partition("=") for each in match[5].split(","))
            try:
                changes = parse_changes(",".join(f"{short.get(one, one)}{sign}{value}" for one, sign, value in words))
            except InputError as problem:
                raise InputError(f"fleet: {str(problem).removeprefix('what-if ')}") from None
            if changes.gpu is not None or changes.router is not None:
                raise InputError(f"fleet group {name!r} takes options of its replicas; the GPU is before the colon")
            asked = call_of(deploy_changed(asked, changes))
        same = sum(each.partition(" #")[0] == name for each, *_ in found)
        found.append((f"{name} #{same + 1}" if same else name, asked, range(least, most + 1)))
    return found


def deployed(
    groups: Sequence[Group], router: str | None, workload: Workload, price_of: Callable[[Deployment], float | None],
    keeps: Callable[[System], bool] | None,
) -> System:  # fmt: skip
    """The cheapest of the mixes that ``keeps`` accepts, in the order of prices: the first is never a wrong one.

    Mixes that cannot serve the rate at all are not tried. Without numbers to choose from there is one mix.
    """
    calls = [(name, call(), counts) for name, call, counts in groups]

    def mix_of(numbers: Sequence[int]) -> tuple[System, list[int]]:
        kept = [place for place, number in enumerate(numbers) if number]
        found = [(f"{numbers[place]}x{calls[place][0]}", calls[place][1], numbers[place]) for place in kept]
        return fleet_of(found, router), kept

    if all(len(counts) == 1 for *_, counts in calls):
        return mix_of([counts[0] for *_, counts in calls])[0]
    prices = [price for _, deployment, _ in calls if (price := price_of(deployment)) is not None]
    if keeps is None or len(prices) < len(calls):
        raise InputError("numbers of replicas to choose from, as in 0-4xl40s, need an SLO and the prices of all GPUs")
    rates = [full_rate(deployment.replica(), workload) for _, deployment, _ in calls]
    mixes = sorted(
        (sum(map(mul, numbers, prices)), numbers) for numbers in product(*(counts for *_, counts in calls))
        if any(numbers) and sum(map(mul, numbers, rates)) >= (workload.rate or 0.0)
    )  # fmt: skip
    for _, numbers in mixes:
        system, kept = mix_of(numbers)
        if len(kept) > 1:
            system = system._replace(weights=tuple(rates[place] / max(rates[each] for each in kept) for place in kept))
        if keeps(system):
            return system
    raise InputError(f"none of {len(mixes)} mixes that can serve the rate keeps the SLO; allow more replicas")
