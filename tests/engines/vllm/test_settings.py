"""vLLM's defaults by GPU, and what it refuses."""

import pytest

import infercast as ic
from infercast.engines.base import engine_named
from infercast.engines.vllm.settings import EngineSettings, resolve
from infercast.errors import InputError
from infercast.forecast.kernels import decode_shape, prefill_shape
from infercast.hardware import load_gpu


def settle(gpu="h200-sxm", max_positions=131072, **options):
    return resolve(EngineSettings(**options), load_gpu(gpu), max_positions)


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [
        ("h200-sxm", 8192, 1024),
        ("h100-sxm", 8192, 1024),
        ("mi300x", 16384, 1024),
        ("a100-sxm", 2048, 256),  # 80 GB, but vLLM leaves the A100 out
        ("l4", 2048, 256),
        ("t4", 2048, 256),
    ],
)
def test_defaults_follow_the_gpu(gpu, tokens, sequences):
    settings = settle(gpu)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, sequences)


def test_the_longest_sequence_is_the_models():
    assert settle(max_positions=40960).max_model_len == 40960
    assert settle(max_positions=40960, max_model_len=1000).max_model_len == 1000


def test_what_is_given_is_kept():
    settings = settle(max_num_batched_tokens=4096, max_num_seqs=64, block_size=32, enforce_eager=True)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs, settings.block_size) == (4096, 64, 32)
    assert settings.enforce_eager


def test_a_small_budget_bounds_the_default_number_of_sequences():
    assert settle(max_num_batched_tokens=100).max_num_seqs == 100


def test_a_few_short_sequences_bound_the_default_budget():
    assert settle(max_num_seqs=2, max_model_len=512).max_num_batched_tokens == 1024


def test_no_graph_is_recorded_for_more_tokens_than_a_step_has():
    assert settle(max_num_batched_tokens=2048, max_cudagraph_capture_size=4096).capture_sizes[-1] == 2048


def test_without_chunks_a_step_holds_the_longest_prompt():
    assert settle("l4", enable_chunked_prefill=False, max_model_len=6000).max_num_batched_tokens == 6000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens must be at least 1, not -1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, not 0"),
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
        ({"max_cudagraph_capture_size": 10**7}, "max_cudagraph_capture_size must be at most 1,000,000, not 10,000,000"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override must be at least 1, not 0"),
        ({"gpu_memory_utilization": 0.0}, r"gpu_memory_utilization must lie in \(0, 1\], not 0.0"),
        ({"gpu_memory_utilization": 1.1}, r"gpu_memory_utilization must lie in \(0, 1\], not 1.1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"long_prefill_token_threshold": -5}, "long_prefill_token_threshold must be 0 or more, not -5"),
        ({"max_num_scheduled_tokens": 9000}, "max_num_scheduled_tokens 9000 is above the 8192"),
        ({"max_num_scheduled_tokens": 64, "enable_chunked_prefill": False}, "needs chunked prefill"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval must be at least 1, not 0"),
        ({"watermark": 1.0}, r"watermark must lie in \[0, 1\), not 1.0"),
        ({"watermark": -0.1}, r"watermark must lie in \[0, 1\), not -0.1"),
        ({"ubatch_size": 33}, "ubatch_size 33 must be 0 or more, and at most the 32 tokens"),
        ({"max_model_len": 131073}, "max_model_len 131073 is above the 131072 positions"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "256 is below max_num_seqs 512"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}, "needs chunked prefill; enable it"),
    ],
)
def test_refusals(options, sentence):
    with pytest.raises(InputError, match=sentence):
        settle(**options)


def test_some_models_have_larger_graphs():
    sizes = [
        resolve(EngineSettings(), load_gpu("h200-sxm"), 8192, name).capture_sizes[-1]
        for name in ("", "GptOssForCausalLM")
    ]
    assert sizes == [512, 1024]


def test_dual_batch_overlap_halves_steps_of_replicas_that_exchange_tokens():
    def seconds(tokens, backend, **settings):
        deployment = ic.deploy(
            "qwen3-30b-a3b", "h200-sxm", EngineSettings(max_num_batched_tokens=1024, max_num_seqs=256, **settings),
            data_parallel_size=8, enable_expert_parallel=True, all2all_backend=backend, predictor="roofline",
        )  # fmt: skip
        return deployment.timer()(prefill_shape(tokens)).gpu_seconds[0]

    deep, naive = "deepep_high_throughput", "allgather_reducescatter"
    assert seconds(1024, deep, enable_dbo=True) < seconds(1024, deep)
    assert seconds(1024, deep, enable_dbo=True, dbo_prefill_token_threshold=2048) == seconds(1024, deep)
    assert seconds(256, deep, enable_dbo=True) == seconds(256, deep)
    assert seconds(1024, naive, enable_dbo=True) == seconds(1024, naive)
    assert (
        seconds(1024, deep, ubatch_size=2) == seconds(1024, deep, enable_dbo=True) != seconds(1024, deep, ubatch_size=4)
    )


