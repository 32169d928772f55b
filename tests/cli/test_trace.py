"""``infercast trace``: a user's own module."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

MINE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return x

def broken():
    return 3
"""
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


@with_torch
@pytest.mark.filterwarnings("ignore")
def test_a_module_of_a_file(infercast: Any, mine: str) -> None:
    words = ("trace", f"{mine}:Net", "--input", "x:8x64", "--gpu", "l40s")
    found = json.loads(infercast(*words, "--json").out)
    assert found["parameters"] == 3 * 65 * 64
    assert {part["name"] for part in found["submodules"]} == {"(itself)", "layers.*"}
    text = infercast(*words, "--execution", "graph", "--dtype", "bf16").out
    assert "bf16 on l40s, graph" in text
    assert "Operators" in text


REFUSED = {
    "name": (("{}:Nett", "8x64"), "Nett"),
    "not a module": (("{}:broken", "8x64"), "must make a torch.nn.Module, not int"),
    "shape": (("{}:Net", "8*64"), "--input must be like 8x3x224x224"),
    "other shape": (("{}:Net", "8x63"), "cannot run on these inputs"),
    "no colon": (("resnet50", "8x64"), "MODULE must be package.module:name"),
    "no file": (("{}.py:Net", "8x64"), "cannot be made"),
    "no config": (("hf:nowhere.json", "8x64"), "hf:"),
}


@with_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_one_sentence(infercast: Any, mine: str, words: tuple[str, str], said: str) -> None:
    result = infercast("trace", words[0].format(mine), "--input", words[1], "--gpu", "l40s")
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err


def test_without_pytorch_it_says_what_to_install(infercast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = infercast("trace", "torchvision.models:resnet50", "--input", "1x3x224x224", "--gpu", "l40s")
    assert result.code == 2
    assert "tracing a module needs torch: " in result.err
