"""What fits, against block counts that vLLM 0.25 reported, and what is said when it does not."""

import re
from dataclasses import replace

import numpy as np
import pytest

import infercast as ic
from infercast.engines.base import engine_named, require_fit
from infercast.engines.vllm.memory import plan_memory
from infercast.engines.vllm.settings import EngineSettings, resolve
from infercast.errors import DoesNotFitError
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.units import GIB, MIB

# KV blocks of 16 tokens on an H200: gpu_memory_utilization 0.9, max_num_batched_tokens 8192, max_num_seqs 256.
MEASURED = [
    ("qwen3-0.6b", None, 72647),
    ("llama-3.1-8b", None, 56057),
    ("llama-3.1-8b", "fp8", 59349),
    ("qwen3-30b-a3b", None, 45781),
    ("deepseek-v2-lite", None, 205313),
]


def arguments(model, gpu, tensor=1, quantization=None, **options):
    config, device = read_model(model, quantization=quantization), load_gpu(gpu)
    return config, ParallelLayout(tensor), device, resolve(EngineSettings(**options), device, config.max_positions)


def refusal(*args, **options):
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(engine_named(), *arguments(*args, **options))
    return str(caught.value)


@pytest.mark.parametrize(("model", "quantization", "blocks"), MEASURED)
def test_blocks_are_those_of_a_real_engine(model, quantization, blocks):
    options = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 16384}
    options["gpu_memory_utilization"] = 0.9
    memory = plan_memory(*arguments(model, "h200-sxm", quantization=quantization, **options))
    assert memory.num_blocks == pytest.approx(blocks, rel=0.012)


def test_the_parts_fill_the_usable_memory():
    memory = plan_memory(*arguments("llama-3.1-8b", "h200-sxm"))
    assert memory.usable == 0.92 * memory.total
    left = memory.usable - memory.needed - memory.kv_bytes
    assert 0 <= left < memory.kv.block_bytes
    assert memory.weights == 2 * 8_030_261_248


def test_eager_engines_record_no_graphs():
    assert plan_memory(*arguments("llama-3.1-8b", "h200-sxm", enforce_eager=True)).graphs == 0


def test_blocks_can_be_given():
    assert plan_memory(*arguments("llama-3.1-8b", "h200-sxm", num_gpu_blocks_override=99)).num_blocks == 99


def test_larger_steps_leave_fewer_blocks():
    few, many = (
        plan_memory(*arguments("llama-3.1-8b", "h200-sxm", max_num_batched_tokens=tokens)).num_blocks
        for tokens in (32768, 2048)
    )
    assert few < many


def test_two_gpus_halve_the_weights():
    one, two = (plan_memory(*arguments("llama-3.1-8b", "h200-sxm", tensor)) for tensor in (1, 2))
    # Norms are on both.
    assert one.weights / 2 < two.weights < 1.0001 * one.weights / 2
    assert two.num_blocks > 2 * one.num_blocks


def test_sequences_and_lengths_that_fit():
    memory = plan_memory(*arguments("llama-3.1-8b", "h200-sxm", num_gpu_blocks_override=101))
    # One block of 101 is set aside; 100 hold five sequences of 20 blocks, or one of 1600 tokens.
    assert memory.most_sequences(320, chunk=1) == 5
    assert memory.most_sequences(321, chunk=1) == 4
    assert memory.longest_sequence(chunk=1) == 1600


def test_windows_stop_growing_so_longer_sequences_fit():
    memory = plan_memory(*arguments("gpt-oss-20b", "h200-sxm", num_gpu_blocks_override=101))
    # The window of 128 holds at most 8 + 1 blocks while decoding; the full group gets the other 91.
    assert memory.longest_sequence(chunk=1) == 91 * 16


def test_weights_that_do_not_fit_name_the_smallest_split_that_does():
    assert re.fullmatch(
        r"llama-3.1-70b \(bf16\) does not fit on 1 x h100-sxm: weights, activations and graphs need "
        r"13\d\.\d\d GiB per GPU, above the 72\.\d\d GiB that are usable; tensor_parallel_size=4 fits",
        refusal("llama-3.1-70b", "h100-sxm"),
    )


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-70b", "h100-sxm"), ("phi-4", "l4"), ("qwen2.5-7b", "t4")])
def test_the_split_that_is_named_is_the_smallest_that_works(model, gpu):
    named = int(refusal(model, gpu).partition("tensor_parallel_size=")[2].split()[0])
    require_fit(engine_named(), *arguments(model, gpu, named))
    assert all("does not fit" in refusal(model, gpu, smaller) for smaller in range(1, named) if named % smaller == 0)


