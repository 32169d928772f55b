"""All errors, as one small tree.

InfercastError
├── InputError               the caller's input is wrong; the command line exits with code 2
│   ├── UnknownNameError     a GPU, model or other name that is not known
│   ├── FileFormatError      a file that cannot be read as what it should be
│   ├── UnsupportedModelError   a model architecture that is not understood, never guessed
│   └── SaturatedError       arrivals come faster than the deployment can ever serve them
└── DoesNotFitError          a valid question with the answer "it does not fit in memory"

Every message is one sentence that names the field, the value and the alternatives.
A Python exception outside this tree is a bug.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


EXTRAS = {
    "web": ("starlette", "uvicorn", "pydantic"), "report": ("matplotlib",), "fit": ("catboost", "pandas", "pyarrow"),
    "measure": ("torch", "pandas", "pyarrow"), "ray": ("ray",), "trace": ("torch",),
    "tokenizer": ("tokenizers", "jinja2"),
}  # Packages that some questions need, as pyproject.toml has them  # fmt: skip


class InfercastError(Exception):
    """Everything this library raises on purpose."""

    details: Mapping[str, object] = {}
    """What the sentence names, for programs: the keys are those of errors that the command line prints as JSON."""


class InputError(InfercastError, ValueError):
    """The caller's input is wrong."""


class UnknownNameError(InputError):
    """A name that is not known, with the nearest known ones."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *, near: Sequence[str] | None = None,
        listed: bool = True,
    ) -> None:  # fmt: skip
        """``near`` are guesses of the caller's own; names too many to be ``listed`` are not."""
        names = sorted(known)
        if near is None:
            near = near_names(name.lower(), names, most=3, likeness=0.5)
        suggestion = f"did you mean {' or '.join(near)}? " if near else ""
        listing = f"known: {', '.join(names)}" if listed else ""
        super().__init__(f"unknown {kind} {name!r}; {suggestion}{listing}{hint}")
        self.details = {"kind": kind, "name": name, "did_you_mean": list(near)}


class FileFormatError(InputError):
    """A file that cannot be read as what it should be: names the file, the place and the field."""

    def __init__(self, path: object, problem: str, line: int | None = None) -> None:
        place = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {problem}")
        self.details = {"file": f"{path}", "line": line}


@contextmanager
def reading(path: object, kind: str, *others: type[Exception]) -> Iterator[None]:
    """What goes wrong while a file of a ``kind`` is read, and ``others`` that its reader raises, in one sentence."""
    kinds: tuple[type[Exception], ...] = (ValueError, *others)
    try:
        yield
    except InputError:
        raise
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, f"is not UTF-8 text, so not {kind}") from None
    except RecursionError:
        raise FileFormatError(path, f"is not {kind}: nested too deeply") from None
    except kinds as problem:
        what, line = getattr(problem, "msg", problem), getattr(problem, "lineno", None)
        raise FileFormatError(path, f"is not {kind}: {what}", line) from None


def read_json(path: Path, kind: str = "JSON", most: int = 2**29) -> dict[str, Any]:
    """The one object that a JSON file of ``most`` bytes at most holds, gzipped or not."""
    import gzip  # noqa: PLC0415 - many commands read no file
    import json  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    with reading(path, kind, EOFError, zlib.error), path.open("rb") as file:
        content = file.read(most + 1)  # a pipe or a device does not say how long it is
        if len(content) > most:
            raise FileFormatError(path, f"is larger than {most / 1e6:,.0f} MB, too large for {kind}")
        packed = content.startswith(b"\x1f\x8b")
        document = json.loads((gzip.decompress(content) if packed else content).decode("utf-8-sig"))
    if not isinstance(document, dict):
        raise FileFormatError(path, f"must hold one JSON object, not {type(document).__name__}")
    return document


