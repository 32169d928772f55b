"""A host from an idle engine: the bundled costs at another speed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infercast.engines.base import engine_named
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.deploy import deploy, host_from
from infercast.hardware.server import host_cpus

OURS = Path(__file__).parents[2] / "measurements" / "h200-sxm" / "host.json"


def slower(tmp_path, factor):
    document = json.loads(OURS.read_text())
    for model in document["models"]:
        model["first_token_ms"] = {tokens: factor * value for tokens, value in model["first_token_ms"].items()}
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document))
    return path


def test_our_own_idle_engine_is_about_as_fast_as_the_bundled_host():
    assert host_from(OURS, "h200-sxm").prepare == pytest.approx(engine_named().default_host().prepare, rel=0.25)


def test_an_engine_that_answers_in_half_the_time_has_half_the_costs(tmp_path):
    same, fast = (host_from(slower(tmp_path, factor), "h200-sxm") for factor in (1.0, 0.5))
    assert fast.eager_kernel == pytest.approx(0.5 * same.eager_kernel)
    assert "times as fast" in fast.title


def test_a_toml_file_is_read_as_it_is(tmp_path):
    bundled = Path(__file__).parents[2] / "src/infercast/data/engines/vllm/host.toml"
    assert host_from(bundled, "h200-sxm") == replace(engine_named().default_host(), is_measured=True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"config": {}, "models": [{"layers": 2}]}', '{"models": []}'])
def test_other_files_are_named(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=r"other\.json"):
        host_from(path, "h200-sxm")


def test_a_cpu_by_its_name_is_faster_by_its_rating():
    preset = host_cpus()["ryzen-5-7600x"]
    host = host_from("ryzen-5-7600x", "h200-sxm")
    assert preset.single_thread_speed == pytest.approx(4221 / 3004)
    assert host.eager_kernel == pytest.approx(engine_named().default_host().eager_kernel / preset.single_thread_speed)
    named = deploy("qwen3-0.6b", "h200-sxm", api_server=False, predictor="roofline", host="ryzen-5-7600x")
    assert named.host == host
    assert host_from("measured", "h200-sxm") == engine_named().default_host()


def test_every_cpu_names_its_source():
    for preset in host_cpus().values():
        assert 0.4 < preset.single_thread_speed < 2.0
        assert preset.source


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "localhost", "::", "[::1]"])
def test_an_address_is_told_apart_from_a_cpu(address):
    with pytest.raises(InputError, match="is an address"):
        host_from(address, "h200-sxm")


def test_an_unknown_cpu_names_those_that_are_known():
    with pytest.raises(UnknownNameError, match="did you mean epyc-9454p"):
        host_from("epyc-9454", "h200-sxm")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "'models' is missing"),
        ('{"models": 3, "config": {}}', "not iterable"),
        ('{"models": [3], "config": {}}', "int"),
    ],
)
def test_a_file_of_another_kind_says_what_is_amiss(tmp_path, text, problem):
    path = tmp_path / "host.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=f"is not what .infercast measure --host. writes: .*{problem}") as caught:
        host_from(path, "h200-sxm")
    assert "Error(" not in str(caught.value)


def test_a_gpu_that_is_sold_with_its_cpu_has_that_host_by_default() -> None:
    own, named, plain = (
        deploy("qwen3-0.6b", gpu, host=host) for gpu, host in (("gb200", None), ("gb200", "grace"), ("b200-sxm", None))
    )
    assert own.host == named.host
    assert own.has_default_host
    assert own.host.request_path > plain.host.request_path
    assert deploy("qwen3-0.6b", "gb200", host="measured").host == plain.host
