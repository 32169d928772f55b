"""The whole sweep in the order it runs: any beginning of it is spread over all families and shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from infercast.errors import UnknownNameError
from infercast.measure.case import Case
from infercast.measure.plan.attention import attention_cases
from infercast.measure.plan.gemm import gemm_cases
from infercast.measure.plan.other import elementwise_cases, expert_cases
from infercast.measure.plan.probes import probe_cases
from infercast.measure.plan.recurrent import recurrent_cases
from infercast.measure.plan.sparse import sparse_cases

# How large a share of any beginning each family gets; the first points are what a short sweep lives on.
SHARES = {
    "gemm": 0.40,
    "attention_decode": 0.16,
    "attention_prefill": 0.16,
    "attention_mixed": 0.04,
    "moe": 0.10,
    "elementwise": 0.14,
}
FAMILIES = tuple(SHARES)
# Measured where they are named only: they are compiled or tuned for longer than all their shapes are measured.
RECURRENT = {"scan": 0.4, "state_update": 0.25, "convolution": 0.25, "gating": 0.1}
ON_REQUEST = {**RECURRENT, "sparse": 0.4, "probe": 0.4}
NAMES = (*FAMILIES, *ON_REQUEST)
SOURCES: dict[tuple[str, ...], Callable[[], Iterator[Case]]] = {
    ("gemm",): gemm_cases,
    ("attention_decode", "attention_prefill", "attention_mixed"): attention_cases,
    ("moe",): expert_cases,
    ("elementwise",): elementwise_cases,
    tuple(RECURRENT): recurrent_cases,
    ("sparse",): sparse_cases,
    ("probe",): probe_cases,
}


def sweep_cases(families: Sequence[str] | None = None) -> list[Case]:
    """All cases, most useful first; the same list for every GPU."""
    wanted, shares = families or FAMILIES, SHARES | ON_REQUEST
    for family in wanted:
        if family not in shares:
            raise UnknownNameError("kernel family", family, NAMES)
    by_family: dict[str, list[Case]] = defaultdict(list)
    for members, cases_of in SOURCES.items():
        for case in cases_of() if {*members} & {*wanted} else ():
            if case.family in wanted:
                by_family[case.family].append(case)
    places: list[tuple[float, Case]] = []
    for family, cases in by_family.items():
        order = np.random.default_rng(len(cases)).permutation(len(cases))
        places += [((rank + 0.5) / shares[family], cases[index]) for rank, index in enumerate(order)]
    first: dict[str, Case] = {}
    for _, case in sorted(places, key=lambda place: place[0]):
        first.setdefault(case.key, case)
    return list(first.values())
