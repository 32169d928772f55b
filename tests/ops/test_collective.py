import numpy as np
import pytest

from infercast.ops import Collective


@pytest.mark.parametrize(
    ("kind", "gpus", "link_bytes"),
    [
        ("all_reduce", 2, 1000),  # 2 (n - 1) / n
        ("all_reduce", 8, 1750),
        ("all_gather", 8, 875),  # (n - 1) / n
        ("reduce_scatter", 4, 750),
        ("all_to_all", 2, 500),
        ("send_recv", 2, 1000),
    ],
)
def test_volumes_of_a_message_of_1000_bytes(kind, gpus, link_bytes):
    op = Collective(kind, 1000, gpus)
    assert op.link_bytes == link_bytes
    assert (op.flops, op.bytes_read, op.bytes_written) == (0, 1000, 1000)


@pytest.mark.parametrize("quantity", ["flops", "link_bytes", "bytes_read", "bytes_written"])
def test_arrays_of_messages_equal_them_one_by_one(quantity):
    messages = np.array([8, 4096, 10**9])
    apart = [getattr(Collective("all_reduce", message, 4), quantity) for message in messages.tolist()]
    assert getattr(Collective("all_reduce", messages, 4), quantity).tolist() == apart
