"""SGLang's own kernels, launches of experts, and host."""

from typing import Any

import numpy as np
import pytest

from infercast.engines.base import engine_named
from infercast.engines.host import Launch
from infercast.engines.sglang.host import launch_work
from infercast.engines.sglang.kernels import EXPERT_LAUNCHES, choose_kernels, experts_kernel, untuned_factors
from infercast.forecast.deploy import deploy
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import token_calls
from infercast.models.read import read_model

H200 = load_gpu("h200-sxm")
ONE = ParallelLayout(1)


def deployed(model: str, **options: Any) -> Any:
    return deploy(model, "h200-sxm", engine="sglang@0.5.16", predictor="roofline", **options)


def names_of(model: str, **options: Any) -> dict[str, int]:
    deployment = deployed(model, **options)
    return {call.name: call.count for call in token_calls(deployment.model, deployment.layout, 64)}


def test_queries_are_copied_out_of_the_joined_product() -> None:
    names = names_of("llama-3.1-8b")
    assert names["query_copy"] == names["kv_write"] == names["rope"] == 32
    assert "query_copy" not in {
        call.name for call in token_calls(deploy("llama-3.1-8b", "h200-sxm", predictor="roofline").model, ONE, 64)
    }


def test_some_models_store_while_they_rotate() -> None:
    names = names_of("qwen3-30b-a3b")
    assert "kv_write" not in names
    assert names["qk_norm"] == 48
    assert "kv_write" in names_of("qwen3-30b-a3b", kv_cache_dtype="fp8_e4m3")


def test_inputs_are_quantised_by_kernels_of_their_own() -> None:
    names = names_of("llama-3.1-8b", quantization="fp8")
    assert [names[f"{each}_quantise"] for each in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")] == [32] * 4
    assert "norm_quantise" not in names


def test_flashinfers_products_in_fp8_are_those_without_packed_scales() -> None:
    engine = engine_named("sglang")
    for backend, dtype in (("auto", "fp8_block"), ("aiter", "fp8_block"), ("flashinfer_trtllm", "fp8")):
        weights = engine.with_settings(
            engine.settings({"fp8_gemm_backend": backend}), read_model("deepseek-r1")
        ).weights
        assert (weights.attention, weights.activation_feed_forward, weights.experts) == (dtype, dtype, "fp8_block")


def test_experts_without_a_tuned_file_take_longer_beyond_as_many_tokens_as_experts() -> None:
    assert EXPERT_LAUNCHES.has_tuned_file(128, 768, "bf16", H200)
    assert not EXPERT_LAUNCHES.has_tuned_file(64, 1408, "bf16", H200)
    model = read_model("deepseek-v2-lite")
    (spec,) = {stack.feed_forward for stack in model.stacks if stack.feed_forward.experts}
    factors = dict(untuned_factors(model, spec, H200, ONE))
    assert factors[32.0] < 1.05
    assert 1.3 < factors[128.0] < 1.7
    assert 1.7 < factors[8192.0] < 2.2
    tuned = read_model("qwen3-30b-a3b")
    (spec,) = {stack.feed_forward for stack in tuned.stacks if stack.feed_forward.experts}
    assert untuned_factors(tuned, spec, H200, ONE) == ()


def test_slower_launches_lengthen_steps() -> None:
    deployment = deployed("deepseek-v2-lite")
    (call,) = [
        call for call in token_calls(deployment.model, deployment.layout, np.array([8, 8192])) if call.name == "experts"
    ]
    assert np.asarray(call.slower)[1] > 1.7


@pytest.mark.parametrize(
    ("model", "pieces", "stored", "composed"),
    [("llama-3.1-8b", 32, 0, 0), ("qwen3-30b-a3b", 0, 48, 0), ("deepseek-v2-lite", 0, 0, 27)],
)
def test_what_a_step_takes_to_launch(model: str, pieces: int, stored: int, composed: int) -> None:
    deployment = deployed(model)
    work = launch_work(deployment.model, deployment.layout)
    assert (work.piece_layers, work.stored_layers, work.composed_layers) == (pieces, stored, composed)


def test_prompts_cost_the_host_more_than_decoding() -> None:
    host = deployed("llama-3.1-8b").host_model
    decode = host.cost(Launch.FULL_GRAPH, 8, 8, 0)
    prompts = host.cost(Launch.PIECEWISE_GRAPHS, 2, 512, 2)
    eager = host.cost(Launch.EAGER, 2, 512, 2)
    assert decode.total < 4e-3 < prompts.total < eager.total
    assert host.borrowed_share("llama-3.1-8b") == 0.0
    latent = deployed("deepseek-v2-lite").host_model
    assert latent.borrowed_share("deepseek-v2-lite") == 0.0 < latent.borrowed_share("deepseek-v3")


def test_experts_in_blocks_run_triton_s_kernel_on_blackwell_unless_they_are_dispatched() -> None:
    def kernel(layout: ParallelLayout) -> str:
        return experts_kernel(read_model("minimax-m2.5"), load_gpu("b200-sxm"), layout)

    assert kernel(ParallelLayout(8, experts=True)) == "triton"
    assert kernel(ParallelLayout(8)) == kernel(ParallelLayout(8, experts=True, all_to_all=True)) == ""


def test_shared_experts_run_beside_tensorrt_llm_s() -> None:
    def calls(gpu: str, tokens: int = 1) -> dict[str, bool]:
        found = deploy("deepseek-r1", gpu, engine="sglang", tensor_parallel_size=8)
        return {call.name: bool(call.beside) for call in token_calls(found.model, found.layout, tokens)}

    assert calls("b200-sxm")["shared_gate_up_proj"]
    assert not calls("b200-sxm")["qkv_a_proj"]
    assert not calls("b200-sxm", 2048)["shared_gate_up_proj"]  # prompts are in no graph of decoding
    assert "shared_gate_up_proj" not in calls("h200-sxm")  # one more of the routed experts there


def test_products_in_nvfp4_take_the_host_longer() -> None:
    engine = engine_named("sglang")
    model = engine.choose_kernels(read_model("nvidia/GLM-4.7-NVFP4"), load_gpu("b200-sxm"), ParallelLayout(2))
    assert launch_work(model, ParallelLayout(2)).tuned_products == 2 * 92  # shared experts, and three dense layers
    assert launch_work(read_model("glm-4.6"), ParallelLayout(2)).tuned_products == 0


def test_routers_in_fp32() -> None:
    for model in ("glm-4.6", "glm-4.5-air", "minimax-m2.5"):
        chosen = choose_kernels(read_model(model), load_gpu("h200-sxm"), ONE)
        (router,) = (call for call in token_calls(chosen, ONE, np.array([1, 16, 2048])) if call.name == "router")
        assert router.op.compute_dtype == "fp32"
        assert np.all(np.diff(router.slower) > 0)  # one row has a kernel of its own
        assert router.slower[-1] == 1.0
    assert not any(call.name == "router_widen" for call in token_calls(read_model("glm-4.6"), ONE, 1))
