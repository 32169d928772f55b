"""``infercast gpus`` and ``infercast models``."""

import json
from typing import Any

from infercast.hardware import gpu_names
from infercast.models.library import model_names


def test_gpus_lists_all(infercast: Any) -> None:
    result = infercast("gpus", "--full")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == list(gpu_names())
    h200 = next(line for line in lines if line.startswith("h200-sxm"))
    assert h200.split() == ["h200-sxm", "hopper", "132", "989", "1,979", "-", "140", "4.80", "450", "700"]


def test_gpus_as_json(infercast: Any) -> None:
    listed = infercast("gpus", "--json").json
    assert [gpu["name"] for gpu in listed] == list(gpu_names())
    assert all(gpu["dram_bandwidth"] > 1e11 and gpu["sources"] for gpu in listed)


def test_one_gpu_with_its_sources(infercast: Any) -> None:
    text = infercast("gpus", "NVIDIA H200").out
    assert "4.80 TB/s" in text
    assert "989 TFLOP/s" in text
    assert "datasheet" in text
    assert infercast("gpus", "h200", "--json").json["name"] == "h200-sxm"


def test_a_gpu_of_ones_own(infercast: Any, tmp_path: Any) -> None:
    path = tmp_path / "my-chip.toml"
    path.write_text('base = "h200-sxm"\ndram_gb_per_s = 9600\n', encoding="utf-8")
    mine = infercast("gpus", path, "--json").json
    assert mine["name"] == "my-chip"
    assert mine["dram_bandwidth"] == 9.6e12


def test_models_lists_all(infercast: Any) -> None:
    result = infercast("models", "--full")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[2:-2]] == list(model_names())


def test_models_as_json(infercast: Any) -> None:
    listed = infercast("models", "--json").json
    assert [model["name"] for model in listed] == list(model_names())
    assert all(0 < model["active_parameters"] <= model["parameters"] for model in listed)


def test_one_model(infercast: Any) -> None:
    text = infercast("models", "qwen3-30b-a3b").out
    assert "30.5 B" in text
    assert "8 of 128 experts of 768" in text
    assert infercast("models", "qwen3-30b-a3b", "--json").json["hidden"] == 2048


def test_a_config_of_ones_own(infercast: Any, tmp_path: Any) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
    }  # fmt: skip
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    text = infercast("models", path).out
    assert "3 layers" in text
    assert "8/2 heads of 64; feed-forward of 1,024" in text
    assert "4,096" in text


def test_hosts_are_listed_with_their_speed(infercast: Any) -> None:
    listed = {each["name"]: each for each in infercast("hosts", "--json").json}
    assert listed["measured"]["single_thread_speed"] == 1.0
    assert all(each["source"] for each in listed.values())
    assert "ryzen-9-5950x" in infercast("hosts").out


def test_a_gpu_is_shown_with_what_providers_ask_for_it(infercast: Any) -> None:
    text = infercast("gpus", "h100-sxm").out
    assert "Prices, $ per GPU-hour" in text
    assert "lambda" in text
    prices = infercast("gpus", "h100-sxm", "--json").json["usd_per_hour"]
    asked = [each["on_demand"] for each in prices]
    assert asked == sorted(asked)
    assert "no price of h20 is known" in infercast("gpus", "h20").out
