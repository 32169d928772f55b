"""The flags of an engine's server, read from its argument definitions without running them.

A definition is a call of `add_argument`, or a field of a class whose fields become flags. Both are read from the syntax
tree, so nothing of the engine has to be installed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PLAIN = {"int", "float", "str", "bool"}
NAMED = {"List": "list", "Sequence": "list", "Tuple": "tuple", "Set": "set", "Dict": "dict", "Mapping": "dict"}
MULTIPLE = ("list", "tuple", "set")
MOST_NAMES = 5
"""Names that stand for one another."""


class Definition(NamedTuple):
    names: tuple[str, ...]
    """All spellings with their dashes, the first long one in front."""
    takes: str
    """`switch`, `bool` (with a `--no-` form), `value`, `list`, `maybe` (a value or none) or `json`."""
    type: str = "str"
    default: str = ""
    choices: tuple[str, ...] = ()


@dataclass
class Sources:
    """Classes and names of some files of a package."""

    folder: Path
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)

    def read(self, *paths: str) -> list[ast.Module]:
        """Parse the files that exist, and remember what they define."""
        trees = []
        for pattern in paths:
            for path in sorted(self.folder.glob(pattern)):
                tree = ast.parse(path.read_text(encoding="utf-8"))
                trees.append(tree)
                for node in ast.walk(tree):
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, node)
                for node in tree.body:
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                        self.values.setdefault(node.targets[0].id, node.value)
                    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                        self.values.setdefault(node.target.id, node.value)
        return trees

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """The fields of a class, with those of the classes that it extends."""
        if name not in self.classes:
            return {}
        own = self.classes[name]
        found: dict[str, ast.AnnAssign] = {}
        for base in own.bases:
            found |= self.fields(ast.unparse(base))
        for node in own.body:
            is_field = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            if is_field and not ast.unparse(node.annotation).startswith(("ClassVar", "InitVar")):
                found[node.target.id] = node
        return found

    def hints(self, node: ast.expr, depth: int = 0) -> list[ast.expr]:  # noqa: PLR0911 - one for each form
        """The alternatives of an annotation, with names replaced by what they stand for."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.hints(ast.parse(node.value, mode="eval").body, depth)
        if isinstance(node, ast.BinOp):
            return [*self.hints(node.left, depth), *self.hints(node.right, depth)]
        if isinstance(node, ast.Subscript):
            what = ast.unparse(node.value).rpartition(".")[2]
            parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            if what == "Union":
                return [each for part in parts for each in self.hints(part, depth)]
            if what == "Optional":
                return [*self.hints(parts[0], depth), ast.Constant(None)]
            if what in ("SkipValidation", "Annotated", "A"):
                return self.hints(parts[0], depth)
        if isinstance(node, ast.Name) and node.id in self.values and depth < MOST_NAMES:
            return self.hints(self.values[node.id], depth + 1)
        return [node]

    def literal(self, node: ast.expr | None, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each form
        """What an expression is, where that can be said without running it; otherwise None."""
        if node is None or depth > MOST_NAMES:
            return None
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.literal(self.values[node.id], depth + 1)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("get_args", "list", "sorted")) and node.args:
            alternatives = self.hints(node.args[0])
            if isinstance(alternatives[0], ast.Subscript):
                return list(self._choices(alternatives))
            return self.literal(node.args[0], depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.literal(node.left, depth + 1), self.literal(node.right, depth + 1)
            return [*left, *right] if isinstance(left, list) and isinstance(right, list) else None
        if isinstance(node, (ast.List, ast.Tuple)) and any(isinstance(each, ast.Starred) for each in node.elts):
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.classes:
            return self._attribute(node.value.id, node.attr, depth)
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            return None
        return list(value) if isinstance(value, (tuple, set)) else value

    def _attribute(self, owner: str, name: str, depth: int) -> Any:
        """The default of a field, which others refer to."""
        found = self.fields(owner).get(name)
        return None if found is None else self.default(found.value, depth + 1)

    def default(self, node: ast.expr | None, depth: int = 0) -> Any:
        """The default of a field, perhaps within `Field(...)` or `field(...)`."""
        if isinstance(node, ast.Call):
            inner = {each.arg: each.value for each in node.keywords}
            name = ast.unparse(node.func)
            if name in ("Field", "field", "msgspec.field", "dataclasses.field"):
                factory = inner.get("default_factory")
                if isinstance(factory, ast.Lambda):
                    return self.literal(factory.body, depth)
                return self.literal(inner.get("default", node.args[0] if node.args else None), depth)
            if name == "get_field" and len(node.args) == 2:
                return self._attribute(ast.unparse(node.args[0]), str(ast.literal_eval(node.args[1])), depth)
        return self.literal(node, depth)

    def _choices(self, alternatives: list[ast.expr]) -> tuple[str, ...]:
        found: list[str] = []
        for each in alternatives:
            if isinstance(each, ast.Subscript) and ast.unparse(each.value).endswith("Literal"):
                parts = each.slice.elts if isinstance(each.slice, ast.Tuple) else [each.slice]
                for part in parts:
                    inner = self.hints(part) if isinstance(part, ast.Name) else []
                    found += [str(part.value)] if isinstance(part, ast.Constant) else self._choices(inner)
        return tuple(dict.fromkeys(found))

    def kind(self, annotation: ast.expr) -> tuple[str, str, tuple[str, ...]]:  # noqa: PLR0911 - one for each form
        """What a flag of such a field takes, of which type, with which choices."""
        alternatives = self.hints(annotation)
        words = [ast.unparse(each).partition("[")[0].rpartition(".")[2] for each in alternatives]
        words = [NAMED.get(word, word) for word in words]
        if any(self._is_record(word) for word in words):
            return "json", "json", ()
        if {*words} == {"bool", "str", "None"}:
            return "maybe", "str", ()
        if "bool" in words:
            return "bool", "bool", ()
        if choices := self._choices(alternatives):
            number = all(each.lstrip("-").isdigit() for each in choices)
            return "value", "int" if number else "str", choices if "str" not in words else ()
        for each, word in zip(alternatives, words, strict=True):
            if word in MULTIPLE:
                inner = ast.unparse(each).partition("[")[2].rstrip("]").partition(",")[0]
                return "list", inner if inner in PLAIN else "str", self._choices(self.hints(each.slice))
        for word in ("int", "float"):
            if word in words:
                return "value", word, ()
        return ("json", "json", ()) if "dict" in words else ("value", "str", ())

    def _is_record(self, name: str) -> bool:
        found = self.classes.get(name)
        if found is None:
            return False
        return any("config" in ast.unparse(each) or "dataclass" in ast.unparse(each) for each in found.decorator_list)

    def of_field(self, name: str, node: ast.AnnAssign) -> Definition:
        takes, kind, choices = self.kind(node.annotation)
        return Definition((name,), takes, kind, _text(self.default(node.value)), choices)


def _text(value: Any) -> str:
    return "" if value in (None, [], {}) else str(value)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Every `add_argument` of a flag."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument") and flag_names(node):
            yield node