class Fields:
    """An object of a file, each field of which is checked as it is read: what is wrong names the file and the field."""

    largest = 1e12  # No number is larger unless more is allowed

    def __init__(self, path: Path, holder: Any, place: str = "") -> None:
        """``place`` is where it stands in the file: ``runs[0]``."""
        if not isinstance(holder, Mapping):
            raise FileFormatError(path, f"{place or 'the file'} must be an object, not {_short(holder)}")
        self.path, self.holder, self.place = path, holder, place

    def __contains__(self, name: str) -> bool:
        return self.holder.get(name) is not None

    def named(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def wrong(self, name: str, problem: str) -> FileFormatError:
        return FileFormatError(self.path, f"{self.named(name)} {problem}")

    def other(self, name: str, wanted: str) -> FileFormatError:
        """That a field is not what is ``wanted``."""
        return self.wrong(name, f"must be {wanted}, not {_short(self.holder.get(name))}")

    def part(self, name: str) -> Fields:
        return Fields(self.path, self.holder.get(name), self.named(name))

    def inner(self, name: str) -> Fields:
        """A part that may be left out."""
        return self.part(name) if name in self else Fields(self.path, {}, self.named(name))

    def maybe(self, name: str) -> Fields:
        """A part, empty where there is none, or something else."""
        found = self.holder.get(name)
        return Fields(self.path, found if isinstance(found, Mapping) else {}, self.named(name))

    def parts(self, name: str) -> list[Fields]:
        found = self.holder.get(name, [])
        if not isinstance(found, list):
            raise self.other(name, "a list")
        return [Fields(self.path, each, f"{self.named(name)}[{place}]") for place, each in enumerate(found)]

    def get(self, name: str, kind: type) -> Any:
        """A field that must be there, of this type; integers are accepted as floats."""
        value = self.holder.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            place = self.place or "the file"
            raise FileFormatError(self.path, f"{place} needs the field {name!r} of type {kind.__name__}, not {value!r}")
        return value

    def word(self, name: str, default: str = "") -> str:
        return str(self.get(name, str)) if self.holder.get(name) else default

    def at_least(self, name: str, least: int) -> int:
        value = int(self.get(name, int))
        if value < least:
            raise self.wrong(name, f"must be at least {least}, not {value}")
        return value

    def number(self, name: str, least: float = 0.0, most: float = largest) -> float | None:
        value = self.holder.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            ends = f" of at least {least:g}" if most >= self.largest else f" from {least:g} to {most:g}"
            raise self.other(name, "a number" if least <= -self.largest else f"a number{ends}")
        return float(value)

    def needed(self, name: str, least: float = 0.0, most: float = largest) -> float:
        value = self.number(name, least, most)
        if value is None:
            raise self.other(name, "a number")
        return value

    def count(self, name: str, least: int = 0) -> int | None:
        value = self.number(name, least, 1e9)
        return None if value is None else round(value)


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class UnsupportedModelError(InputError):
    """A model architecture that is not understood."""


class SaturatedError(InputError):
    """Arrivals come faster than the deployment can ever serve them."""


class DoesNotFitError(InfercastError):
    """The model, its activations or its KV cache do not fit in the GPU's memory."""


def require(holds: object, name: str, wanted: str, value: object) -> None:
    """Refuse the value of an option or a field unless it ``holds`` what is ``wanted``: to "be at least 1", say."""
    if not holds:
        raise InputError(f"{name} must {wanted}, not {f'{value:g}' if isinstance(value, float) else value}")


def missing(what: str, extra: str) -> InputError:
    """What to say where packages are missing: the command that brings them into the Python that runs."""
    import shlex  # noqa: PLC0415 - few need it

    names = EXTRAS[extra]
    command = shlex.join([sys.executable, "-m", "pip", "install", *names])
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return InputError(f"{what} needs {listed}: {command}")


def need(what: str, extra: str) -> None:
    """Refuse what cannot be done without packages that are not there, before it is begun."""
    from importlib.util import find_spec  # noqa: PLC0415 - few need it

    if any(find_spec(package) is None for package in EXTRAS[extra]):
        raise missing(what, extra)


def near_names(name: str, known: Iterable[str], *, most: int, likeness: float = 0.6) -> list[str]:
    """The known names that are most like one, best first."""
    import difflib  # noqa: PLC0415 - only who mistypes a name needs it

    return difflib.get_close_matches(name, known, n=most, cutoff=likeness)
