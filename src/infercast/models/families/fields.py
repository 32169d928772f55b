"""Typed access to the fields of a config.json, with errors that name the file, the field and the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from infercast.errors import FileFormatError

# No published model comes near these; a file that goes beyond them is a mistake or an attack.
LARGEST_COUNT = 2**40
MOST_LAYERS = 4096

Item = TypeVar("Item")
Answer = bool | str
"""Yes or no, or the flag that says which."""


class Fields(NamedTuple):
    """The fields of one config: ``values`` as parsed, ``where`` they were read from.

    ``outer`` are the fields around a nested ``text_config``; they answer what the inner ones leave out.
    """

    values: Mapping[str, Any]
    where: str
    outer: Mapping[str, Any] | None = None

    def raw(self, *keys: str) -> Any:
        """The first of ``keys`` that is present and not null, here and then around it; None without any."""
        for values in (self.values, self.outer or {}):
            for key in keys:
                if values.get(key) is not None:
                    return values[key]
        return None

    def wrong(self, key: str, wanted: str) -> FileFormatError:
        """The error of a field that is not ``wanted``."""
        shown = repr(self.raw(key))
        return FileFormatError(self.where, f"{key} must be {wanted}, not {shown if len(shown) < 60 else shown[:57]}")

    def positive(self, key: str, *alternatives: str, default: int | None = None) -> int:
        """A whole number above zero, required unless a default is given."""
        found = next((name for name in (key, *alternatives) if self.raw(name) is not None), None)
        if found is None:
            if default is None:
                raise FileFormatError(self.where, f"the field {key} is missing; a whole number above zero is needed")
            return default
        value = self.raw(found)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_COUNT:
            raise self.wrong(found, "a whole number above zero")
        return value

    def count(self, key: str, *alternatives: str, default: int = 0) -> int:
        """A whole number that may be zero or absent."""
        if any(self.raw(name) == 0 for name in (key, *alternatives)):
            return 0
        return self.positive(key, *alternatives, default=default)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false, ``default`` when absent."""
        return bool(self._checked(key, default, "true or false", lambda value: isinstance(value, bool)))

    def answer(self, said: Answer) -> bool:
        """Yes or no: as a family has it, or as the config says."""
        return self.flag(said) if isinstance(said, str) else said

    def fraction(self, key: str, default: float = 1.0) -> float:
        """A number above zero and at most one."""
        wanted = "a number above zero and at most one"
        return float(self._checked(key, default, wanted, lambda value: _is_number(value) and 0 < value <= 1))

    def word(self, key: str, default: str = "") -> str:
        """A string, ``default`` when absent."""
        return str(self._checked(key, default, "a string", lambda value: isinstance(value, str)))

    def words(self, key: str) -> list[str]:
        """A list of strings, empty when absent."""
        return list(self._checked(key, [], "a list of strings", lambda value: _is_list(value, str)))

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers (true and false count as 1 and 0), None when absent."""
        found = self._checked(key, None, "a list of whole numbers", lambda value: _is_list(value, int))
        return None if found is None else [int(item) for item in found]

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero, required unless a default is given."""
        if self.raw(key) is None and default is None:
            raise FileFormatError(self.where, f"the field {key} is missing; a number above zero is needed")
        return float(self._checked(key, default, "a number above zero", lambda value: _is_number(value) and value > 0))

    def sections(self, key: str) -> list[Fields]:
        """A list of nested objects, each as fields of its own, empty when absent."""
        found = self._checked(key, [], "a list of objects", lambda value: _is_list(value, dict))
        return [Fields(values, f"{self.where}, {key}[{index}]") for index, values in enumerate(found)]

    def section(self, key: str) -> Fields:
        """A nested object as fields of its own, empty when absent."""
        values = self._checked(key, {}, "an object", lambda value: isinstance(value, dict))
        return Fields(values, f"{self.where}, {key}")

    def _checked(self, key: str, default: Any, wanted: str, holds: Callable[[Any], bool]) -> Any:
        value = self.raw(key)
        if value is not None and not holds(value):
            raise self.wrong(key, wanted)
        return default if value is None else value

    @property
    def layers(self) -> int:
        """``num_hidden_layers``, within reason."""
        layers = self.positive("num_hidden_layers")
        if layers > MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MOST_LAYERS}")
        return layers

    def a_layer(self, key: str, items: list[Item]) -> list[Item]:
        """The first items of a list, one for each layer; a list that is too short is refused.

        A longer one belongs to a model that was cut to fewer layers, or also holds prediction layers.
        """
        if len(items) < self.layers:
            raise FileFormatError(self.where, f"{key} has {len(items)} items for {self.layers} layers")
        return items[: self.layers]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
