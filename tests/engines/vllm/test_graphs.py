import pytest

from infercast.engines.host import Launch
from infercast.engines.vllm.settings import CapturedGraphs, EngineSettings, resolve
from infercast.engines.vllm.settings import capture_sizes as sizes_up_to
from infercast.hardware import load_gpu


def capture_sizes(max_num_seqs):
    return sizes_up_to(min(2 * max_num_seqs, 512), 8192)


def graphs_of(max_num_seqs, engine="vllm@0.25", gpu="h200-sxm", **settings):
    asked = EngineSettings(max_num_seqs=max_num_seqs, engine=engine, **settings)
    resolved = resolve(asked, load_gpu(gpu), 16_384)
    return CapturedGraphs(resolved.capture_sizes, resolved.max_num_seqs, resolved.cudagraph_mode)


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
    assert CapturedGraphs(capture_sizes(256), 256).launch(tokens, is_decode=False)[1] == padded


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
    assert CapturedGraphs(capture_sizes(256), 256).launch(tokens, is_decode)[0] is launch


def test_without_graphs_everything_is_eager_and_unpadded():
    graphs = CapturedGraphs((), 256)
    assert graphs.launch(33, True) == (Launch.EAGER, 33)


@pytest.mark.parametrize(("sequences", "last_full"), [(10, 8), (20, 16), (50, 48), (64, 64), (100, 96), (300, 288)])
def test_a_batch_that_is_padded_beyond_max_num_seqs_has_no_full_graph(sequences, last_full):
    graphs = graphs_of(sequences)
    assert graphs.launch(last_full, True)[0] is Launch.FULL_GRAPH
    for tokens in range(last_full + 1, sequences + 1):
        assert graphs.launch(tokens, True)[0] is Launch.PIECEWISE_GRAPHS


@pytest.mark.parametrize("sequences", [10, 20, 50, 64, 100, 300])
def test_newer_versions_record_a_graph_of_max_num_seqs(sequences):
    graphs = graphs_of(sequences, "vllm@0.32")
    assert graphs.launch(sequences, True) == (Launch.FULL_GRAPH, sequences)


def test_a_padded_batch_is_eager_where_only_decoding_has_graphs():
    graphs = graphs_of(100, cudagraph_mode="full_decode_only")
    assert [graphs.launch(tokens, True) for tokens in (96, 97)] == [(Launch.FULL_GRAPH, 96), (Launch.EAGER, 97)]


@pytest.mark.parametrize(
    ("engine", "gpu", "largest"),
    [("vllm@0.25", "b200-sxm", 512), ("vllm@0.32", "b200-sxm", 1024), ("vllm@0.32", "h200-sxm", 512)],
)
def test_newer_versions_record_larger_graphs_on_blackwell(engine, gpu, largest):
    assert graphs_of(1024, engine, gpu).sizes[-1] == largest


def test_no_graph_is_larger_than_a_step():
    assert graphs_of(64, max_num_batched_tokens=100).sizes[-2:] == (96, 100)
    assert graphs_of(64, max_num_batched_tokens=200).sizes[-1] == 128
