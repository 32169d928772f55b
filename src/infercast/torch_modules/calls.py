"""What a PyTorch module called: aten operators in order with the shapes they met, and the memory they held."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
    def bytes(self) -> int:
        """Distinct bytes: what was broadcast counts once."""
        return self.size * prod(length for length, stride in zip(self.shape, self.strides, strict=True) if stride)

    @property
    def size(self) -> int:
        return SIZES.get(self.dtype, 8)

    @property
    def format(self) -> str:
        """The name of its number format among operators; integers are as fast as floats of their size."""
        return FORMATS.get(self.dtype, "bf16" if self.size <= 2 else "fp32")

    @property
    def is_contiguous(self) -> bool:
        """Whether its values lie in order of its dimensions, without gaps."""
        return self._lies_in(range(len(self.shape)))

    @property
    def is_channels_last(self) -> bool:
        return len(self.shape) >= 4 and not self.is_contiguous and self._lies_in([0, *range(2, len(self.shape)), 1])

    @property
    def is_dense(self) -> bool:
        """Whether its values lie without gaps, in any order."""
        return self._lies_in(sorted(range(len(self.shape)), key=lambda at: (-self.strides[at], at)))

    def _lies_in(self, order: Any) -> bool:
        expected = 1
        for at in reversed([*order]):
            if self.shape[at] != 1:
                if self.strides[at] != expected:
                    return False
                expected *= self.shape[at]
        return True


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One operator that PyTorch dispatched; a Triton kernel has a name that begins with ``triton.``."""

    name: str
    arguments: dict[str, Any]
    """By name; tensors and lists of them among plain values. Those with their default values are left out."""
    outputs: tuple[Tensor, ...]
    module: str = ""
    """Path of the submodule whose ``forward`` called it."""
    is_view: bool = False

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors among its arguments."""
        found: list[Tensor] = []
        for value in self.arguments.values():
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, Tensor)]
        return found

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


@dataclass(frozen=True, slots=True)
class Capture:
    """All calls of one forward pass."""

    calls: list[AtenCall]
    parameters: int
    weight_bytes: int
    input_bytes: int
    peak_bytes: int
    """The most that inputs, activations and outputs took at once, as a caching allocator rounds them."""
    classes: dict[str, str] = field(default_factory=dict)
    """The class of each submodule by its path."""
    assumed: list[str] = field(default_factory=list)
    """Values that decided how the code went on, and that were drawn because no weights are there."""

    def to_json(self) -> str:
        """As small as it gets: repeated tensors and calls are written once."""
        tensors: dict[Tensor, int] = {}
        calls: dict[str, int] = {}

        def packed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return {"t": tensors.setdefault(value, len(tensors))}
            return [packed(each) for each in value] if isinstance(value, list | tuple) else value

        order, paths = [], []
        for call in self.calls:
            given = {name: packed(value) for name, value in call.arguments.items()}
            text = json.dumps([call.name, given, packed(call.outputs), call.is_view])
            order.append(calls.setdefault(text, len(calls)))
            paths.append(call.module)
        facts = {name: getattr(self, name) for name in ("parameters", "weight_bytes", "input_bytes", "peak_bytes")}
        known = {"tensors": [*tensors], "distinct": [json.loads(text) for text in calls], "order": order}
        return json.dumps(facts | known | {"modules": paths, "classes": self.classes, "assumed": self.assumed})


def capture_from_json(text: str) -> Capture:
    """What `Capture.to_json` wrote."""
    facts = json.loads(text)
    tensors = [Tensor(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in facts.pop("tensors")]

    def unpacked(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value["t"]]
        return [unpacked(each) for each in value] if isinstance(value, list) else value

    distinct = [
        (name, {key: unpacked(value) for key, value in given.items()}, tuple(unpacked(outputs)), is_view)
        for name, given, outputs, is_view in facts.pop("distinct")
    ]
    calls = []
    for which, module in zip(facts.pop("order"), facts.pop("modules"), strict=True):
        name, given, outputs, is_view = distinct[which]
        calls.append(AtenCall(name, given, outputs, module, is_view))
    return Capture(calls=calls, **facts)