def flag_names(node: ast.Call) -> tuple[str, ...]:
    given = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return long_first([each for each in given if each.startswith("-")])


def long_first(names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda each: not each.startswith("--")))


def of_call(sources: Sources, node: ast.Call, known: dict[str, Definition]) -> Definition:
    """An `add_argument`; ``known`` are the keyword arguments that stand behind two stars."""
    found = Definition(flag_names(node), "value")
    given: dict[str, ast.expr] = {}
    for each in node.keywords:
        if each.arg is not None:
            given[each.arg] = each.value
            continue
        inner = each.value
        if isinstance(inner, ast.Dict):  # {**kwargs["name"], "default": None}
            given |= {
                str(ast.literal_eval(key)): value for key, value in zip(inner.keys, inner.values, strict=True) if key
            }
            inner = next(value for key, value in zip(inner.keys, inner.values, strict=True) if key is None)
        found = known.get(ast.unparse(inner), found)._replace(names=found.names)
    return changed(sources, found, given)


def changed(sources: Sources, found: Definition, given: dict[str, ast.expr]) -> Definition:
    """A definition with keyword arguments of `add_argument` or of `Arg`."""
    action = ast.unparse(given["action"]).strip("'\"") if "action" in given else ""
    kind = ast.unparse(given.get("type", given.get("type_parser", ast.Constant(""))))
    if "nargs" in given:
        count = ast.unparse(given["nargs"]).strip("'\"")
        found = found._replace(takes="maybe" if count == "?" else "value" if count == "None" else "list")
    if kind not in ("''", "None"):
        is_json = "json.loads" in kind or "dict" in kind or "nullable_kvs" in kind
        number = next((each for each in ("int", "float") if each in kind), "str")
        if found.takes == "json" or is_json:
            found = found._replace(takes="json", type="json")
        elif found.takes != "bool":
            found = found._replace(type=number if number != "str" or found.type == "json" else found.type)
    if choices := sources.literal(given.get("choices")):
        found = found._replace(choices=tuple(str(each) for each in choices))
    elif "choices" in given:
        found = found._replace(choices=())
    if "default" in given:
        found = found._replace(default=_text(sources.literal(given["default"])))
    return found._replace(takes=_takes(action, found.takes), type="bool" if _takes(action, "") else found.type)


def _takes(action: str, otherwise: str) -> str:
    if action.endswith("BooleanOptionalAction"):
        return "bool"
    if action in ("store_true", "store_false", "StoreBoolean") or action.endswith(
        ("StoreTrueAction", "StoreConstAction", "DeprecatedAction", "store_const")
    ):
        return "maybe" if action == "StoreBoolean" else "switch"
    return otherwise


