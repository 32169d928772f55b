import pytest

from infercast.errors import UnknownNameError
from infercast.ops.op import bytes_of, tensor_rate_of


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("fp32", 4),
        ("bf16", 2),
        ("fp8", 1),
        ("fp8_block", 1 + 4 / 16384),  # one fp32 scale for 128 x 128 values
        ("int4", 0.5 + 2 / 128),  # one bf16 scale for 128 values
        ("mxfp4", 0.5 + 1 / 32),
        ("nvfp4", 0.5 + 1 / 16),
    ],
)
def test_bytes_with_scales(dtype, size):
    assert bytes_of(dtype) == size


def test_an_unknown_format_is_named_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'fp9'.*bf16"):
        bytes_of("fp9")


def test_block_formats_multiply_at_the_rate_of_their_values():
    assert [tensor_rate_of(name) for name in ("bf16", "fp8_block", "nvfp4")] == ["bf16", "fp8", "fp4"]
