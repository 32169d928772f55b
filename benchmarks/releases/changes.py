"""What two releases of an engine have in common and what not, read from their Python files without running them.

A change is one of the syntax tree: formatting, docstrings, log messages and annotations of parameters are none. What
moved to another file is compared with what it was.
"""

import ast
import difflib
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "arguments"))

from definitions import READERS, Definition, Sources

ROOTS = {"vllm": "vllm", "sglang": "sglang/srt"}
RECORDS = {"vllm": ("config.py", "config/*.py"), "sglang": ("model_executor/cuda_graph_config.py",)}
"""Files with classes whose fields are settings, whether or not a flag sets them."""
OTHERS = re.compile(
    r"(^|[/_])(rocm|aiter|flydsl|hip|xpu|tpu|npu|musa|mlx)[/_.]|(^|/)(zen_)?cpu(_[a-z_]*)?\.py|worker/cpu/"
)
"""Files of hardware that is not forecast, or not by its engine's own kernels."""
WATCHED: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("watched.toml").read_text("utf-8"))


@dataclass
class Change:
    """A function, the fields of a class or a constant that is not what it was."""

    file: str
    name: str
    before: str | None
    after: str | None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        old, new = (text.splitlines() if text else [] for text in (self.before, self.after))
        self.lines = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=2))

    @property
    def what(self) -> str:
        return "new" if self.before is None else "gone" if self.after is None else "changed"

    @property
    def counts(self) -> tuple[int, int]:
        """Lines that are new, and lines that are gone."""
        return tuple(sum(line[0] == sign for line in self.lines[2:]) for sign in "+-")  # type: ignore[return-value]


class Bare(ast.NodeTransformer):
    """Leaves out what decides nothing: docstrings, log messages, annotations of parameters."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        is_log = isinstance(call, ast.Call) and ast.unparse(call.func).startswith(("logger.", "logging."))
        return None if is_log or isinstance(call, ast.Constant) else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def units(text: str) -> dict[str, str]:
    """The functions, classes (their fields alone) and constants of a file, by name, in one form of writing."""
    found: dict[str, str] = {}
    _add(Bare().visit(ast.parse(text)).body, "", found)
    return found


def _add(body: list[ast.stmt], above: str, found: dict[str, str]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            inner = [
                each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            ]
            _add(inner, f"{above}{node.name}.", found)
            node.body = [each for each in node.body if each not in inner] or [ast.Pass()]
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        else:
            name = getattr(node, "name", "the module")
        found[above + name] = "\n".join(filter(None, (found.get(above + name), ast.unparse(node))))


def of_files(folder: Path, patterns: Iterable[str]) -> dict[tuple[str, str], str]:
    files = {path.relative_to(folder).as_posix(): path for pattern in patterns for path in folder.glob(pattern)}
    return {
        (name, unit): text
        for name, path in sorted(files.items())
        if not OTHERS.search(name)
        for unit, text in units(path.read_text(encoding="utf-8")).items()
    }


def changes(before: Path, after: Path, patterns: Iterable[str]) -> list[Change]:
    """What changed in the files that the patterns find in either release, the largest change first."""
    old, new = of_files(before, patterns), of_files(after, patterns)
    came = {name: (file, name) for file, name in new.keys() - old}
    for key in sorted(old.keys() - new):  # what moved to another file is compared with what it was
        if key[1] in came:
            old[came.pop(key[1])] = old.pop(key)
    found = [
        Change(*key, old.get(key), new.get(key)) for key in sorted(old.keys() | new) if old.get(key) != new.get(key)
    ]
    return sorted(found, key=lambda each: -sum(each.counts))


def by_subject(engine: str, before: Path, after: Path) -> list[tuple[dict[str, Any], list[Change]]]:
    """Entries of `watched.toml` with what changed in their files; every change once, most changed subject first."""
    roots = before / ROOTS[engine], after / ROOTS[engine]
    seen: set[tuple[str, str]] = set()
    found = []
    for subject in WATCHED[engine]:
        named = re.compile(subject.get("names", ""))
        own = [
            each
            for each in changes(*roots, subject["files"])
            if (each.file, each.name) not in seen and named.search(each.name)
        ]
        seen |= {(each.file, each.name) for each in own}
        found.append((subject, own))
    return sorted(found, key=lambda pair: -sum(sum(each.counts) for each in pair[1]))


def flag_changes(engine: str, before: Path, after: Path) -> dict[str, list[str]]:
    """Flags that are new, gone or defined in another way, one line each; fields of settings likewise."""
    old, new = ({each.names[0]: each for each in READERS[engine](folder)} for folder in (before, after))
    fields = [_fields(folder / ROOTS[engine], RECORDS[engine]) for folder in (before, after)]
    both = [(name, fields[0][name], fields[1][name]) for name in sorted(fields[0].keys() & fields[1])]
    return {
        "new flags": [f"{name} ({_told(new[name])})" for name in sorted(new.keys() - old)],
        "flags that are gone": sorted(old.keys() - new),
        "flags defined in another way": [
            f"{name}: {what}" for name in sorted(old.keys() & new) if (what := _difference(old[name], new[name]))
        ],
        "new fields of settings": [f"{name} = {fields[1][name]}" for name in sorted(fields[1].keys() - fields[0])],
        "fields of settings that are gone": sorted(fields[0].keys() - fields[1]),
        "fields of settings with another default": [f"{name}: {one} -> {two}" for name, one, two in both if one != two],
    }


def _told(flag: Definition) -> str:
    choices = f", one of {', '.join(flag.choices)}" if flag.choices else ""
    return f"{flag.takes}, {flag.type}, default {flag.default or 'none'}{choices}"


def _difference(old: Definition, new: Definition) -> str:
    """What of a definition is another; the order of choices is no difference."""
    pairs = [("takes", old.takes, new.takes), ("type", old.type, new.type)]
    pairs += [("default", old.default or "none", new.default or "none"), ("names", old.names, new.names)]
    parts = [f"{what} {one} -> {two}" for what, one, two in pairs if one != two]
    if bool(old.choices) != bool(new.choices):
        parts.append("any value" if old.choices else f"only {', '.join(new.choices)}")
    else:
        parts += [f"+ {each}" for each in new.choices if each not in old.choices]
        parts += [f"- {each}" for each in old.choices if each not in new.choices]
    return "; ".join(parts)


def _fields(folder: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    sources = Sources(folder)
    sources.read(*patterns)
    return {
        f"{owner}.{name}": ast.unparse(node.value) if node.value else "required"
        for owner in sources.classes
        for name, node in sources.fields(owner).items()
    }


def requirements(folder: Path) -> dict[str, str] | None:
    """Versions that a wheel asks for without extras, by package; None where only Python files were kept."""
    for path in folder.glob("*.dist-info/METADATA"):
        lines = re.findall(r"^Requires-Dist: ([\w.-]+)(?:\[[^]]*\])? *(.*)$", path.read_text("utf-8"), re.MULTILINE)
        return {
            name.lower(): version.partition(";")[0].strip("() ") or "any"
            for name, version in lines
            if "extra ==" not in version
        }
    return None
