"""Base classes of public objects: a one-line repr, tables for notebooks, data frames.

How an answer is written is known to `infercast.report`, and what can be asked of a deployment to `infercast.forecast`,
layers above those that make them; the package itself says where they are (`set_layers_above`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABOVE: dict[str, Callable[..., Any]] = {}


class ReprMixin:
    """Has a `repr` of one line, however much it holds."""

    __slots__ = ()

    def _words(self) -> str:
        """What the line says."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._words()}>"


class SettingsRepr:
    """A dataclass of settings: its `repr` has those that are not at their defaults, as they would be written."""

    __slots__ = ()

    def __repr__(self) -> str:
        from dataclasses import fields  # noqa: PLC0415 - commands that build no settings start without it

        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


class ResultMixin(ReprMixin):
    """Also has itself as plain data, as a table, and as HTML for notebooks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: the same as the command with ``--json`` prints."""
        found: dict[str, Any] = renderers().document_of(self)
        return found

    def to_frame(self, library: str | None = None) -> Any:
        """The rows of ``--format csv`` as a data frame of ``library``: pandas, polars, or the first installed."""
        return renderers().frame_of(self, library)

    def _repr_html_(self) -> str:
        """What notebooks show."""
        text: str = renderers().html_of(self)
        return text


class PlottableResult(ResultMixin):
    """Also has a picture."""

    __slots__ = ()

    def plot(self) -> Any:
        """A figure of matplotlib, which notebooks show and `savefig` writes; needs ``infercast[report]``."""
        return renderers().picture_of(self)


def set_layers_above(renderers: Callable[[], Any], verb: Callable[[str], Any]) -> None:
    """``renderers`` returns the module that writes answers, ``verb`` a public function by its name; both when asked."""
    _ABOVE.update(renderers=renderers, verb=verb)


def renderers() -> Any:
    """The module `infercast.report.formats`."""
    return _ABOVE["renderers"]()


def verb(name: str) -> Any:
    """A public function of `infercast`, for methods of the same name."""
    return _ABOVE["verb"](name)
