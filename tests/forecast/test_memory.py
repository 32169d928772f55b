import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.forecast.memory import fit_memory


def test_a_model_that_fits():
    fit = fit_memory("llama-3.1-8b", "h200-sxm", context=2048)
    assert fit.problem == ""
    assert fit.longest_sequence == 131072  # its positions, though the cache would hold more
    # A sequence of 2,048 tokens takes 128 blocks; the engine sets one block aside.
    assert fit.most_sequences == (fit.memory.num_blocks - 1) // 128


def test_a_model_whose_weights_do_not_fit_is_an_answer():
    fit = fit_memory("llama-3.1-70b", "h100-sxm")
    assert (fit.memory.num_blocks, fit.longest_sequence, fit.most_sequences) == (0, 0, 0)
    assert fit.memory.needed > fit.memory.usable
    assert fit.problem.endswith("tensor_parallel_size=4 fits")
    assert fit_memory("llama-3.1-70b", "h100-sxm", tensor_parallel_size=4).problem == ""


def test_a_context_that_does_not_fit_is_an_answer():
    fit = fit_memory("llama-3.1-8b", "l4")
    assert "one sequence of max_model_len 131072 does not fit" in fit.problem
    shorter = EngineSettings(max_model_len=fit.longest_sequence)
    assert fit_memory("llama-3.1-8b", "l4", shorter).problem == ""


def test_windowed_layers_leave_room_for_more_sequences():
    fit = fit_memory("gpt-oss-20b", "h200-sxm", context=16_000)
    # 1,000 blocks of the full group; 9 of the window of 128, which may begin inside a block.
    assert fit.most_sequences == (fit.memory.num_blocks - 1) // 1009


@pytest.mark.parametrize("context", [0, -1])
def test_an_empty_context_is_refused(context):
    with pytest.raises(InputError, match=f"context must be at least 1 token, not {context}"):
        fit_memory("llama-3.1-8b", "h200-sxm", context=context)


def test_a_split_that_does_not_divide_is_wrong_input_not_an_answer():
    with pytest.raises(InputError, match="valid: 1, 2, 4"):
        fit_memory("llama-3.1-8b", "h200-sxm", tensor_parallel_size=3)


def test_the_stage_with_least_room_is_not_always_the_one_with_most_weights():
    fit = fit_memory("gemma-2-2b", "h200-sxm", pipeline_parallel_size=4)
    # Stages of 6, 7, 7 and 6 layers; the outer ones hold the table of 256,000 rows, the inner ones more layers.
    assert fit.memory.kv.block_bytes == 4 * 2 * 4 * 256 * 2 * 16
    assert fit.most_weights > fit.memory.weights + 1e9


def test_weights_load_at_the_rate_of_each_gpus_link_to_its_host() -> None:
    one, four, eight = (
        fit_memory("llama-3.1-70b", "h100-sxm", tensor_parallel_size=size).load_seconds for size in (2, 4, 8)
    )
    assert one == pytest.approx(2 * four, rel=0.02)
    assert four == pytest.approx(eight, rel=0.02), "eight GPUs share what four can take"
    assert 0.3 < four < 3
