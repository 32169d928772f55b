"""The reference of the Python surface, made from signatures, types and docstrings of everything that is public."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from typing import Any

import infercast
from infercast.old_names import HOMES

INTRODUCTION = """# Reference: Python

Every public name of `infercast` and of its modules, with its signature and what its docstring says. This page is
generated from the code when the site is built; [from Python](python.md) shows how the names work together. Times are in
seconds, sizes in bytes and rates per second unless a name says otherwise.
"""
ERRORS = "Errors"
FUNCTIONS = "Functions"
CLASSES = "Classes"


def page() -> str:
    """Functions, then classes with their fields and methods, then errors; of the package, then of its modules."""
    kinds: dict[str, list[str]] = {FUNCTIONS: [], CLASSES: [], ERRORS: []}
    homes = {name: f"infercast.{name}" for name in infercast.__all__}
    further = {home.rpartition(".")[2]: home for home in HOMES.values()}
    for name in [*sorted(homes, key=str.lower), *sorted(further.keys() - homes.keys(), key=str.lower)]:
        module, _, _ = (homes | further)[name].rpartition(".")
        value = getattr(import_module(module), name)
        if not inspect.isclass(value):
            kinds[FUNCTIONS].append(function_entry(name, f"{module}.{name}", value))
        elif issubclass(value, Exception):
            kinds[ERRORS].append(f"### {name}\n\n{documentation(value)}\n")
        else:
            kinds[CLASSES].append(class_entry(name, value))
    parts = [INTRODUCTION]
    for title, entries in kinds.items():
        parts += [f"## {title}\n", *entries]
    return "\n".join(parts)


def function_entry(name: str, home: str, function: Any) -> str:
    """A function: how it is called, and what it says of itself."""
    return f"### {name}\n\n```python\n{call(home, function)}\n```\n\n{documentation(function)}\n"


def class_entry(name: str, kind: type) -> str:
    """A class: what it says of itself, its fields with their sentences, its properties and its methods."""
    lines = [f"### {name}", "", documentation(kind), ""]
    rows = field_rows(kind)
    if rows:
        lines += ["| field | type | meaning |", "| --- | --- | --- |", *rows, ""]
    for method_name, method in methods(kind):
        said = textwrap.indent(documentation(method), "    ").strip()
        lines += [f"`{call(f'.{method_name}', method)}`", f":   {said}", ""]
    return "\n".join(lines)


def documentation(owner: Any) -> str:
    """A docstring as one paragraph for each of its own; prompts of examples are set as code."""
    text = inspect.cleandoc(getattr(owner, "__doc__", None) or "")
    if text.startswith(f"{getattr(owner, '__name__', '')}("):  # what a dataclass without a docstring is given
        return ""
    return re.sub(r"((?:^>>> .*\n?(?:^(?!>>> ).+\n?)*)+)", r"```python\n\1\n```\n", text, flags=re.MULTILINE)


def call(name: str, function: Any) -> str:
    """A signature over as many lines as it needs."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.name != "self"]
    words = [parameter(each) for each in shown]
    if any(each.kind is each.KEYWORD_ONLY for each in shown) and not any(
        each.kind is each.VAR_POSITIONAL for each in shown
    ):
        words.insert(next(at for at, each in enumerate(shown) if each.kind is each.KEYWORD_ONLY), "*")
    result = "" if signature.return_annotation is signature.empty else f" -> {annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= 100 or name.startswith("."):
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in words) + f"){result}"


def parameter(each: inspect.Parameter) -> str:
    """A parameter with its type and its default."""
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else f": {annotation(each.annotation)}"
    default = "" if each.default is each.empty else f"{' = ' if kind else '='}{shortened(repr(each.default))}"
    return f"{stars}{each.name}{kind}{default}"


def annotation(value: Any) -> str:
    """A type in the words of the source."""
    return shortened(value if isinstance(value, str) else inspect.formatannotation(value)).strip("'")


def shortened(words: str) -> str:
    """Types without the modules that they live in, and defaults without addresses."""
    words = re.sub(r"<factory>|<(?:object|function) [\w.<>]+ at 0x[0-9a-f]+>", "...", words)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", words)


def field_rows(kind: type) -> list[str]:
    """Fields of a dataclass or named tuple, also those of its parents, and properties, each with its sentence."""
    rows: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        if not parent.__module__.startswith("infercast"):
            continue
        for name, words, meaning in fields(parent):
            rows[name] = f"| `{name}` | `{words}` | {meaning} |".replace("``", "")
    for name, value in inspect.getmembers(kind, lambda each: isinstance(each, property)):
        if not name.startswith("_"):
            words = annotation(inspect.signature(value.fget).return_annotation)
            rows[name] = f"| `{name}` | `{escaped(words)}` | {in_a_cell(value.__doc__)} |"
    return list(rows.values())


def fields(kind: type) -> list[tuple[str, str, str]]:
    """Name, type and the sentence below or beside each annotated field, which only the source has."""
    source = textwrap.dedent(inspect.getsource(kind))
    tree, lines = ast.parse(source), source.splitlines()
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = []
    for at, each in enumerate(body):
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)) or each.target.id.startswith(
            "_"
        ):
            continue
        after = body[at + 1] if at + 1 < len(body) else None
        beside = lines[each.end_lineno - 1][each.end_col_offset :].partition("# ")[2] if each.end_lineno else ""
        meaning = f"{beside}." if beside and beside[-1].isalnum() else beside
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            meaning = after.value.value
        found.append((each.target.id, escaped(ast.unparse(each.annotation)), in_a_cell(meaning)))
    return found


def methods(kind: type) -> list[tuple[str, Any]]:
    """Public methods of a class of ours, in the order of the alphabet."""
    found = inspect.getmembers(kind, lambda each: inspect.isfunction(each) or inspect.ismethod(each))
    return [
        (name, each)
        for name, each in found
        if not name.startswith("_") and each.__module__.startswith("infercast") and each.__doc__
    ]


def escaped(words: str) -> str:
    """Types in a table's cell."""
    return words.replace("|", "\\|")


def in_a_cell(text: str | None) -> str:
    """Sentences on one line."""
    return escaped(" ".join((text or "").split()))