def test_no_split_is_named_that_the_model_does_not_allow():
    # phi-4 has 10 key-value heads: two, not four, GPUs could share it, and two T4 are too small.
    assert refusal("phi-4", "t4").endswith("; pipeline_parallel_size=3 fits")


def test_a_model_too_large_for_a_node_says_so():
    assert refusal("llama-3.1-405b", "l4").endswith("no layout within the 8 GPUs of a node fits")


def test_a_context_too_long_names_the_length_that_fits():
    sentence = refusal("llama-3.1-8b", "l4")
    assert sentence.startswith("one sequence of max_model_len 131072 does not fit in the KV cache of llama-3.1-8b")
    assert sentence.endswith("lower max_model_len, or: tensor_parallel_size=2 fits")
    longest = int(re.search(r"blocks hold (\d+) tokens", sentence)[1])
    require_fit(engine_named(), *arguments("llama-3.1-8b", "l4", max_model_len=longest))
    assert f"hold {longest} tokens" in refusal("llama-3.1-8b", "l4", max_model_len=longest + 1)


def test_a_fuller_gpu_fits_more():
    config, layout, gpu, settings = arguments("llama-3.1-8b", "h200-sxm")
    fuller = replace(settings, gpu_memory_utilization=0.95)
    assert plan_memory(config, layout, gpu, fuller).num_blocks > plan_memory(config, layout, gpu, settings).num_blocks


def test_all_stages_have_as_many_blocks_as_the_one_with_least_room():
    config, _, gpu, settings = arguments("deepseek-v2-lite", "h200-sxm", max_num_seqs=256)
    memory = plan_memory(config, ParallelLayout(pipeline=4), gpu, settings)
    # Stages of 7, 7, 7 and 6 layers: the second and third have seven with experts.
    assert memory.kv.block_bytes == 7 * 576 * 2 * 16
    assert memory.weights == pytest.approx(8.19e9, rel=0.001)


def test_groups_of_layers_are_shared_out_over_stages():
    config, _, gpu, settings = arguments("gemma-3-27b", "h200-sxm")
    memory = plan_memory(config, ParallelLayout(pipeline=2), gpu, settings)
    # Six groups of windowed layers and one of ten others; no stage has more than five of any group.
    assert memory.kv.block_bytes == 5 * 2 * 16 * 128 * 2 * 16


@pytest.mark.parametrize(
    ("gpu", "tensor", "gigabytes"), [("b200-sxm", 1, 73.65), ("h200-sxm", 1, 65.25), ("h200-sxm", 4, 17.37)]
)
def test_packed_experts_are_padded_as_their_kernels_need(gpu, tensor, gigabytes):
    assert plan_memory(*arguments("gpt-oss-120b", gpu, tensor)).weights / 1e9 == pytest.approx(gigabytes, abs=0.03)


def test_a_named_kernel_pads_by_its_own_rule():
    config, layout, gpu, settings = arguments("gpt-oss-120b", "h200-sxm")
    marlin = replace(config, weights=replace(config.weights, experts_kernel="marlin"))
    # 2,880 x 2,880 becomes 3,072 x 2,944.
    ratio = 3072 * 2944 / 2880**2
    experts = 36 * 128 * 3 * 2880**2 * (0.5 + 1 / 32)
    more = plan_memory(marlin, layout, gpu, settings).weights - plan_memory(config, layout, gpu, settings).weights
    assert more == pytest.approx(experts * (ratio - 1), rel=0.01)


def test_no_pipeline_of_more_stages_than_layers_is_tried():
    config = read_model("qwen3-0.6b")
    one_layer = replace(config, stacks=(replace(config.stacks[0], layers=1),), vocabulary=10**12)
    gpu = replace(load_gpu("h200-sxm"), gpus_per_node=10**12)
    settings = resolve(EngineSettings(), gpu, config.max_positions)
    with pytest.raises(DoesNotFitError, match="does not fit"):
        require_fit(engine_named(), one_layer, ParallelLayout(), gpu, settings)


