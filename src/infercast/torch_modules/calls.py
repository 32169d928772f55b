"""What a PyTorch module called: aten operators in order with the shapes they met, and the memory they held."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, NamedTuple

SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
FORMATS = {"float32": "fp32", "float64": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Tensor(NamedTuple):
    """A tensor without its values."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        return SIZES.get(self.dtype, 8)

    @property
    def bytes(self) -> int:
        """Distinct bytes: what was broadcast counts once."""
        return self.size * prod(length for length, stride in zip(self.shape, self.strides, strict=True) if stride)

    @property
    def format(self) -> str:
        """The name of its number format among operators; integers are as fast as floats of their size."""
        return FORMATS.get(self.dtype, "bf16" if self.size <= 2 else "fp32")

    @property
    def is_contiguous(self) -> bool:
        return self.lies_in(range(len(self.shape)))

    @property
    def is_channels_last(self) -> bool:
        return len(self.shape) >= 4 and not self.is_contiguous and self.lies_in([0, *range(2, len(self.shape)), 1])

    @property
    def is_dense(self) -> bool:
        return self.lies_in(sorted(range(len(self.shape)), key=lambda at: (-self.strides[at], at)))

    @property
    def innermost(self) -> int:
        """The dimension whose neighbours lie side by side; -1 without any."""
        sides = zip(self.strides, range(len(self.shape)), self.shape, strict=True)
        return min(((stride, at) for stride, at, length in sides if length > 1 and stride), default=(0, -1))[1]

    def lies_in(self, order: Sequence[int]) -> bool:
        """Whether values lie without gaps, the dimensions in this order."""
        expected = 1
        for at in reversed(order):
            if self.shape[at] != 1:
                if self.strides[at] != expected:
                    return False
                expected *= self.shape[at]
        return True


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One operator that PyTorch dispatched; a Triton kernel has a name that begins with ``triton.``."""

    name: str
    arguments: dict[str, Any]  # By name; tensors and lists of them among plain values
    outputs: tuple[Tensor, ...]
    module: str = ""  # Path of the submodule whose ``forward`` called it
    is_view: bool = False

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors among its arguments."""
        given = (each if isinstance(each, list) else [each] for each in self.arguments.values())
        return [each for several in given for each in several if isinstance(each, Tensor)]

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


@dataclass(frozen=True, slots=True)
class Capture:
    """All calls of one forward pass."""

    calls: list[AtenCall]
    parameters: int
    weight_bytes: int
    peak_bytes: int  # The most that inputs, activations and outputs took at once, as PyTorch's allocator rounds them
    assumed: list[str] = field(default_factory=list)
    """Values that decided how the code went on, and that were drawn because no weights are there."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def capture_from_json(text: str) -> Capture:
    """What `Capture.to_json` wrote."""
    facts = json.loads(text)
    for call in facts["calls"]:
        call["arguments"] = {name: _unpacked(value) for name, value in call["arguments"].items()}
        call["outputs"] = tuple(map(_unpacked, call["outputs"]))
    return Capture(**facts | {"calls": [AtenCall(**call) for call in facts["calls"]]})


def _unpacked(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) == 3 and isinstance(value[0], str) and isinstance(value[1], list):
        return Tensor(value[0], tuple(value[1]), tuple(value[2]))
    return [_unpacked(each) for each in value]
