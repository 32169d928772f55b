"""A collection of published configs, where one lies beside the repository: each counts right or is refused by name."""

import json
from pathlib import Path

import pytest

from infercast.errors import UnsupportedModelError
from infercast.models.library import refused
from infercast.models.read import read_model
from infercast.models.spec import parameter_count

SHARED = Path(__file__).parents[3] / "shared" / "models"
# Published totals in billions, of the language model alone, prediction layers left out.
PUBLISHED = {
    "MiniMax-M2": 229,
    "MiniMax-M3": 428,
    "Qwen3-0.6B": 0.596,
    "Qwen3-1.7B": 1.72,
    "Qwen3-8B": 8.19,
    "Qwen3-32B": 32.8,
    "Qwen3-30B": 30.5,
    "Qwen3-235B": 235.1,
    "Qwen3-Coder-480B": 480.2,
    "Qwen3-VL-2B": 1.72,
    "Qwen3-VL-4B": 4.02,
    "Qwen3-VL-8B": 8.19,
    "Qwen3-VL-32B": 32.8,
    "Qwen3-VL-30B": 30.5,
    "Qwen3-VL-235B": 235.1,
    "MiMo-7B": 7.62,
    "MiMo-V2-Flash": 309,
    "DeepSeek-R1": 671,
    "DeepSeek-V3": 671,
    "DeepSeek-V3.2": 671.9,
    "DeepSeek-V4-Flash": 284,
    "DeepSeek-V4-Pro": 1573,
    "GLM-5": 744,
    "gemma-4-26B": 25.2,
    "Gemma-4-26B": 25.2,
    "Gemma-4-31B": 30.7,
    "Llama-4-Maverick": 400,
    "Llama-4-Scout": 107.8,
    "Llama-3.1-405B": 405.9,
    "Llama-3.1-70B": 70.55,
    "Llama-3.1-8B": 8.03,
    "Mixtral-8x22B": 140.6,
    "Mixtral-8x7B": 46.7,
    "Kimi-K2": 1026,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    # Files of the checkpoints hold exactly what is counted with encoder and prediction heads: test_prediction.py.
    "Qwen3.5-27B": 26.9,
    "Qwen3.6-27B": 26.9,
    "Qwen3.5-35B": 34.66,
    "Qwen3.6-35B": 34.66,
    "Qwen3.5-122B": 122.1,
    "Qwen3.5-397B": 396.3,
    "Nemotron-3-Nano-30B": 31.58,
    "Nemotron-3.5-Lightning-30B": 31.58,
    "Llama-3_3-Nemotron-Super-49B": 49.87,
    # By their names, or cards that round.
    "Nemotron-3-Super-120B": 120.6,
    "Nemotron-3-Ultra-550B": 550,
    "Nemotron-H-56B": 56.3,
    "Step-3.7-Flash": 196,
    "Kimi-K3": 2779,
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the collection of published configs is not here")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_published_configs_are_counted_right_or_refused_by_name(path):
    architecture = json.loads(path.read_text(encoding="utf-8"))["architectures"][0]
    if architecture in refused():
        with pytest.raises(UnsupportedModelError, match="not modelled yet"):
            read_model(path)
        return
    billions = next(PUBLISHED[key] for key in sorted(PUBLISHED, key=len, reverse=True) if key in path.name)
    assert parameter_count(read_model(path)) / 1e9 == pytest.approx(billions, rel=0.01)