VLLM_FILES = ("engine/arg_utils.py", "entrypoints/*/cli_args.py", "entrypoints/cli/serve.py")


VLLM_TYPES = (
    "config.py", "config/*.py", "entrypoints/chat_utils.py", "renderers/chat_utils.py", "pooling_params.py",
    "tool_parsers/tool_strict_level.py", "entrypoints/anthropic/protocol.py", "utils/__init__.py", "logging_utils/*.py",
    "v1/attention/backends/registry.py", "transformers_utils/tokenizer*.py",
    "model_executor/layers/quantization/__init__.py",
)  # fmt: skip
"""Files with the types of fields."""


def vllm(folder: Path) -> list[Definition]:
    sources = Sources(folder / "vllm")
    trees = sources.read(*VLLM_FILES)
    sources.read(*VLLM_TYPES)
    found: dict[str, Definition] = {}
    for tree in trees:
        known = _keyword_arguments(sources, tree)
        for node in calls(tree):
            each = of_call(sources, node, known)
            found[each.names[0]] = each
    for each in _frontend(sources, trees):
        found.setdefault(each.names[0], each)
    level = found.get("--optimization-level")
    if level is not None and not any("-O" in each.names for each in found.values()):  # the parser replaces it
        found["--optimization-level"] = level._replace(names=(*level.names, "-O"))
    return list(found.values())


def _keyword_arguments(sources: Sources, tree: ast.AST) -> dict[str, Definition]:
    """`kwargs["name"]` for every field, and names that stand for one of them."""
    known: dict[str, Definition] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        one = None
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            one, value = value.slice.value, value.value
        if one is not None and isinstance(value, ast.Name):
            known[name] = known.get(f"{value.id}[{one!r}]", Definition((), "value"))
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "get_kwargs":
            for key, each in sources.fields(ast.unparse(value.args[0])).items():
                known[f"{name}[{key!r}]" if one is None else name if key == one else ""] = sources.of_field(key, each)
    return known


def _frontend(sources: Sources, trees: list[ast.Module]) -> Iterator[Definition]:
    """Fields of the server's own arguments, with what the file says about some of them."""
    text = "\n".join(ast.unparse(tree) for tree in trees)
    if "for key, value in frontend_kwargs.items()" not in text:
        return
    for name, node in sources.fields("FrontendArgs").items():
        found = sources.of_field(name, node)
        place = f"frontend_kwargs['{name}']"
        if f"{place}['type'] = json.loads" in text:
            found = found._replace(takes="json", type="json")
        elif f"del {place}['nargs']" in text or f"{place}['action'] = 'append'" in text:
            found = found._replace(takes="value")
        names = [f"--{name.replace('_', '-')}"]
        if f"{place}['flags'] = ['-asc']" in text:
            names.append("-asc")
        yield found._replace(names=tuple(names))


def sglang(folder: Path) -> list[Definition]:
    sources = Sources(folder / "sglang" / "srt")
    (tree, *_) = sources.read("server_args.py")
    groups = sources.read("arg_groups/fields/*.py")
    sources.read(
        "arg_groups/choices.py", "arg_groups/*.py", "layers/moe/utils.py", "model_executor/cuda_graph_config.py"
    )
    found: dict[str, Definition] = {}
    owners = [node for each in groups for node in each.body if isinstance(node, ast.ClassDef)]
    for owner in owners or [sources.classes["ServerArgs"]]:
        for name, node in sources.fields(owner.name).items():
            each = _of_annotated(sources, name, node)
            if each is not None:
                found[each.names[0]] = each
    for call in calls(tree):
        each = of_call(sources, call, {})
        found[each.names[0]] = each
    return list(found.values())


def _of_annotated(sources: Sources, name: str, node: ast.AnnAssign) -> Definition | None:
    """A field `A[type, "help"]` or `A[type, Arg(...)]`."""
    if not isinstance(node.annotation, ast.Subscript) or ast.unparse(node.annotation.value) not in ("A", "Annotated"):
        return None
    parts = node.annotation.slice
    notes = parts.elts[1:] if isinstance(parts, ast.Tuple) else []
    given: dict[str, ast.expr] = {}
    for note in notes:
        if isinstance(note, ast.Call) and ast.unparse(note.func) == "Arg":
            given = {str(each.arg): each.value for each in note.keywords}
        elif isinstance(note, ast.Call) and ast.unparse(note.func) == "Derived":  # no input
            return None
    if "no_cli" in given:
        return None
    found = sources.of_field(name, node)
    if found.takes == "list" and "type_parser" in given:
        found = found._replace(takes="value")
    own = sources.literal(given.get("cli_name")) or f"--{name.replace('_', '-')}"
    names = (own, *(sources.literal(given.get("aliases")) or ()))
    found = changed(sources, found._replace(names=names), given)
    return found._replace(takes="switch") if found.takes == "bool" else found


READERS = {"vllm": vllm, "sglang": sglang}
