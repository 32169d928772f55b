from dataclasses import replace

import pytest

from infercast.errors import InputError
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.models.spec import check_layout, divides


def test_split_sizes_round_up_as_engines_pad():
    assert ParallelLayout(4).share(128256) == 32064
    assert ParallelLayout(4).share(10) == 3
    assert ParallelLayout(4).gpus == 4


def test_scarce_key_value_heads_are_kept_more_than_once():
    assert [ParallelLayout(size).share_kv_heads(4) for size in (1, 2, 4, 8)] == [4, 2, 1, 1]


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("llama-3.1-8b", [1, 2, 4, 8]),
        ("qwen2.5-0.5b", [1, 2]),  # 14 heads, 2 key-value heads, width 4864 = 2^8 x 19
        ("phi-4", [1, 2, 5]),  # 40 heads, 10 key-value heads
        ("deepseek-v2-lite", [1, 2, 4, 8]),  # latent attention has no key-value heads to split
    ],
)
def test_sizes_up_to_8_that_divide(model, sizes):
    config = read_model(model)
    assert [size for size in range(1, 9) if divides(config, size)] == sizes


def test_a_size_that_does_not_divide_is_refused_with_those_that_do():
    sentence = r"tensor_parallel_size 3 does not divide .* llama-3.1-8b; valid: 1, 2, 4, 8, 16, 32$"
    with pytest.raises(InputError, match=sentence):
        check_layout(read_model("llama-3.1-8b"), ParallelLayout(3))


@pytest.mark.parametrize("size", [0, -2])
def test_no_gpus_are_refused(size):
    with pytest.raises(InputError, match=f"tensor_parallel_size must be at least 1, not {size}"):
        check_layout(read_model("llama-3.1-8b"), ParallelLayout(size))


def test_a_layout_counts_its_gpus_and_says_its_name():
    layout = ParallelLayout(2, pipeline=3, data=4, experts=True)
    assert (layout.gpus, layout.replica_gpus, layout.expert_gpus) == (24, 6, 8)
    assert str(layout) == "TP2+PP3+DP4+EP"
    assert str(ParallelLayout(8)) == "TP8"


@pytest.mark.parametrize(
    ("model", "layout", "sentence"),
    [
        ("llama-3.1-8b", ParallelLayout(pipeline=33), "pipeline_parallel_size 33 is more than the 32 layers of llama"),
        ("gemma-4-e4b", ParallelLayout(pipeline=2), "whose last layers read the KV cache of earlier ones; use 1"),
        ("llama-3.1-8b", ParallelLayout(data=0), "data_parallel_size must be at least 1, not 0"),
        ("llama-3.1-8b", ParallelLayout(2, experts=True), "needs a model with experts, and llama-3.1-8b has none"),
        (
            "qwen3-30b-a3b",
            ParallelLayout(data=3, experts=True),
            "over 3 GPUs .* does not divide them; valid: 1, 2, 4, 8,",
        ),
    ],
)
def test_layouts_that_cannot_be(model, layout, sentence):
    with pytest.raises(InputError, match=sentence):
        check_layout(read_model(model), layout)


def test_spread_experts_need_not_be_divided():
    config = read_model("qwen3-30b-a3b")
    odd = tuple(replace(stack, feed_forward=replace(stack.feed_forward, inter=769)) for stack in config.stacks)
    assert not divides(replace(config, stacks=odd), 4)
    assert divides(replace(config, stacks=odd), 4, split_experts=False)


@pytest.mark.parametrize(
    ("model", "tensor", "width", "remedy"),
    [
        ("qwen3-235b-a22b-fp8", 8, 192, "tensor_parallel_size 1 or 2 or 4, or enable_expert_parallel"),
        ("qwen3-30b-a3b-fp8", 4, 192, "tensor_parallel_size 1 or 2, or enable_expert_parallel"),
        ("minimax-m2.5", 8, 192, "tensor_parallel_size 1 or 2 or 4, or enable_expert_parallel"),
        ("qwen3-coder-480b-a35b-fp8", 8, 320, "tensor_parallel_size 1 or 2 or 4, or enable_expert_parallel"),
    ],
)
def test_blocks_of_fp8_weights_are_not_cut(model, tensor, width, remedy):
    config = read_model(model)
    with pytest.raises(
        InputError, match=f"experts of {model} to {width} per GPU.* blocks of 128; what works: {remedy}$"
    ):
        check_layout(config, ParallelLayout(tensor))
    check_layout(config, ParallelLayout(tensor, experts=True))
    check_layout(config, ParallelLayout(tensor // 2))


def test_copies_cut_blocks_too():
    config = read_model("qwen3-30b-a3b-fp8")
    with pytest.raises(InputError, match=r"layout TP1\+DP4 cuts the 768 .* what works: enable_expert_parallel$"):
        check_layout(config, ParallelLayout(data=4))


def test_dense_products_that_are_split_by_their_inputs_keep_whole_blocks():
    # 12,288 columns in 96 blocks; joined products (gate and up, queries with keys and values) may be cut anywhere.
    config = read_model("qwen3-8b", quantization="fp8_block")
    for size in (1, 2, 4, 8, 16, 32):
        check_layout(config, ParallelLayout(size))
    narrow = read_model("qwen2.5-0.5b", quantization="fp8_block")  # 14 heads of 64: 448 columns on each of two GPUs
    with pytest.raises(InputError, match=r"cuts the 896 columns of the attention output of .* to 448 per GPU"):
        check_layout(narrow, ParallelLayout(2))


def test_experts_must_divide_over_all_copies():
    sentence = r"data_parallel_size 5 splits the experts of qwen3-30b-a3b over 5 GPUs .* enable_expert_parallel$"
    with pytest.raises(InputError, match=sentence):
        check_layout(read_model("qwen3-30b-a3b"), ParallelLayout(data=5))
    check_layout(read_model("llama-3.1-8b"), ParallelLayout(data=5))
