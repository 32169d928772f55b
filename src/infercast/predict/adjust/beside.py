"""Kernels that run beside others, on a stream of their own: short ones cost a step nothing."""

from __future__ import annotations

import numpy as np

from infercast.ops import Call
from infercast.ops.op import Quantity

HIDDEN_SECONDS = 8e-6
"""What others hide of such a kernel: about one product of few rows. With it published modules of DeepSeek-V4 that
choose entries come out of their kernels within 5 % on an H200, for one sequence and 64 or 8 heads; one after the other,
these kernels take 39 % and 46 % longer than the modules."""
LEAST_LEFT = 0.5
"""No launch saves more than the rest of a kernel."""


def felt_seconds(call: Call, each: Quantity) -> Quantity:
    """What all launches of a kernel cost a step where one takes so long."""
    if call.beside:
        each = np.maximum(np.asarray(each) - HIDDEN_SECONDS, 0.0)
    if call.saved:
        each = np.maximum(np.asarray(each) - call.saved, LEAST_LEFT * np.asarray(each))
    return call.count * call.slower * each
