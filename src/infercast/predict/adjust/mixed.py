"""Prompts and decoding sequences in one launch of attention: kernels were learned on the one or the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.ops import Op
from infercast.predict.estimate import Estimate
from infercast.predict.families import families_of

ADDED_SHARE, SHARED_SECONDS = 1.1, 14e-6
"""Of the shorter half, what comes on top of the longer one, once what both need once is taken off."""
SLOWED_SHARE, SLOWED_SECONDS, BESIDE_SECONDS = 0.52, 250e-6, 10e-6
"""By which share long prompts take longer at most where sequences decode in the same launch, the prompts' seconds at
which it is half of that, and the decoding sequences' seconds likewise. All but the last were fitted on 1,804 mixed
batches of our sweep of an H200. With whole head layouts left out they are 8 % off in the median instead of 12 with 0.6
of the shorter half, and 3 % instead of 12 short on batches as serving makes them."""


def split_batch(op: Op) -> tuple[Op, Op | None]:
    """A batch of prompts and decoding sequences as two."""
    return families_of(op)[0].split(op)


def together(prompts: Any, decodes: Any, launches: Any = 1) -> Any:
    """Seconds of both halves in ``launches`` launches."""
    prompts = prompts * slowed_by(prompts, decodes, launches)
    longer, shorter = np.maximum(prompts, decodes), np.minimum(prompts, decodes)
    return longer + ADDED_SHARE * np.maximum(shorter - SHARED_SECONDS * launches, 0.0)


def slowed_by(prompts: Any, decodes: Any, launches: Any) -> Any:
    """How many times longer prompts take beside sequences that decode."""
    long = prompts / (prompts + SLOWED_SECONDS * launches)
    return 1.0 + SLOWED_SHARE * long * (decodes / (decodes + BESIDE_SECONDS * launches))


def join(prompts: Estimate, decodes: Estimate) -> Estimate:
    """The estimate of both halves in one launch."""
    longer = prompts if float(prompts.seconds) > float(decodes.seconds) else decodes
    return Estimate(
        float(together(prompts.seconds, decodes.seconds)),
        float(together(prompts.low, decodes.low)),
        float(together(prompts.high, decodes.high)),
        prompts.source,
        longer.bound,
    )
