"""A host by the name of its CPU, by a file of its times, or by a probe."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from infercast.bundled import read_data
from infercast.engines.base import engine_named
from infercast.engines.host import FACTS, group_of
from infercast.engines.vllm.host import VllmHost
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.deploy import deploy, host_of
from infercast.forecast.uncertainty import RUN_TO_RUN, spread_of
from infercast.hardware.host import HostProbe, host_cpus, mean_probe, read_probe

REFERENCE = read_data("hosts/probe.toml")["reference"]
TIMES = [field.name for field in fields(VllmHost) if field.name not in FACTS]


def probed(tmp_path: Path, python: float = 1.0, launch: float | None = 1.0) -> Path:
    """A probe's file of a host that takes so many times as long as the reference."""
    parts = {"python": (python, REFERENCE["python"]), "gpu": (launch, REFERENCE["launch"])}
    document = {
        part: {name: {"p50": factor * value, "p10": 1.0, "p90": 1e4, "n": 9} for name, value in figures.items()}
        for part, (factor, figures) in parts.items()
        if factor is not None
    }
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(document))
    return path


def host_from(source: str | Path, engine: str | None = None) -> Any:
    return host_of(engine_named(engine), source)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_host_like_that_of_the_bundled_times_has_these(tmp_path: Path, engine: str) -> None:
    bundled = engine_named(engine).default_host()
    for launch in (bundled.launch_at, None):
        host = host_from(probed(tmp_path, bundled.python_at, launch), engine)
        assert host == replace(bundled, title=host.title, source=host.source, is_measured=True)


def test_each_group_of_times_has_its_factor_and_a_slower_host_never_less(tmp_path: Path) -> None:
    bundled, host = engine_named().default_host(), host_from(probed(tmp_path, python=2.0, launch=1.5))
    factors = read_probe(probed(tmp_path, python=2.0, launch=1.5)).factors(bundled.python_at, bundled.launch_at)
    assert 1.0 < factors["launch"] < 1.5 / bundled.launch_at
    assert 1.0 < factors["python"] < 2.0
    for name in TIMES:
        assert getattr(host, name) == pytest.approx(getattr(bundled, name) * factors[group_of(name)]), name
    assert [group_of(name) for name in ("graph_launch", "eager_kernel", "piece_layer", "draft_pass")] == ["launch"] * 4
    assert [group_of(name) for name in ("plan", "request_path", "sample", "never_seen")] == ["python"] * 4
    assert "Python x" in host.title


def test_one_file_serves_every_way_to_give_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = probed(tmp_path, python=2.0, launch=None)
    monkeypatch.chdir(tmp_path)
    given = (path, str(path), "probe.json", read_probe(path))
    hosts = [deploy("qwen3-0.6b", "h200-sxm", host=each, api_server=False).host for each in given]
    assert hosts == [host_from(path)] * 4
    other = deploy("qwen3-0.6b", "h200-sxm", host=path, engine="sglang")
    assert other.host.plan > engine_named("sglang").default_host().plan


def test_a_probe_narrows_the_interval_of_a_host(tmp_path: Path) -> None:
    known, unknown = (deploy("qwen3-0.6b", "h200-sxm", host=host) for host in (probed(tmp_path), None))
    assert RUN_TO_RUN.host < spread_of(known).host < spread_of(unknown).host


def test_probes_of_one_machine_are_put_together() -> None:
    both = mean_probe([HostProbe(1.0, 4.0, ""), HostProbe(4.0, None, "")], "both")
    assert both == HostProbe(2.0, pytest.approx(4.0), "both")


def test_a_toml_file_is_read_as_it_is(tmp_path):
    bundled = Path(__file__).parents[2] / "src/infercast/data/engines/vllm/host.toml"
    for engine in ("vllm", "vllm@0.25"):  # whose times are those before a table of later ones
        assert host_from(bundled, engine) == replace(engine_named(engine).default_host(), is_measured=True)


@pytest.mark.parametrize("table", ["since = 3", "[since]\n'0.26' = 3"])
def test_a_file_without_tables_of_releases_is_one_sentence(tmp_path, table):
    path = tmp_path / "host.toml"
    path.write_text(f'title = "t"\nsource = "s"\n{table}\n')
    with pytest.raises(FileFormatError, match="has no tables of releases under since"):
        host_from(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"python": 3}', '{"models": []}', "\x00"])
def test_other_files_are_named(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=r"other\.json"):
        host_from(path)


def test_a_cpu_by_its_name_is_faster_by_its_rating():
    preset = host_cpus()["ryzen-5-7600x"]
    host = host_from("ryzen-5-7600x")
    assert preset.single_thread_speed == pytest.approx(4221 / 3004)
    assert host.eager_kernel == pytest.approx(engine_named().default_host().eager_kernel / preset.single_thread_speed)
    named = deploy("qwen3-0.6b", "h200-sxm", api_server=False, predictor="roofline", host="ryzen-5-7600x")
    assert named.host == host
    assert host_from("measured") == engine_named().default_host()


def test_every_cpu_names_its_source():
    for preset in host_cpus().values():
        assert 0.4 < preset.single_thread_speed < 2.0
        assert preset.source


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "localhost", "::", "[::1]"])
def test_an_address_is_told_apart_from_a_cpu(address):
    with pytest.raises(InputError, match="is an address"):
        host_from(address)


def test_an_unknown_cpu_names_those_that_are_known():
    with pytest.raises(UnknownNameError, match="did you mean epyc-9454p"):
        host_from("epyc-9454")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "python is missing"),
        ('{"python": {"dict_loop_20k_us": {"p10": 3}}}', "python.dict_loop_20k_us has no p50 above 0"),
        ('{"python": {"objects_5k_us": {"p50": -3}}}', "python.objects_5k_us has no p50 above 0"),
        ('{"python": {"objects_5k_us": {"p50": 3}}, "gpu": {"eager_add_us": "x"}}', "gpu.eager_add_us has no p50"),
    ],
)
def test_a_file_of_another_kind_says_what_is_amiss(tmp_path, text, problem):
    path = tmp_path / "host.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=f"is not what .infercast measure --host. writes: .*{problem}") as caught:
        host_from(path)
    assert "Error(" not in str(caught.value)


def test_a_gpu_that_is_sold_with_its_cpu_has_that_host_by_default() -> None:
    own, named, plain = (
        deploy("qwen3-0.6b", gpu, host=host) for gpu, host in (("gb200", None), ("gb200", "grace"), ("b200-sxm", None))
    )
    assert own.host == named.host
    assert own.has_default_host
    assert own.host.request_path > plain.host.request_path
    assert deploy("qwen3-0.6b", "gb200", host="measured").host == plain.host
