"""Which layer may import which: every import statement is walked, also those inside functions."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "infercast"
PAGE = Path(__file__).parents[1] / "docs" / "maintainers.md"
BASE = {"bundled", "errors", "lazy_classes", "shown", "units"}
UNDER_FORECAST = BASE | {"hardware", "ops", "models", "predict", "engines", "serve"}

MAY_IMPORT: dict[str, set[str]] = {
    "": {"shown"},
    "bundled": set(),
    "errors": set(),
    "lazy_classes": set(),
    "glossary": BASE,
    "shown": set(),
    "units": set(),
    "hardware": BASE,
    "ops": BASE,
    "models": BASE | {"ops"},
    "predict": BASE | {"hardware", "ops"},
    "torch_modules": BASE | {"hardware", "ops", "predict"},
    "serve": BASE,
    "engines": BASE | {"hardware", "ops", "models", "predict", "serve"},
    "forecast": UNDER_FORECAST,
    "calibration": UNDER_FORECAST | {"", "forecast"},
    "calibrate": BASE | {"calibration"},
    "old_names": BASE | {"calibration"},
    "lab": BASE,
    "lab.validate": UNDER_FORECAST | {"forecast"},
    "lab.fit": BASE | {"hardware", "ops", "models", "predict"},
    "lab.measure": BASE | {"hardware", "ops.op"},
    "report": BASE | {"", "glossary", "hardware", "models", "engines", "serve", "forecast", "lab.validate"},
    "reproduce": BASE | {"hardware", "ops", "predict", "forecast", "lab.validate", "report"},
    "web": UNDER_FORECAST | {"", "forecast", "glossary", "report"},
    "emulate": BASE | {"", "serve", "forecast", "report", "web"},
    "cli": BASE
    | {"", "hardware", "models.library", "engines.base", "engines.host", "engines.settings", "engines.tables", "serve"}
    | {"forecast", "calibration", "lab.validate", "lab.fit", "lab.measure", "torch_modules"}
    | {"report", "reproduce", "web", "emulate"}
    | {"predict.fitted", "predict.identity", "predict.learned", "predict.roofline"},
    "__main__": {"cli.main"},
}
"""The public package itself, which has the version, is written as the empty name."""

LIBRARIES = {
    "numpy": {"predict", "ops", "models", "engines", "serve", "forecast", "calibration", "web", "emulate"}
    | {"lab.validate", "lab.fit", "lab.measure", "reproduce"},
    "pandas": {"lab.fit", "lab.measure", "forecast"},
    "pyarrow": {"lab.measure"},
    "matplotlib": {"report"},
    "ray": {"forecast"},
    "torch": {"lab.measure", "torch_modules"},
    "triton": {"lab.measure", "torch_modules"},
    "transformers": {"torch_modules"},
    "vllm": {"lab.measure"},
    "catboost": {"lab.fit"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "starlette": {"web"},
    "pydantic": {"emulate"},
    "tokenizers": {"emulate"},
    "jinja2": {"emulate"},
    "uvicorn": {"web", "emulate"},
    "h11": {"web"},
    "yaml": {"forecast", "report"},
}


class Import(NamedTuple):
    file: str
    line: int
    layer: str
    target: str


def layer_of(module: str) -> str:
    """A module's package; each package of the lab is a layer of its own."""
    return ".".join(module.split(".")[: 2 if module.startswith("lab.") else 1])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(tree: ast.AST, skip_type_checking: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if skip_type_checking and is_type_checking(node):
            continue
        yield node
        yield from statements(node, skip_type_checking)


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def targets(node: ast.AST) -> list[str]:
    """Modules that a statement imports: ``from package import module`` names the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        module = node.module or ""
        return [f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module for alias in node.names]
    return []


@cache
def importing_nodes() -> dict[Path, list[ast.AST]]:
    """Statements and calls that may import something, by file; the public package's are not those for types."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = statements(tree, skip_type_checking=True) if path == SOURCE / "__init__.py" else ast.walk(tree)
        found[path] = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]
    return found


@cache
def imports() -> list[Import]:
    found = []
    for path, nodes in importing_nodes().items():
        relative = path.relative_to(SOURCE)
        layer = layer_of(".".join(relative.with_suffix("").parts).removesuffix("__init__").removesuffix("."))
        for node in nodes:
            line = getattr(node, "lineno", 0)
            found += [Import(relative.as_posix(), line, layer, target) for target in targets(node)]
    return found


def own_imports() -> list[Import]:
    return [each for each in imports() if each.target.split(".")[0] == "infercast"]


def is_allowed(layer: str, target: str) -> bool:
    name = target.removeprefix("infercast").removeprefix(".")
    if layer_of(name) == layer:
        return True
    return any(name == known or (known and name.startswith(f"{known}.")) for known in MAY_IMPORT[layer])