def test_two_batch_overlap_halves_the_steps_of_sglang():
    def seconds(shape, **settings):
        given = {"enable_dp_attention": True, "chunked_prefill_size": 65_536, **settings}
        deployment = ic.deploy(
            "qwen3-30b-a3b", "h200-sxm", engine_named("sglang").settings(given), tensor_parallel_size=8,
            data_parallel_size=8, all2all_backend="deepep", predictor="roofline",
        )  # fmt: skip
        return deployment.timer()(shape).gpu_seconds[0]

    prompts, decoding = prefill_shape(4096), decode_shape(8, 1024)
    assert seconds(prompts, enable_two_batch_overlap=True) < seconds(prompts)
    assert seconds(prompts, enable_two_batch_overlap=True, deepep_mode="low_latency") == seconds(prompts)
    # Few tokens gain nothing, and weights are read twice.
    assert seconds(decoding) < seconds(decoding, enable_two_batch_overlap=True) < 2 * seconds(decoding)
    with pytest.raises(InputError, match="modelled with moe_a2a_backend alone"):
        ic.deploy("qwen3-30b-a3b", "h200-sxm", engine_named("sglang").settings({"enable_two_batch_overlap": True}))


def test_a_generation_config_ends_answers():
    ended = EngineSettings(override_generation_config='{"max_new_tokens": 100, "top_p": 0.9}')
    draws = [
        {"output_len": lengths, "rate": 4, "num_requests": 40, "input_len": 300, "seed": 3}
        for lengths in ("lognormal:180:0.8:4:1000", "lognormal:180:0.8:4:100")
    ]
    found, alike = (
        ic.simulate("llama-3.1-8b", gpu="h200-sxm", settings=settings, predictor="roofline", **draw)
        for settings, draw in zip((ended, None), draws, strict=True)
    )
    assert (found.clients.end_to_end == alike.clients.end_to_end).all()
    assert "100 tokens at most" in found.workload.description
    with pytest.raises(InputError, match="cut to 100 are not uniform; give lengths up to 100"):
        ic.simulate("llama-3.1-8b", gpu="h200-sxm", settings=ended, **{**draws[0], "output_len": "uniform:50:150"})
    with pytest.raises(InputError, match="max_new_tokens must be 1 or more, not 0"):
        settle(override_generation_config='{"max_new_tokens": 0}').max_output  # noqa: B018 - it refuses


def test_layers_without_a_quantised_cache():
    """As vLLM groups and aligns them (platforms/interface.py); 0.25's own kv_cache_utils.py gave these numbers."""

    def of(model, *layers):
        settings = EngineSettings(kv_cache_dtype_skip_layers=layers)
        return ic.deploy(model, "h200-sxm", settings, kv_cache_dtype="fp8", predictor="roofline")

    def decoding(deployment):
        return deployment.timer()(decode_shape(64, 8192)).gpu_seconds[0]

    plain, some, every = of("llama-3.1-8b"), of("llama-3.1-8b", "0", "31"), of("llama-3.1-8b", *map(str, range(32)))
    # Two of 32 layers have twice the bytes; blocks have 32 tokens, so that a quantised one covers 16 of bf16.
    assert [each.memory.kv.shape.block_size for each in (plain, some)] == [16, 32]
    assert some.memory.kv.block_bytes * 32 == plain.memory.kv.block_bytes * 2 * 34
    assert every.memory.kv.block_bytes == plain.memory.kv.block_bytes * 4
    assert decoding(plain) < decoding(some) < decoding(every)
    windows = of("gpt-oss-20b", "sliding_window").memory.kv
    assert (windows.shape.windows, windows.shape.sizes) == ((128, 0), (16, 32))
    assert windows.block_bytes == 12 * 32 * 2 * 8 * 64
    assert of("gpt-oss-20b").memory.num_tokens > ic.deploy("gpt-oss-20b", "h200-sxm").memory.num_tokens
    with pytest.raises(InputError, match=r"'32' names no layer of llama-3.1-8b; say sliding_window, or numbers"):
        of("llama-3.1-8b", "32")
    with pytest.raises(InputError, match="vLLM does not start if kv_cache_dtype_skip_layers names layer 1 of gpt-oss"):
        of("gpt-oss-20b", "1")
    with pytest.raises(InputError, match="modelled for grouped attention, not for layer 3 of deepseek-v2-lite"):
        of("deepseek-v2-lite", "3")
