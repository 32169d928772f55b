"""Tables by architecture name every architecture, so that none is taken for another."""

import pytest

from infercast.errors import FileFormatError, InputError
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.load import _facts, by_kernels, is_modelled
from infercast.predict.families.attention_kernels import FAMILIES
from infercast.predict.identity import kernel_profile

MODELLED = sorted(_facts())
PROFILE = kernel_profile()
TABLES = {"experts": PROFILE.experts, "generations": PROFILE.generations}
FORMATS = ("bf16", "fp8", "fp8_block", "int4", "mxfp4", "mxfp4_a8", "nvfp4")


PUBLISHED = ["cdna3", "cdna4"]
"""Known from what was published: their kernels have names and no physics."""


def test_every_table_names_every_architecture():
    assert sorted(TABLES["generations"]) == MODELLED
    assert sorted(TABLES["experts"]) == sorted([*MODELLED, *PUBLISHED])


@pytest.mark.parametrize("kernels", MODELLED)
def test_attention_kernels_of_every_architecture_have_a_physics(kernels):
    assert _facts()[kernels].attention in FAMILIES


@pytest.mark.parametrize("kernels", [*MODELLED, *PUBLISHED])
def test_every_architecture_has_a_kernel_for_experts_of_every_format(kernels):
    assert tuple(PROFILE.experts[kernels]) == FORMATS


def test_blackwell_ultra_runs_the_kernels_of_blackwell():
    for ultra, known in (("b300-sxm", "b200-sxm"), ("gb300", "gb200")):
        assert load_gpu(ultra).kernels == load_gpu(known).kernels == "blackwell"


def test_bundled_gpus_run_kernels_that_are_known():
    for name in gpu_names():
        gpu = load_gpu(name)
        assert is_modelled(gpu) == (gpu.vendor == "NVIDIA")


def test_what_is_not_known_is_refused():
    with pytest.raises(InputError, match="h200-sxm runs kernels of 'hopper', of which too little is known; known: ada"):
        by_kernels({"ada": 1}, load_gpu("h200-sxm"))


def test_a_file_may_not_name_kernels_that_nobody_has(tmp_path):
    chip = tmp_path / "chip.toml"
    chip.write_text('base = "b200-sxm"\nkernels = "blackwell-ultra"\n')
    with pytest.raises(FileFormatError, match="field 'kernels': unknown architecture 'blackwell-ultra'"):
        load_gpu(chip)
