"""Saved runs compared: what is best and by how much, on a terminal and on one page; files are never trusted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infercast.errors import InputError
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.result import Forecast
from infercast.report.forecast import forecast_dict
from infercast.report.saved_runs import (
    SavedRun,
    leader_sentences,
    read_runs,
    render_several,
    rows_of,
    settings_of,
    several_dict,
    warnings_of,
)

Save = Callable[..., list[SavedRun]]


@pytest.fixture(scope="module")
def saved(forecast: Forecast) -> str:
    return json.dumps(forecast_dict(forecast, forecast_intervals(forecast)))


@pytest.fixture
def document(saved: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(saved)
    return data


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Files of runs by their names, read again."""

    def read(**documents: Any) -> list[SavedRun]:
        paths = []
        for name, data in documents.items():
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return read_runs(paths)

    return read


def slower(document: dict[str, Any], factor: float = 2.0) -> dict[str, Any]:
    """The same run on another GPU whose first tokens take so many times as long."""
    changed = json.loads(json.dumps(document))
    for key in ("ttft_ms", "ttft_ms_interval"):
        changed[key] = {
            name: [factor * end for end in each] if isinstance(each, list) else factor * each
            for name, each in changed[key].items()
        }
    changed["pools"][0]["deployment"]["gpu"] = "another"
    changed["caveats"].append("Only here.")
    return dict(changed)


def test_the_best_of_a_row_and_how_far_the_others_are(save: Save, document: dict[str, Any]) -> None:
    runs = save(one=document, two=slower(document))
    rows = {row.key: row for row in rows_of(runs)}
    assert rows["ttft_p99_ms"].best(runs) == [0]
    assert rows["ttft_p99_ms"].change(1) == "+100.0 %"
    assert rows["tpot_p50_ms"].best(runs) == [], "both are the same"
    assert leader_sentences(runs, [*rows.values()])[0].startswith("Lowest TTFT p99: one (")
    assert settings_of(runs)[0] == [["gpu", "h200-sxm", "another"]]
    much = save(one=document, two=slower(document, 40.0))
    assert {row.key: row for row in rows_of(much)}["ttft_p50_ms"].change(1) == "40 times"


def test_intervals_that_overlap_are_told(save: Save, document: dict[str, Any]) -> None:
    runs = save(one=document, two=slower(document, 1.1))
    assert "; the 80 % interval overlaps with that of two." in leader_sentences(runs, rows_of(runs))[0]
    runs = save(one=document, two=slower(document, 50.0))
    assert "overlaps" not in leader_sentences(runs, rows_of(runs))[0]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("state", "overloaded", "one is overloaded"), ("kind", "bound", "one is a lower bound")],
)
def test_what_may_not_be_compared_is_never_best(
    save: Save, document: dict[str, Any], field: str, value: str, words: str
) -> None:
    runs = save(one={**document, field: value}, two=slower(document), three=slower(document, 3.0))
    assert rows_of(runs)[0].best(runs) == [1]
    assert any(sentence.startswith(words) for sentence in warnings_of(runs))


def test_other_workloads_have_no_best(save: Save, document: dict[str, Any]) -> None:
    other = slower(document)
    other["workload"]["description"] = "something else"
    runs = save(one=document, two=other)
    assert leader_sentences(runs, rows_of(runs)) == []
    assert "different workloads" in warnings_of(runs)[0]


def test_tables_and_data(save: Save, document: dict[str, Any], text_of: Any) -> None:
    runs = save(one=document, two=slower(document))
    text = text_of(render_several(runs), 80)
    assert "Lowest TTFT p99: one" in text
    assert "+100.0 %" in text
    data = several_dict(runs)
    (first,) = (row for row in data["rows"] if row["quantity"] == "ttft_p50_ms")
    assert first["values"]["one"] == pytest.approx(document["ttft_ms"]["p50"])
    assert first["best"] == ["one"]
    assert data["differs"]["gpu"] == {"one": "h200-sxm", "two": "another"}


def test_runs_of_what_if_are_two(save: Save, document: dict[str, Any]) -> None:
    runs = save(pair={"what_if": "gpu=x", "before": document, "after": slower(document)}, pair_2=document)
    assert [run.name for run in runs] == ["pair before", "pair after", "pair_2"]


def test_the_page(save: Save, document: dict[str, Any], without_tips: Any) -> None:
    pytest.importorskip("matplotlib")
    from infercast.report.page.html import several_page  # noqa: PLC0415 - it loads matplotlib

    odd = slower(document)
    odd["pools"][0]["deployment"]["gpu"] = "<script>alert(1)</script>"
    runs = save(one=document, two=odd)
    page = without_tips(several_page(runs, "infercast report one.json two.json"))
    assert page == without_tips(several_page(runs, "infercast report one.json two.json"))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<li>two: Only here.</li>" in page
    assert "<pre><code>infercast report one.json two.json</code></pre>" in page
    for name in ("runs", "runs-phone", "steps-prefill", "steps-decode-phone"):
        assert f'id="chart-{name}"' in page


def broken(document: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(document))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return dict(data)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("ttft_ms", "p50"), "fast", "ttft_ms.p50 must be a number, not 'fast'"),
        (("ttft_ms", "p50"), None, "ttft_ms.p50 must be a number, not nothing"),
        (("ttft_ms_interval", "p50"), [1], "ttft_ms_interval.p50 must be two numbers"),
        (("pools",), [], "pools must be a list of at least one pool"),
        (("pools",), 7, "pools must be a list, not 7"),
        (("pools", 0, "deployment", "model"), 7, "pools[0].deployment.model must be a text"),
        (("pools", 0, "deployment"), [], "pools[0].deployment must be an object"),
        (("phases", 0, "steps"), True, "phases[0].steps must be a number, not True"),
        (("phases", 0, "families"), {}, "phases[0].families must be a list"),
        (("caveats",), [1], "caveats must be a list of texts"),
        (("usd_per_hour",), "x" * 200, "usd_per_hour must be a number, not 'xxxx"),
        (("workload",), "none", "workload must be an object"),
        (("requests_per_s",), 10**400, "requests_per_s must be a number, not 1000"),
    ],
)
def test_fields_that_are_wrong(save: Save, document: dict[str, Any], path: Any, value: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        save(good=document, bad=broken(document, *path, value=value))
    assert words in str(caught.value)
    assert "bad.json" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "must hold one JSON object, not list"),
        ("{}", "holds no run that `infercast simulate --json` saved: ttft_ms or pools are missing"),
        ('{"before": 1}', "before must be an object, not 1"),
        ("[" * 100_000, "is not JSON"),
        ('"' + "a" * 32_000_000 + '"', "is larger than 32 MB"),
        ('{"ttft_ms": {"mean": NaN}, "pools": [{}]}', "ttft_ms.mean must be a number, not nan"),
    ],
)
def test_files_that_are_none(save: Save, text: str, words: str) -> None:
    with pytest.raises(InputError, match=r"bad\.json") as caught:
        save(bad=text)
    assert words in str(caught.value)


def test_too_many_and_none(save: Save, document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="9 runs are more than a page compares"):
        save(**{f"run{number}": document for number in range(9)})
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_runs([tmp_path / "none.json"])


def test_the_same_name_twice_is_numbered(save: Save, document: dict[str, Any], tmp_path: Path) -> None:
    save(run=document)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "run.json").write_text(json.dumps(document))
    runs = read_runs([tmp_path / "run.json", tmp_path / "folder" / "run.json"])
    assert [run.name for run in runs] == ["run (1)", "run (2)"]
