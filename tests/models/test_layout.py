import pytest

from infercast.errors import InputError
from infercast.models.layout import ParallelLayout, check_layout, divides
from infercast.models.read import read_model


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
