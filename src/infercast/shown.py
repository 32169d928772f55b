"""What public objects have in common: one line for a console, and tables for notebooks and data frames.

How an answer is written is known to the layer `report`, which is above those that make answers: it goes by name.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any


class Shown:
    """Has a `repr` of one line, however much it holds."""

    __slots__ = ()

    def _words(self) -> str:
        """What the line says."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._words()}>"


class Chosen:
    """A dataclass of settings: its `repr` has those that are not at their defaults, as they would be written."""

    __slots__ = ()

    def __repr__(self) -> str:
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


class Answer(Shown):
    """Also has itself as plain data, as a table, and as HTML for notebooks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: the same as the command with ``--json`` prints."""
        found: dict[str, Any] = _faces().document_of(self)
        return found

    def to_frame(self, library: str | None = None) -> Any:
        """The rows of the command with ``--format csv`` as a data frame.

        ``library`` is ``pandas`` or ``polars``; without it the one that is installed, pandas first.
        """
        return _faces().frame_of(self, library)

    def _repr_html_(self) -> str:
        """What notebooks show."""
        text: str = _faces().html_of(self)
        return text


class Plotted(Answer):
    """Also has a picture."""

    __slots__ = ()

    def plot(self) -> Any:
        """A figure of matplotlib, which notebooks show and `savefig` writes; needs ``infercast[report]``."""
        return _faces().picture_of(self)


def _faces() -> Any:
    return import_module("infercast.report.faces")
