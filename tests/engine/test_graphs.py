import pytest

from infercast.engine.graphs import Graphs, Launch, capture_sizes


def test_sizes_of_256_sequences():
    sizes = capture_sizes(256)
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-3:] == (480, 496, 512)
    assert len(sizes) == 3 + 31 + 17  # 1, 2, 4; 8 to 248 by 8; 256 to 512 by 16


def test_more_sequences_record_no_larger_graphs():
    assert capture_sizes(1024) == capture_sizes(256)


@pytest.mark.parametrize(("sequences", "sizes"), [(1, (1, 2)), (3, (1, 2, 4)), (4, (1, 2, 4, 8))])
def test_few_sequences_record_up_to_twice_their_number(sequences, sizes):
    assert capture_sizes(sequences) == sizes


@pytest.mark.parametrize(
    ("tokens", "padded"), [(1, 1), (3, 4), (5, 8), (33, 40), (248, 248), (249, 256), (257, 272), (512, 512), (513, 513)]
)
def test_batches_are_padded_to_the_next_size(tokens, padded):
    assert Graphs(capture_sizes(256), 256).padded(tokens) == padded


@pytest.mark.parametrize(
    ("tokens", "is_decode", "launch"),
    [
        (1, True, Launch.FULL_GRAPH),
        (256, True, Launch.FULL_GRAPH),
        (257, True, Launch.PIECEWISE_GRAPHS),  # more than can run has no full graph
        (100, False, Launch.PIECEWISE_GRAPHS),
        (512, False, Launch.PIECEWISE_GRAPHS),
        (513, False, Launch.EAGER),
        (600, True, Launch.EAGER),
    ],
)
def test_how_a_step_is_launched(tokens, is_decode, launch):
    assert Graphs(capture_sizes(256), 256).launch(tokens, is_decode) is launch


def test_without_graphs_everything_is_eager_and_unpadded():
    graphs = Graphs((), 256)
    assert graphs.launch(1, True) is Launch.EAGER
    assert graphs.padded(33) == 33
