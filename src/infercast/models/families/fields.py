"""Typed access to the fields of a config.json, with errors that name the file, the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from infercast.errors import FileFormatError

# No published model comes near these; a file that goes beyond them is a mistake or an attack.
LARGEST_COUNT = 2**40
MOST_LAYERS = 4096


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
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def fraction(self, key: str, default: float = 1.0) -> float:
        """A number above zero and at most one."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self.wrong(key, "a number above zero and at most one")
        return float(value)

    def word(self, key: str, default: str = "") -> str:
        """A string, ``default`` when absent."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def words(self, key: str) -> list[str]:
        """A list of strings, empty when absent."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers (true and false count as 1 and 0), None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.wrong(key, "a list of whole numbers")
        return [int(item) for item in value]

    def section(self, key: str) -> Fields:
        """A nested object as fields of its own, empty when absent."""
        value = self.raw(key)
        if value is None:
            return Fields({}, f"{self.where}, {key}")
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value, f"{self.where}, {key}")

    @property
    def layers(self) -> int:
        """``num_hidden_layers``, within reason."""
        layers = self.positive("num_hidden_layers")
        if layers > MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MOST_LAYERS}")
        return layers

    def a_layer(self, key: str, items: list[Any]) -> None:
        """Refuse a list that does not hold one item for each layer."""
        if len(items) != self.layers:
            raise FileFormatError(self.where, f"{key} has {len(items)} items for {self.layers} layers")
