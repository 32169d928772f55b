"""Files that are not what they should be: one sentence that names the file and the place."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("arrival,input,output\n0,10,10\n1,many,10\n", "line 3: input must be a number of at least 0, not 'many'"),
        ("arrival,input,output\n0,10,10\n1,10\n", "line 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,10,10\n", "line 2: TIMESTAMP"),
        ('{"timestamp": 0, "input_length": -4, "output_length": 1, "hash_ids": []}\n', "line 1: input_length"),
        ("when,what\n1,2\n", "are not those of a trace"),
        ("", "is empty"),
    ],
)
def test_malformed_traces_name_file_line_and_field(infercast: Any, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8")
    sentence = infercast("simulate", "qwen3-0.6b", "--gpu", "l4", "--trace", path).sentence
    assert sentence.startswith(str(path))
    assert expected in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n"architectures": ["LlamaForCausalLM"],\n"hidden_size": ,\n}', "line 3"),
        ("[]", "must hold one JSON object"),
        (json.dumps({"architectures": ["LlamaForCausalLM"]}), "the field num_attention_heads is missing"),
        (json.dumps({"architectures": ["RwkvForCausalLM"]}), "RwkvForCausalLM"),
        (
            json.dumps({"architectures": ["NeverHeardOfIt"]}),
            "NeverHeardOfIt is not known, and its fields do not",
        ),
        (json.dumps({"hidden_size": 5}), "neither architectures nor model_type"),
    ],
)
def test_malformed_configs_name_the_place(infercast: Any, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert expected in infercast("memory", path, "--gpu", "l4").sentence


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("estimate", "gemm", "--gpu", "l4", "--csv"), "is not UTF-8 text, so not a CSV table"),
        (("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", 1, "--host"), "is not UTF-8 text, so not"),
        (("simulate", "qwen3-0.6b", "--gpu", "l4", "--trace"), "is not UTF-8 text"),
        (("validate",), "not UTF-8 text"),
    ],
    ids=["shapes", "host", "trace", "runs"],
)
@pytest.mark.parametrize("suffix", [".csv", ".json", ".toml"])
def test_files_that_are_no_text(
    infercast: Any, tmp_path: Path, words: tuple[object, ...], suffix: str, expected: str
) -> None:
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(bytes(range(255, 0, -1)))
    sentence = infercast(*words, path).sentence
    assert sentence.startswith(f"{path}: is ")
    assert expected in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m,n,k\n1,2,3\n1,2,3,4\n", "line 3: has more cells than its header has columns"),
        ("m,n,k\n1,2,10000000000\n", "line 2: k must be at most 2147483647"),
        ("m,n,k\n1,2,0\n", "line 2: k must be at least 1, not 0"),
    ],
)
def test_malformed_shapes_name_file_and_line(infercast: Any, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(text, encoding="utf-8")
    assert infercast("estimate", "gemm", "--gpu", "l4", "--csv", path).sentence.startswith(f"{path}, {expected}")


def test_a_malformed_gpu_file(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "my-chip.toml"
    path.write_text('base = "h200-sxm"\ntdp = 3\n', encoding="utf-8")
    assert "my-chip.toml: unknown field 'tdp'; did you mean tdp_w?" in infercast("gpus", path).sentence
