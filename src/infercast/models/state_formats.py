"""Formats of the states of recurrent layers, other than the model's own."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import UnknownNameError
from infercast.models.mixers import GatedDeltaNet, Mamba2, Mixer, SideBySide
from infercast.models.spec import ModelConfig

AUTO = "auto"
FORMATS = {AUTO: "", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def with_states(model: ModelConfig, whole: str = AUTO, matrices: str = AUTO) -> ModelConfig:
    """The same model with its states in other formats: the ``matrices``, or all of one where nothing is said of them.

    Facts of vLLM 0.25 (``layers/mamba/mamba_utils.py``). What a config says of the matrices holds against ``whole``;
    those of Kimi delta attention are fp32 whatever is asked for.
    """
    for name, value in (("mamba_cache_dtype", whole), ("mamba_ssm_cache_dtype", matrices)):
        if value not in FORMATS:
            raise UnknownNameError(name, value, FORMATS)
    if whole == matrices == AUTO:
        return model

    def changed(mixer: Mixer) -> Mixer:
        if isinstance(mixer, SideBySide):
            return replace(mixer, first=changed(mixer.first), second=changed(mixer.second))
        if not isinstance(mixer, GatedDeltaNet | Mamba2):
            return mixer
        return replace(mixer, state_dtype=FORMATS[matrices] or mixer.state_dtype or FORMATS[whole])

    return replace(model, stacks=tuple(replace(stack, mixer=changed(stack.mixer)) for stack in model.stacks))
