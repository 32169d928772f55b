"""Kernels of an engine's profile: told by name, counted by step, held against estimates."""

import importlib
import sys
from pathlib import Path

import pytest

from infercast.errors import FileFormatError
from infercast.forecast.deploy import deploy
from infercast.predict.identity import family_of_kernel

FOLDER = Path(__file__).parents[2] / "benchmarks" / "engine"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)
sys.path.append(str(FOLDER))
steps = importlib.import_module("profiled_steps")
ProfiledStep, compare_profile, summarise = steps.ProfiledStep, steps.compare_profile, steps.summarise

NAMES = {
    "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_TNT": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "gemm",
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t>": "gemm",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<": "attention",
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<": "attention",
    "void flash::prepare_varlen_num_blocks_kernel<2, false>": "attention",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>": "kv_write",
    "triton_red_fused_fused_add_rms_norm_2": "norm",
    "triton_red_fused_fused_add_rms_norm_moe_forward_0": "norm",
    "triton_red_fused__to_copy_abs_clamp_cutlass_scaled_mm_div_fused_add_rms_norm_max_mul_reciprocal_3": "norm",
    "triton_red_fused__to_copy_abs_clamp_cutlass_scaled_mm_div_max_mul_reciprocal_silu_slice_2": "activation",
    "triton_red_fused__to_copy_abs_clamp_cutlass_scaled_mm_div_max_mul_reciprocal_unsqueeze_view_0": "quantise",
    "triton_red_fused_2": "norm",
    "triton_poi_fused_mul_silu_slice_1": "activation",
    "triton_poi_fused_3": "rope",
    "fused_moe_kernel": "moe",
    "void vllm::moe::topkGating<8, 128, 4, 16>": "moe",
    "void marlin_moe_wna16::Marlin<__nv_bfloat16>": "moe",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_64x256x128": "moe",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<4096u, 7168u>": "gemm",
    "void vllm::merge_attn_states_kernel<__nv_bfloat16>": "attention",
    "triton_poi_fused_gelu_mul_slice_1": "activation",
    "_gumbel_sample_kernel": "sampling",
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>": "norm",
    "void (anonymous namespace)::fused_qknorm_warp<128l, true, __nv_bfloat16>": "norm",
    "void (anonymous namespace)::fused_rope_store_kernel<true, 128l, true, __nv_bfloat16>": "rope",
    "void (anonymous namespace)::store_kvcache<2048l, 4, true, long>": "kv_write",
    "void at::native::elementwise_kernel<128, 4, impl_nocast<at::native::direct_copy_kernel": "activation",
    "_router_triton_kernel": "moe",
    "Memcpy HtoD (Pinned -> Device)": "other",
}


@pytest.mark.parametrize(("name", "family"), NAMES.items())
def test_families_by_name(name, family):
    assert family_of_kernel(name, has_experts=False) == family


def test_hand_written_activations_belong_to_experts_where_there_are_any():
    name = "void vllm::act_and_mul_kernel<c10::BFloat16>"
    assert family_of_kernel(name, has_experts=True) == "moe"
    assert family_of_kernel(name, has_experts=False) == "activation"


def kernel(name, count, mean):
    return {"name": name, "n": count, "mean_us": mean, "sum_us": count * mean, "grid": "", "block": ""}


def document(**changes):
    annots = [["execute_context_0(0)_generation_32(32)", "user_annotation", 5.0]] * 2
    profile = {
        "tag": "decode b=32 ctx~1100", "n_annot": 2, "annots": annots, "busy_us": 12_000.0, "span_us": 13_000.0,
        "kernels": [
            kernel("nvjet_sm90_tst_128x32", 256, 30.0), kernel("nvjet_sm90_tst_512x32", 2, 260.0),
            kernel("flash::FlashAttnFwdSm90<", 64, 46.0), kernel("triton_red_fused_fused_add_rms_norm_0", 128, 2.1),
        ],
    }  # fmt: skip
    return {"profiles": [{**profile, **changes}]}


def read(engine="vllm", **changes):
    return next(steps.read_profiles(Path("f.json"), document(**changes), engine, has_experts=False))


def test_steps_of_sglang_stand_among_other_names():
    names = ["scheduler.run_batch", "step[DECODE bs=32]", "step[EXTEND bs=4 toks=8192]", "step[IDLE bs=0]"]
    annots = [[name, "user_annotation", 5.0] for name in names]
    kernels = [
        kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<", 10, 9.0)
    ]
    read_all = read("sglang", annots=annots, n_annot=20, kernels=kernels)
    assert dict(read_all.steps) == {ProfiledStep(0, 0, 32): 5.0, ProfiledStep(4, 8192, 0): 5.0}


def test_the_head_is_the_longest_product_that_runs_once_a_step():
    profile = read()
    assert profile.family_us["lm_head"] == pytest.approx(520.0)
    assert profile.family_us["gemm"] == pytest.approx(7680.0)


def test_a_list_that_was_cut_off_still_counts_every_step():
    annots = [["execute_context_0(0)_generation_32(32)", "user_annotation", 5.0]] * 60
    assert sum(count for _, count in read(annots=annots, n_annot=80).steps) == 40


def test_lengths_come_from_the_tag():
    queries, keys = read().batch_of(ProfiledStep(0, 0, 32))
    assert (len(queries), set(queries), set(keys)) == (32, {1}, {1100})
    queries, keys = read(tag="prefill 8x2048 loop").batch_of(ProfiledStep(5, 8188, 4))
    assert sum(queries) == 8192
    assert max(keys) <= 2049


def test_a_profile_without_steps_is_named():
    with pytest.raises(FileFormatError, match=r"profiles\[0\]"):
        read(annots=[])


def test_predicted_families_are_compared():
    deployment = deploy("llama-3.1-8b", "h200-sxm")
    assert not deployment.model.has_experts
    compared = compare_profile("f.json", deployment, read())
    assert {"gemm", "attention", "lm_head", "norm"} <= set(compared.families)
    assert 0 < compared.families["gemm"].ape < 1
    summary = summarise([compared])
    assert 0 < summary["kernel_time_covered"] <= 1.01
    assert summarise([])["kernel_ape_median"] is None


def test_no_piece_is_longer_than_a_prompt():
    queries, keys = read(tag="prefill 8x2048 loop").batch_of(ProfiledStep(4, 8191, 1))
    assert queries == [1, 2047, 2048, 2048, 2048]
    assert keys == [2049, 2048, 2048, 2048, 2048]
