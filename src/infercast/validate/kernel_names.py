"""To which family a kernel of an engine's profile belongs, told by its name."""

from __future__ import annotations

import re

OTHER = "other"
GEMM = "gemm"
# First match wins. Kernels that a compiler fused carry the names of what went into them; one without any names reduces
# (the norm of each head) or maps (the rotary embedding): the only fused kernels in a layer that nothing is named after.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        "attention",
        r"flashattn|flash_fwd|flash::|fmha|unified_attention|paged_attention|flash_?mla|mla_decode|merge_attn_states"
        r"|batchdecode|batchprefill|batch_?(decode|prefill)_?with",
    ),
    ("norm", r"rms_?norm|layer_?norm|qknorm"),
    ("kv_write", r"reshape_and_cache|concat_and_cache|indexer_k_quant|store_kvcache"),
    (
        "moe",
        r"fused_moe|moe_align|moe_sum|::moe::|topkgating|sbtopk|gathertopk|grouped_topk|topk_softmax|count_and_sort|expert|marlin_moe"
        r"|matmul_ogs|topk_forward|bitmatrix|m_grouped|grouped_gemm|_router_triton|triton_per_fused_copy__mul_sum",
    ),
    ("moe", r"triton_.*softmax|triton_.*topk|triton_.*sigmoid"),
    (
        "sampling",
        r"gumbel|argmax|_bias_kernel|resample|reject|local_logits_stats|_temperature_kernel|top_?k_?top_?p|_min_p|direct_copy_kernel.*lambda..#7",
    ),
    ("norm", r"triton_(red|per)_fused_\d+$"),
    # A slice is copied out of wider rows: the queries of an engine that fuses nothing.
    ("activation", r"silu|gelu|relu|act_and_mul|swiglu|impl_nocast<at::native::direct_copy_kernel"),
    (
        "quantise",
        r"scaled_fp8_quant|per_token_.*quant|per_token_group|triton_.*scaled_mm|triton_.*quant|triton_red.*abs",
    ),
    ("rope", r"rotary|rope|triton_poi_fused_\d+$|triton_poi_fused_(cat|split|mul)[a-z_]*_\d+$"),
    (GEMM, r"nvjet|gemm|gemv|cublas|splitkreduce|scaled_mm|xmma|cutlass::kernel|machete|marlin"),
)
_COMPILED = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _PATTERNS)


def family_of_kernel(name: str, *, has_experts: bool) -> str:
    """The family of a kernel; ``has_experts`` says whether hand-written activations belong to experts."""
    if has_experts and "act_and_mul_kernel" in name:
        return "moe"
    return next((family for family, pattern in _COMPILED if pattern.search(name)), OTHER)
