"""Whose rows stand for a kernel on a GPU: its own, else those of the nearest datasheet."""

import numpy as np

from infercast.hardware import load_gpu
from points import Kernel, Points, join
from splits import ByGpu


def nearest_rows(known: ByGpu, kernel: Kernel, gpu: str) -> tuple[str, Points]:
    """(GPU, rows) of the same kernel on the nearest GPU; else of the same variant; else of anything in the family."""
    engine, variant = kernel
    order = sorted(known, key=lambda name: distance(name, gpu))
    for engines, variants in (({engine}, {variant}), (None, {variant}), (None, None)):
        for name in order:
            found = [
                rows
                for (of_engine, of_variant), rows in known[name].items()
                if (engines is None or of_engine in engines) and (variants is None or of_variant in variants)
            ]
            if found:
                return name, join(found)
    raise LookupError(f"no rows to predict {kernel} on {gpu} from")


def distance(one: str, other: str) -> float:
    """How far two datasheets are apart."""
    return float(np.abs(_datasheet(one) - _datasheet(other)).sum())


def _datasheet(name: str) -> np.ndarray:
    gpu = load_gpu(name)
    return np.log([gpu.dense_flops("bf16"), gpu.dram_bandwidth, gpu.sms, gpu.boost_clock])
