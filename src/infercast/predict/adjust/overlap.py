"""Kernels that overlap: prompts and decoding in one attention launch, and short kernels on a second stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of, is_modelled
from infercast.ops import Attention, Call, Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.families import families_of

# Prompts and decoding sequences in one launch of attention: kernels were learned on the one or the other.


ADDED_SHARE, SHARED_SECONDS = 1.1, 14e-6
"""Of the shorter half, what comes on top of the longer one, once what both need once is taken off."""
SLOWED_SHARE, SLOWED_SECONDS, BESIDE_SECONDS = 0.52, 250e-6, 10e-6
"""By which share long prompts take longer at most where sequences decode in the same launch, the prompts' seconds at
which it is half of that, and the decoding sequences' seconds likewise. All but the last were fitted on 1,804 mixed
batches of our sweep of an H200. With whole head layouts left out they are 8 % off in the median instead of 12 with 0.6
of the shorter half, and 3 % instead of 12 short on batches as serving makes them."""


UNPACKED = "flash-2"
"""How the names of attention kernels begin that put the query heads of one KV head into one tile only where nothing but
decoding is in the launch: FlashAttention 2. Beside prompts each head of a decoding sequence has a tile of its own, most
of whose rows are empty."""
TILE_ROWS = 64
"""Rows of that tile in the kernel that engines run, over pages. PyTorch's, with 128 rows, shows it on an H200: whatever
the prompts, sequences beside them take as long as if they had 128 queries each (81 mixed batches, 330 TFLOP/s)."""
TILE_SHARE = 0.4
"""Share of the tensor cores' peak that these tiles reach; on published runs (docs/validation.md)."""


def padded(op: Op, gpu: Gpu) -> float:
    """Seconds for each key of a sequence that decodes in one launch with prompts, at least; 0: as on Hopper."""
    if not (isinstance(op, Attention) and is_modelled(gpu) and facts_of(gpu).attention.startswith(UNPACKED)):
        return 0.0
    if op.latent_kv or op.kernel or op.kv_dtype != op.dtype:  # of these FlashAttention 2 has no kernel
        return 0.0
    operations = 2.0 * TILE_ROWS * op.heads * (op.head_dim + op.value_dim)
    return operations / (TILE_SHARE * gpu.dense_flops(op.dtype))


def padded_seconds(op: Op | None, gpu: Gpu) -> Any:
    """The same for all sequences of a batch that decodes."""
    return padded(op, gpu) * op.num_pairs if isinstance(op, Attention) else 0.0


def split_batch(op: Op) -> tuple[Op, Op | None]:
    """A batch of prompts and decoding sequences as two."""
    return families_of(op)[0].split(op)


def together(prompts: Any, decodes: Any, launches: Any = 1, padded: Any = 0.0) -> Any:
    """Seconds of both halves in ``launches`` launches; ``padded``: the least that the second takes beside the first."""
    if np.any(padded):
        return prompts + np.maximum(decodes, padded)
    prompts = prompts * slowed_by(prompts, decodes, launches)
    longer, shorter = np.maximum(prompts, decodes), np.minimum(prompts, decodes)
    return longer + ADDED_SHARE * np.maximum(shorter - SHARED_SECONDS * launches, 0.0)


def slowed_by(prompts: Any, decodes: Any, launches: Any) -> Any:
    """How many times longer prompts take beside sequences that decode."""
    long = prompts / (prompts + SLOWED_SECONDS * launches)
    return 1.0 + SLOWED_SHARE * long * (decodes / (decodes + BESIDE_SECONDS * launches))


def join(prompts: Estimate, decodes: Estimate, padded: Any = 0.0) -> Estimate:
    """The estimate of both halves in one launch."""
    longer = prompts if float(prompts.seconds) > float(decodes.seconds) else decodes
    return Estimate(
        float(together(prompts.seconds, decodes.seconds, padded=padded)),
        float(together(prompts.low, decodes.low, padded=padded)),
        float(together(prompts.high, decodes.high, padded=padded)),
        prompts.source,
        longer.bound,
    )


# Kernels that run beside others, on a stream of their own: short ones cost a step nothing.


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
