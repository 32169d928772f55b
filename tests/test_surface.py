"""What every public object shows of itself: one line, plain data, tables, HTML, pictures; and units of its fields."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import infercast
from infercast.forecast.command.explain import explain_command
from infercast.forecast.cost import price_of
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.kernels import decode_shape, estimate_step
from infercast.forecast.memory import fit_memory
from infercast.forecast.result import judge
from infercast.forecast.slo import parse_slo
from infercast.old_names import HOMES
from infercast.report.formats import HOMES as RENDERER_HOMES
from infercast.report.formats import frame_of_rows
from infercast.shown import PlottableResult, ReprMixin, ResultMixin

LONGEST = 300
LENGTHS: dict[str, Any] = {"input_len": "uniform:50:400", "output_len": "uniform:5:40"}
LOAD: dict[str, Any] = {"concurrency": 4, "num_requests": 40, **LENGTHS}
UNITS = (
    "second", "token", "byte", "request", "sequence", "gpu", "replica", "share", "probability", "layer", "block",
    "flop", "hz", "watt", "joule", "dollar", "$", "gib", " gb", "factor", "number", "step", "page", "rows", "gram",
    "clients", "kwh", "values of", "priority", "%", "registers", "multiprocessors", "the stack of each", "position",
    "adapter", "provider", "conversation", "content", "state",
)  # fmt: skip
"""One of these is in what is said of a number."""
NUMBERS = ("int", "float", "Percentiles", "Quantity", "Array")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    deployment = infercast.deploy("qwen3-0.6b", "l4")
    forecast = infercast.simulate(deployment, **LOAD)
    cost = estimate_step(deployment, decode_shape(8, 100))
    return {
        "forecast": forecast,
        "deployment": deployment,
        "gpu": deployment.gpu,
        "model": deployment.model,
        "workload": forecast.workload,
        "intervals": forecast_intervals(forecast),
        "verdict": judge(forecast, "ttft_p99<1s,tpot_p95<40ms"),
        "fit": fit_memory("qwen3-0.6b", "l4"),
        "step": cost,
        "sweep": infercast.sweep("qwen3-0.6b", "l4", rates=[1, 8], num_requests=40, **LENGTHS),
        "layouts": infercast.compare("qwen3-0.6b", ["l4"], num_gpus=[1]),
        "breakdown": infercast.explain("qwen3-0.6b", gpu="l4", **LOAD),
        "plan": infercast.plan("qwen3-0.6b", rate=2, num_requests=20, slo="ttft_p99<2s", gpus=["l4"], max_gpus=1),
        "estimate": infercast.estimate("gemm", "l4", m=64, n=64, k=64),
        "estimates": infercast.estimate("gemm", "l4", m=[64, 128], n=64, k=64),
        "diagnosis": infercast.diagnose("qwen3-0.6b", gpu="h200-sxm", **LOAD),
        "explained": explain_command("vllm serve Qwen/Qwen3-0.6B", "l4", forecast.workload, advice=False),
    }


def test_a_line_says_what_it_is(objects: dict[str, Any]) -> None:
    others = {
        "slo": parse_slo("ttft_p99<1s"),
        "shape": decode_shape(64, 1000),
        "request": objects["workload"].requests[0],
        "estimate": infercast.estimate("gemm", "l4", m=64, n=64, k=64),
        "estimates": infercast.estimate("gemm", "l4", m=[64] * 1000, n=64, k=64),
        "layout": objects["layouts"][0],
        "point": objects["sweep"].points[0],
        "tariff": infercast.Tariff(),
        "price": price_of("l4"),
        "pool": objects["forecast"].pools[0],
        "energy": objects["forecast"].energy,
        "wall": objects["forecast"].wall,
    }
    for name, each in {**objects, **others}.items():
        assert len(repr(each)) < LONGEST, name
        assert "object at 0x" not in repr(each), name
    assert repr(others["slo"]) == "<Slo: ttft_p99<1s>"
    assert repr(infercast.EngineSettings(max_num_seqs=64)) == "EngineSettings(max_num_seqs=64)"
    assert repr(infercast.SglangSettings()) == "SglangSettings()"


def test_answers_are_plain_data(objects: dict[str, Any]) -> None:
    for name, each in objects.items():
        document = each.to_dict()
        assert isinstance(document, dict), name
        assert json.loads(json.dumps(document, allow_nan=False)), name


def test_answers_are_tables(objects: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    rows = {name: len(each.to_frame()) for name, each in objects.items()}
    assert rows["forecast"] == rows["workload"] == 40
    assert (rows["fit"], rows["sweep"], rows["layouts"], rows["verdict"]) == (1, 2, 1, 2)
    assert rows["step"] > 5
    assert (rows["estimate"], rows["estimates"]) == (1, 2)
    assert "ttft_ms.p99" in objects["sweep"].to_frame("pandas").columns


def test_notebooks_get_html(objects: dict[str, Any]) -> None:
    for name, each in objects.items():
        html = each._repr_html_()
        assert html.startswith('<div class="infercast"><p><b>'), name
        assert html.count("<table>") == html.count("</table>") > 0, name
        assert "<script" not in html, name


def test_html_is_escaped(objects: dict[str, Any]) -> None:
    html = objects["verdict"]._repr_html_()
    assert "ttft_p99&lt;1s" in html
    assert "ttft_p99<1s" not in html


def test_pictures_are_figures(objects: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    plotted = [each for each in objects.values() if isinstance(each, PlottableResult)]
    assert len(plotted) == 10
    for each in plotted:
        image = each.plot()._repr_png_()
        assert image.startswith(b"\x89PNG"), each


def test_equal_latencies_have_a_picture() -> None:
    pytest.importorskip("matplotlib")
    load = {"input_len": 128, "output_len": 16, "concurrency": 1, "num_requests": 40}
    assert infercast.simulate("llama-3.1-8b", gpu="h200-sxm", **load).plot()._repr_png_()


def test_without_libraries_there_is_a_sentence(objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        infercast.InputError,
        match=r"to_frame needs pandas or polars: pip install pandas \(the extra notebook\); to_dict\(\)",
    ):
        objects["fit"].to_frame()
    with pytest.raises(infercast.InputError, match="library must be pandas or polars, not 'spark'"):
        objects["fit"].to_frame("spark")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "infercast.report.plots", raising=False)
    with pytest.raises(infercast.InputError, match=r"plot needs matplotlib.* \(the extra report\)"):
        objects["fit"].plot()


def test_polars_is_asked_where_there_is_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    class Polars:
        DataFrame = dict

    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", Polars)  # type: ignore[arg-type]
    assert frame_of_rows([{"a": 1}, {"b": 2}]) == {"a": [1, None], "b": [None, 2]}


def test_every_answer_has_its_renderers() -> None:
    import_module("infercast.forecast.elasticities")  # which only its command loads
    known = {kind.__name__ for kind in subclasses(ResultMixin)} - {"PlottableResult"}
    assert known == set(RENDERER_HOMES)
    for name, module in RENDERER_HOMES.items():
        assert name in import_module(f"infercast.report.{module}").RENDERERS


def test_every_picture_is_one_of_an_answer() -> None:
    pytest.importorskip("matplotlib")
    plotted = {kind.__name__ for kind in subclasses(PlottableResult)}
    assert plotted == {*import_module("infercast.report.plots").PICTURES} | {
        *import_module("infercast.report.page.figures").PLOTS
    }


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


PUBLIC_CLASSES = [
    found
    for path in (*HOMES.values(), *(f"infercast.{name}" for name in infercast.__all__))
    if inspect.isclass(found := named(path)) and not issubclass(found, Exception)
]


def said_of(kind: type) -> dict[str, tuple[str, str]]:
    """Fields and properties: their type, and what is said below them or in a comment beside."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] != "infercast" or base in (ReprMixin, ResultMixin, PlottableResult):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        (tree,), lines = ast.parse(source).body, source.splitlines()
        assert isinstance(tree, ast.ClassDef)
        for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                beside = lines[node.end_lineno - 1][node.end_col_offset :] if node.end_lineno else ""
                words = str(text.value) if isinstance(text, ast.Constant) else beside.partition("# ")[2]
                found[node.target.id] = ast.unparse(node.annotation), words
            elif isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(d) for d in node.decorator_list):
                found[node.name] = ast.unparse(node.returns) if node.returns else "", ast.get_docstring(node) or ""
    return found


@pytest.mark.parametrize("kind", PUBLIC_CLASSES, ids=lambda kind: kind.__name__)
def test_numbers_have_units(kind: type) -> None:
    for name, (annotation, words) in said_of(kind).items():
        parts = annotation.replace("[", " ").replace("]", " ").replace("|", " ").replace(",", " ").replace(".", " ")
        if not name.startswith("_") and any(part in NUMBERS for part in parts.split()):
            said = f"{name.replace('_', ' ')} {words}"
            assert words or "per" in name, f"{kind.__name__}.{name} has no docstring"
            assert any(unit in said.lower() for unit in UNITS), f"{kind.__name__}.{name}: {words!r} names no unit"
