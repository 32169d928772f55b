"""What kernel names tell."""

import pytest

from infercast.lab.measure.rows import LONGEST, short_name, tile_of

CUTLASS = (
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t, cutlass::bfloat16_t, "
    "vllm::c3x::ScaledEpilogue, cute::tuple<cute::C<64>, cute::C<16>, cute::C<256> >, cute::tuple<cute::C<1>, "
    "cute::C<1>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedFP8FastAccum> >(Params)"
)
FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, "
    "cute::C<128>, cute::C<128> >, 128, cutlass::bfloat16_t> > > >(Params)"
)
COMBINE = (
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256, 1, false, "
    "true, cutlass::bfloat16_t, float, cutlass::arch::Sm90> >(Params)"
)


@pytest.mark.parametrize(
    ("name", "short", "tile"),
    [
        (
            "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_splitK_TNT",
            "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_splitK_TNT",
            "128x32_64x10_2x1",
        ),
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT", None, "320x128_64x3_1x2"),
        (CUTLASS, "vllm::cutlass_3x_gemm_sm90_fp8", "64x16x256_1x1x1"),
        (FLASH, "flash::FlashAttnFwdSm90", "1x1x1_128x128x128"),
        (COMBINE, "flash::FlashAttnFwdCombine", "8x128"),
        ("fused_moe_kernel", "fused_moe_kernel", ""),
        ("void at::native::reduce_kernel<512, 1>(float*)", "at::native::reduce_kernel", ""),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", None, ""),
        ("", "", ""),
    ],
)
def test_short_names_and_tiles(name: str, short: str | None, tile: str) -> None:
    assert short_name(name) == (name if short is None else short)
    assert tile_of(name) == tile


def test_short_names_are_short() -> None:
    assert len(short_name("triton_" + "mul_" * 100)) == LONGEST