def test_every_layer_has_a_row() -> None:
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    packages |= {f"lab.{path.parent.name}" for path in SOURCE.glob("lab/*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert packages | modules | {""} == set(MAY_IMPORT)


def table_of_layers() -> dict[str, set[str]]:
    """Which layers a layer may import, as docs/maintainers.md says it."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[0].startswith("`"):
            continue
        layers = re.findall(r"`([\w.]+)`", cells[0])
        imported = set(found) if cells[2] == "everything above" else set(re.findall(r"`([\w.]+)`", cells[2]))
        found |= dict.fromkeys(layers, imported)
    return found


def test_the_table_of_layers_is_the_one_that_is_enforced() -> None:
    """Names of a layer's modules count as the layer; everybody may import the four modules at the bottom."""
    page = table_of_layers()
    enforced = {layer: {layer_of(name) for name in names} - {""} for layer, names in MAY_IMPORT.items()}
    assert set(page) == set(enforced) - {"", "__main__"}
    for layer, names in page.items():
        assert names - BASE == enforced[layer] - BASE, layer
        assert enforced[layer] >= (set() if layer in BASE else BASE), layer


def test_the_walk_sees_imports_of_every_kind() -> None:
    shared = "infercast.cli.options"
    assert any(each.file == "cli/commands/simulate.py" and each.target == shared for each in own_imports())
    assert any(each.file == "cli/outputs.py" and each.target == "rich.console" for each in imports())


def test_no_arrow_outside_the_table() -> None:
    wrong = [
        f"{each.file}:{each.line} imports {each.target}"
        for each in own_imports()
        if not is_allowed(each.layer, each.target)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("layer", "target"),
    [
        ("serve", "infercast.engines.timer"),
        ("serve", "infercast.engines"),
        ("cli", "infercast.engines.vllm.settings"),
        ("cli", "infercast.predict.kernels"),
        ("cli", "infercast.ops"),
        ("models", "infercast.hardware"),
        ("hardware", "infercast.models.spec"),
        ("engines", "infercast.forecast.deploy"),
        ("errors", "infercast.units"),
        ("", "infercast.errors"),
        ("engines", "infercast"),
        ("lab.fit", "infercast.lab.measure"),
        ("lab.measure", "infercast.predict"),
        ("forecast", "infercast.lab.fit"),
        ("web", "infercast.lab.validate"),
    ],
)
def test_the_table_refuses(layer: str, target: str) -> None:
    assert not is_allowed(layer, target)


ENGINES = sorted(path.parent.name for path in (SOURCE / "engines").glob("*/engine.py"))
READS_AN_ENGINE = (
    "lab/measure/",
    "lab/validate/",
    "calibration/",
    "cli/commands/measure.py",
)
"""They start an engine, or read what it wrote."""
NAMES_AN_ENGINE = {
    "__init__.py": "the public name of the default engine's settings",
    "engines/base.py": "the registry itself",
    "lab/fit/tables.py": "published tables say whose kernels they hold",
    "lab/fit/sparse_tables.py": "and of which release of it",
    "ops/op.py": "whose kernels an all-reduce runs",
    "predict/families/moe.py": "published tables name kernels so",
    "predict/identity.py": "the default folder of an engine's data",
    "serve/fleet/router.py": "a load balancer goes by the name of the engine it comes with",
}
"""Files that name an engine in their code, and why they may."""


def words_of(tree: ast.AST) -> Iterator[str]:
    """Names and text of a file's code; what documents it is left out."""
    bodies = (body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list))
    prose = {id(each.value) for body in bodies for each in body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        for field in ("id", "name", "attr", "arg", "module"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_does_is_known_in_its_folder_alone(engine: str) -> None:
    naming = set()
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE).as_posix()
        if not file.startswith((f"engines/{engine}/", *READS_AN_ENGINE)):
            text = path.read_text(encoding="utf-8")
            words = words_of(ast.parse(text)) if engine in text.lower() else ()
            naming |= {file for word in words if engine in word.lower()}
    assert naming <= {*NAMES_AN_ENGINE}, sorted(naming - {*NAMES_AN_ENGINE})
    importing = {each.file for each in own_imports() if each.target.startswith(f"infercast.engines.{engine}")}
    allowed = (f"engines/{engine}/", "lab/validate/")
    assert all(file.startswith(allowed) for file in importing), importing


def by_name(node: ast.AST) -> list[str]:
    """A module that ``import_module("...")`` imports."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return []
    function = getattr(node.func, "id", getattr(node.func, "attr", ""))
    return [str(node.args[0].value)] if function in ("import_module", "__import__") else []


def test_no_circles_between_modules() -> None:
    """Imports for types, inside functions and by name count; a package imports its own modules."""
    files = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = {
            target for node in importing_nodes()[path] for target in (*targets(node), *by_name(node)) if target in names
        }
        packages = {target for target in found if names[target].name == "__init__.py" and name.startswith(f"{target}.")}
        graph[name] = found - packages - {name}
    del graph["infercast"]  # its imports are for types alone, and all modules are below it
    TopologicalSorter({name: found - {"infercast"} for name, found in graph.items()}).prepare()


def test_no_circles_between_packages() -> None:
    graph: dict[str, set[str]] = {}
    for each in own_imports():
        imported = layer_of(each.target.removeprefix("infercast").removeprefix("."))
        if imported and imported != each.layer:
            graph.setdefault(each.layer, set()).add(imported)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_library_outside_its_layers() -> None:
    """Others only where an extra brings them: in particular no torch, scikit-learn or scipy in the core."""
    foreign = [
        f"{each.file}:{each.line} imports {each.target}"
        for each in imports()
        if (root := each.target.split(".")[0]) not in sys.stdlib_module_names
        and root != "infercast"
        and each.layer not in LIBRARIES.get(root, set())
    ]
    assert not foreign, "\n".join(foreign)


def test_a_forecast_loads_nothing_of_the_lab() -> None:
    """The command line loads what makes and judges the artefact with the commands that need it."""
    commands = "simulate", "plan", "sweep", "calibrate", "web"
    modules = ", ".join(f"infercast.cli.commands.{name}" for name in commands)
    program = f"import sys, {modules}; print([name for name in sys.modules if name.startswith('infercast.lab')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stderr