def test_weights_in_host_memory_free_as_much_of_the_gpu():
    plain = plan_memory(*arguments("llama-3.1-8b", "h200-sxm"))
    read = plan_memory(*arguments("llama-3.1-8b", "h200-sxm", cpu_offload_gb=8))
    assert plain.weights - read.weights == 8 * GIB
    # Layers 3, 7, ... of 32, of 416 MiB each, and two buffers for them.
    copied = plan_memory(*arguments("llama-3.1-8b", "h200-sxm", offload_group_size=4, offload_prefetch_step=2))
    assert plain.weights - copied.weights == pytest.approx((8 - 2) * 416 * MIB, rel=1e-3)
    all_of_them = plan_memory(*arguments("llama-3.1-8b", "h200-sxm", cpu_offload_gb=100))
    assert plain.weights - all_of_them.weights == pytest.approx(32 * 416 * MIB, rel=1e-3)
    ignored = plan_memory(*arguments("llama-3.1-8b", "h200-sxm", cpu_offload_gb=8, offload_backend="prefetch"))
    assert ignored.weights == plain.weights


def waits(tokens, seconds, model="llama-3.1-8b", **options):
    deployment = ic.deploy(model, "h200-sxm", EngineSettings(**options), predictor="roofline")
    return deployment.weight_waits(np.array([tokens]), np.array([seconds]))[0]


def test_kernels_read_weights_in_host_memory_again_for_more_rows():
    # As measured on an H200: 50.7 GB/s, and as often as 256 goes into the rows.
    once = 8 * GIB / 50.7e9
    assert waits(1, 0.0, cpu_offload_gb=8) == pytest.approx(once, rel=0.01)
    assert waits(8192, 0.0, cpu_offload_gb=8) == pytest.approx(32 * once, rel=0.01)
    # What the kernels take anyway is no wait: they have 8 of 13 GiB of all layers there.
    assert waits(1, 0.13, cpu_offload_gb=8) == pytest.approx(once - 0.13 * 8 / 13, abs=2e-3)
    assert waits(1, 10.0, cpu_offload_gb=8) == 0.0
    # Of 128 experts a token meets 8.
    few, many = (waits(tokens, 0.0, "qwen3-30b-a3b", cpu_offload_gb=50) for tokens in (1, 256))
    assert 0.05 * many < few < 0.12 * many


def test_layers_are_copied_while_others_compute():
    layer = 416 * MIB / (0.86 * 63e9)
    # One buffer: a copy starts when the layer that had it is done. The last layer is copied, and waited for at the end.
    assert waits(1, 0.0, offload_group_size=4) == pytest.approx(8 * layer, rel=0.03)
    assert waits(1, 32 * layer, offload_group_size=4) == pytest.approx(layer, rel=0.03)
    # Two: each has the time of seven layers, and two are waited for at the end.
    assert waits(1, 32 * layer, offload_group_size=4, offload_prefetch_step=2) == pytest.approx(layer, rel=0.03)
    assert waits(1, 0.0, offload_group_size=4, offload_prefetch_step=2) == pytest.approx(8 * layer, rel=0.03)
    assert waits(1, 32 * layer, offload_group_size=1) == pytest.approx(32 * layer, rel=0.03)


def test_what_steps_wait_for_weights_is_part_of_their_time():
    plain, offloaded = (
        ic.simulate("llama-3.1-8b", gpu="h200-sxm", settings=EngineSettings(cpu_offload_gb=gigabytes), concurrency=1,
                    num_requests=2, input_len=64, output_len=16, predictor="roofline")
        for gigabytes in (0.0, 8.0)
    )  # fmt: skip
    more = 1e-3 * (offloaded.per_request()["tpot_ms"] - plain.per_request()["tpot_ms"]).mean()
    assert more == pytest.approx(8 * GIB / 50.7e9, rel=0.05)


def test_a_length_of_auto_is_all_that_fits():
    options = ic.EngineSettings(max_model_len=-1, kv_cache_memory_bytes=4 * GIB)
    deployment = ic.deploy("llama-3.1-8b", "l40s", options, predictor="roofline")
    # 4 GiB are 2,048 blocks of 16 tokens, of which the engine keeps one.
    assert (deployment.memory.num_blocks, deployment.settings.max_model_len) == (2048, 2047 * 16)
    roomy = ic.deploy("llama-3.1-8b", "h200-sxm", ic.EngineSettings(max_model_len=-1), predictor="roofline")
    assert roomy.settings.max_model_len == 131072


def test_a_kv_cache_beyond_the_gpu_is_refused():
    with pytest.raises(DoesNotFitError, match="kv_cache_memory_bytes is above the 30,"):
        ic.deploy("llama-3.1-8b", "l40s", ic.EngineSettings(kv_cache_memory_bytes=60 * GIB, max_model_len=1024))
