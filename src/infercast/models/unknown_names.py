"""What to say of a model that is not bundled: that it is known and refused, or what else may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from infercast.errors import InputError, UnknownNameError, UnsupportedModelError, near_names
from infercast.models.families import REFUSED

MOST_SUGGESTED = 3

# How the names of published models begin whose config.json names an architecture that is refused.
ARCHITECTURES = {
    "deepseek-v3.2": "DeepseekV32ForCausalLM",
    "deepseek-v4": "DeepseekV4ForCausalLM",
    "glm-5": "GlmMoeDsaForCausalLM",
    "kimi-k3": "KimiK3ForConditionalGeneration",
    "kimi-linear": "KimiLinearForCausalLM",
    "llama-3_3-nemotron-super-49b": "DeciLMForCausalLM",
    "minimax-m1": "MiniMaxM1ForCausalLM",
    "minimax-m3": "MiniMaxM3ForCausalLM",
    "minimax-text-01": "MiniMaxText01ForCausalLM",
    "nemotron-3-nano": "NemotronHForCausalLM",
    "nemotron-3-super": "NemotronHForCausalLM",
    "nemotron-3-ultra": "NemotronHForCausalLM",
    "nemotron-3.5-lightning": "NemotronHForCausalLM",
    "nemotron-h": "NemotronHForCausalLM",
    "qwen3-next": "Qwen3NextForCausalLM",
    "qwen3.5-27b": "Qwen3_5ForConditionalGeneration",
    "qwen3.5-35b-a3b": "Qwen3_5MoeForConditionalGeneration",
    "qwen3.5-122b-a10b": "Qwen3_5MoeForConditionalGeneration",
    "qwen3.5-397b-a17b": "Qwen3_5MoeForConditionalGeneration",
    "qwen3.6-27b": "Qwen3_5ForConditionalGeneration",
    "qwen3.6-35b-a3b": "Qwen3_5MoeForConditionalGeneration",
    "step-3.7-flash": "Step3p7FlashForCausalLM",
}


def unknown_model(name: str, known: Iterable[str]) -> InputError:
    """One sentence about a model that is not among the ``known``."""
    plain = _plain(name)
    architecture = next((value for begin, value in ARCHITECTURES.items() if plain.startswith(begin)), "")
    if architecture in REFUSED:
        return UnsupportedModelError(f"{name} ({architecture}) is not supported: {REFUSED[architecture]}")
    names = tuple(known)
    hint = f"a path to its config.json works too, and `infercast models` lists the {len(names)} bundled names"
    return UnknownNameError("model", name, names, hint, near=_near(plain, names), listed=False)


def _plain(name: str) -> str:
    """``nvidia/NVIDIA-Nemotron-3-Nano`` as ``nemotron-3-nano``."""
    return name.strip().rpartition("/")[2].lower().removeprefix("nvidia-")


def _near(plain: str, names: Iterable[str]) -> list[str]:
    """Names that may have been meant, never those of another generation: qwen2.5 is no guess for qwen3.5."""
    same = [each for each in names if _generation(each) in (_generation(plain), "")]
    return near_names(plain, same, most=MOST_SUGGESTED)


def _generation(plain: str) -> str:
    """The first number in a name: ``3.1`` of ``llama-3.1-8b``."""
    found = re.search(r"\d+(\.\d+)?", plain)
    return found[0] if found else ""
