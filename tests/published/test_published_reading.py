"""What is read from rows of published runs that say little, say it oddly, or say what cannot be."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.lower import token_calls
from published.compare import compare_published, compare_run, set_up, system_for
from published.run import PublishedRun, RowReader
from published.table import known_model, read_collected

ROW = {
    "source_repo": "someone/runs", "engine": "vllm", "version": "0.25.0", "gpu": "H100", "infercast_gpu": "h100-sxm",
    "model": "Qwen/Qwen3-8B", "precision": "bf16", "num_gpus": "1", "tp": "1", "load_kind": "closed loop",
    "concurrency_or_rate": "concurrency 4", "num_requests": "40", "mean_in": "600", "mean_out": "400", "quality": "A",
    "len_dist": "random fixed", "server_cmd": "vllm serve Qwen/Qwen3-8B", "ttft_p50": "30", "tpot_p50": "7",
    "output_tok_s": "550",
}  # fmt: skip
SCOREBOARD = Path(__file__).parents[2] / "benchmarks" / "scoreboard"
CAPPED = {"load_kind": "saturated, capped batch", "num_requests": ""}


def read(**changes: str) -> PublishedRun:
    return read_collected(RowReader(Path("runs.csv"), 2, {**ROW, **changes}))


def test_a_row_that_says_everything_needs_no_assumption() -> None:
    run = read()
    assert (run.problem, run.assumptions, run.load, run.grade) == ("", (), "closed loop", "A")


@pytest.mark.parametrize(
    ("change", "assumed"),
    [
        ({"server_cmd": ""}, "the server's command is not known: the engine's defaults"),
        ({"version": "", "date": "2025-12-03"}, "the release of vLLM is not stated: 0.12 by its date 2025-12"),
        ({"version": ""}, "the release of vLLM is not known: vllm@0.25"),
        ({"num_requests": ""}, "40 requests: their number is not stated"),
        ({"len_dist": ""}, "every prompt has 600 tokens and every answer 400, their means"),
        ({"len_dist": "sharegpt"}, "lengths are log-normal around their means"),
        ({"precision": "fp32"}, "precision 'fp32': weights as the checkpoint has them"),
        ({"tp": "", "num_gpus": "4"}, "the layout is not stated: tensor parallelism over 4 GPUs"),
        ({"tp": "1", "ep": "8", "num_gpus": "8"}, "experts over 8 GPUs: attention is split over as many"),
        ({"server_cmd": "vllm serve x --num-prompts 10"}, "the published command is the load generator's"),
        ({"model": "llama3_1-405b_pruned", "tp": "8"}, "llama3_1-405b_pruned has the shape of llama-3.1-405b"),
    ],
)
def test_what_is_not_stated_is_listed(change: dict[str, str], assumed: str) -> None:
    run = read(**change)
    assert run.problem == ""
    assert assumed in run.assumptions


def test_a_checkpoint_of_nvidia_s_is_quantised_in_parts() -> None:
    nvidia = {"model": "nvidia/GLM-4.7-NVFP4", "precision": "nvfp4", "infercast_gpu": "b200-sxm", "tp": "2"}
    _, deployment = set_up(read(**nvidia, engine="sglang", version="0.5.12", server_cmd="sglang serve --tp 2"))
    weights = deployment.model.weights
    assert (weights.attention, weights.experts, deployment.model.cache_dtype) == ("bf16", "nvfp4", "fp8")
    assert read(**nvidia).model == "glm-4.6"  # vLLM 0.12's rows have room for keys and values of 16 bits


def test_shared_experts_gain_nothing_from_a_stream_of_their_own_in_older_releases() -> None:
    row = {"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8 (native)", "infercast_gpu": "b200-sxm", "tp": "8"}
    for version, beside in (("0.5.6", False), ("0.5.12", True)):
        _, found = set_up(read(**row, engine="sglang", version=version, server_cmd="sglang serve --tp 8"))
        assert any(call.beside for call in token_calls(found.model, found.layout, 1)) is beside


def test_arguments_that_a_program_printed_are_flags() -> None:
    printed = read(server_cmd="{'host': '0.0.0.0', 'max_num_seqs': 64, 'enforce_eager': True, 'seed': None}")
    as_json = read(server_cmd='{"max_num_seqs": 32, "tensor_parallel_size": 2}')
    assert printed.reading is not None
    assert printed.reading.settings == {"max_num_seqs": 64, "enforce_eager": True}
    assert as_json.tensor == 2


def test_settings_may_stand_in_notes() -> None:
    run = read(server_cmd="", notes="max_num_seqs 128, max_num_batched_tokens 2048; kv blocks")
    assert run.settings == {"max_num_seqs": 128, "max_num_batched_tokens": 2048}


def test_servers_behind_a_proxy_are_no_data_parallelism() -> None:
    run = read(dp="4", notes="dp = separate vLLM instances behind nginx")
    assert (run.data, run.instances, run.layout) == (1, 4, "TP1+4 servers")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"len_dist": "hf", "bench_cmd": "--dataset-path lmarena-ai/VisionArena-Chat"}, "prompts are text"),
        ({"server_cmd": "{'lora_modules': [LoRAModulePath(name='a')]}"}, "LoRA adapters"),
        ({"notes": "8 replicas behind a proxy; multi-turn"}, "conversations"),
        ({"engine": "trt"}, "unknown engine"),
        ({"mean_in": ""}, "'mean_in'"),
        ({"server_cmd": "vllm serve x --no-such-flag 3"}, "vLLM 0.25 has no flag --no-such-flag; leave it out"),
    ],
)
def test_what_is_not_modelled_is_said(change: dict[str, str], reason: str) -> None:
    assert reason in read(**change).problem


def test_loads_of_all_kinds() -> None:
    burst = read(load_kind="poisson", concurrency_or_rate="rate inf")
    even = read(load_kind="constant", concurrency_or_rate="rate 2.0")
    capped = read(
        load_kind="saturated, capped batch", concurrency_or_rate="engine cap max_num_seqs 16", num_requests=""
    )
    assert (burst.load, burst.workload.requests[-1].arrival) == ("burst", 0.0)
    assert even.workload.requests[1].arrival - even.workload.requests[0].arrival == pytest.approx(0.5)
    assert (capped.load, capped.steady, capped.ttft) == ("capped batch", True, None)
    assert capped.settings["max_num_seqs"] == 16
    assert len(capped.workload.requests) >= 6 * 16


def test_prompts_of_a_small_dataset_come_round_in_a_new_order() -> None:
    run = read(prefix_note="aiperf synthetic; dataset shuffle may repeat prompts", num_requests="250")
    contents = [each.prefix[0].content for each in run.workload.requests]
    assert sorted(contents[:100]) == sorted(contents[100:200]) == list(range(100))
    assert contents[:100] != contents[100:200]
    assert all(each.prefix[0].num_tokens == each.num_input for each in run.workload.requests)
    assert not any(each.prefix for each in read().workload.requests)


def test_an_engine_that_was_asked_without_a_server() -> None:
    notes = "per-request rows in the file: queued_ts,first_token_ts; kv 2588 blocks"
    run, deployment = set_up(read(notes=notes, infercast_gpu="h100-sxm"), "roofline")
    assert not run.served
    assert not deployment.over_http
    assert run.cache_tokens == 2588 * 16


def test_answers_that_end_early() -> None:
    lengths = [
        each.num_output for each in read(len_dist="synthetic mean 600/500", num_requests="4000").workload.requests
    ]
    assert max(lengths) == 500
    assert sum(lengths) / len(lengths) == pytest.approx(400, rel=0.03)


def test_lengths_that_a_benchmark_drew_are_found_by_their_means() -> None:
    stated = "random in=None out=None (sglang bench: lengths uniform 1..L, range_ratio default 0)"
    run = read(len_dist=stated, mean_in="610.1", mean_out="422.0", num_requests="10")
    assert sum(each.num_input for each in run.workload.requests) == 6101
    assert sum(each.num_output for each in run.workload.requests) == 4220
    assert any(text.startswith("lengths are uniform up to 1,000 and 1,000") for text in run.assumptions)


def test_lengths_of_another_run_of_the_page_are_not_taken() -> None:
    run = read(len_dist="random in=4000 out=200", mean_in="217", mean_out="200", num_requests="500")
    assert any(text.startswith("lengths of chats") for text in run.assumptions)
    assert len({each.num_input for each in run.workload.requests}) > 50


def test_seconds_in_columns_of_milliseconds() -> None:
    # Four clients with 7 ms a token have 550 tokens a second; with 7 us they would have half a million.
    run = read(ttft_p50="0.03", tpot_p50="0.007")
    assert run.tpot == pytest.approx(0.007)
    assert run.ttft == pytest.approx(0.03)
    assert any("in seconds" in text for text in run.assumptions)


def test_tokens_that_come_in_lumps_have_no_times() -> None:
    run = read(itl_p50="0.0", itl_mean="3.1")
    assert (run.ttft, run.tpot, run.output_tokens_per_second) == (None, None, 550.0)


def test_the_time_between_tokens_stands_in_for_tpot() -> None:
    run = read(ttft_p50="", tpot_p50="", itl_p50="7.5")
    assert (run.gaps, run.tpot) == (True, 0.0075)


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("nvidia/Qwen3-8B-NVFP4", "qwen3-8b"),
        ("llama3_1-70b-fp8_dyn", "llama-3.1-70b"),
        ("RedHatAI/gemma-3-12b-it-quantized.w4a16", "gemma-3-12b"),
        ("nvidia/GLM-4.7-NVFP4", "glm-4.6"),
        ("zai-org/GLM-5V-FP8", None),
        ("", None),
    ],
)
def test_published_names(published: str, name: str | None) -> None:
    assert known_model(published) == name


def test_a_table_s_own_match_must_be_alike() -> None:
    assert read(model="zai-org/GLM-5V-FP8", infercast_model="glm-4.6").model == "zai-org/GLM-5V-FP8"


def test_a_layout_without_room_is_widened() -> None:
    run, deployment = set_up(read(model="meta-llama/Llama-3.1-70B", num_gpus="8"), "roofline")
    assert deployment.layout.tensor == 8
    assert any("no room for the weights" in text for text in run.assumptions)


def test_room_in_the_cache_is_what_the_source_says() -> None:
    run, deployment = set_up(read(notes="workload api; KV cache 51456 tokens; power"), "roofline")
    assert deployment.memory.num_blocks == 51456 // 16
    assert "room for 51,456 tokens in the KV cache, as the source has it" in run.assumptions


def test_open_loads_without_a_layout_have_as_many_servers_as_fit() -> None:
    run, _ = set_up(read(tp="", num_gpus="8", load_kind="poisson", concurrency_or_rate="poisson 20"), "roofline")
    assert (run.tensor, run.copies, len(run.workload.requests), run.layout) == (1, 8, 5, "TP1+8 servers")


def test_a_full_batch_is_summed_up_while_it_is_full() -> None:
    lengths = {"mean_in": "100", "mean_out": "50"}
    measured = {"ttft_p50": "", "tpot_p50": "", "itl_p50": "7"}
    capped = read(**CAPPED, **lengths, **measured, concurrency_or_rate="engine cap max_num_seqs 8")
    compared = compare_published([capped], predictor="roofline")[0]
    assert compared.ttft is None
    assert compared.tpot is not None
    assert compared.output_tokens_per_second is not None
    # Eight at a time, each with a token a step.
    steps = compared.output_tokens_per_second.predicted * compared.tpot.predicted
    assert steps == pytest.approx(8, rel=0.1)


@pytest.mark.skipif(not SCOREBOARD.is_dir(), reason="benchmarks are not part of a source distribution")
def test_long_closed_loops_are_shortened_and_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCOREBOARD))
    shorten = import_module("shorten")
    run, deployment = set_up(read(num_requests="160", concurrency_or_rate="concurrency 8"), "roofline")
    system = system_for(run, deployment)
    less = shorten.shortened(run, system)
    whole, part = compare_run(run, system), compare_run(less, system, shorten.weighed(less, run))
    assert len(less.workload.requests) == 64
    for name in ("ttft", "tpot", "output_tokens_per_second"):
        ends: list[Any] = [getattr(each, name).predicted for each in (whole, part)]
        assert ends[1] == pytest.approx(ends[0], rel=0.02)


@pytest.mark.parametrize(("version", "kernels"), [("0.5.7", "cdna3 older"), ("0.5.12", "cdna3"), ("", "cdna3")])
def test_older_releases_have_older_kernels_on_amd(version: str, kernels: str) -> None:
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
    run = read(engine="sglang", version=version, gpu="MI300X", infercast_gpu="mi300x", server_cmd=command)
    assert set_up(run)[1].gpu.kernels == kernels


@pytest.mark.parametrize(("version", "slower"), [("0.11.1", 1.48), ("0.17.0", 1.0)])
def test_experts_without_a_tuned_file_had_smaller_tiles(version: str, slower: float) -> None:
    command = "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --enable-expert-parallel"
    run = read(version=version, model="Qwen/Qwen3-30B-A3B", num_gpus="2", tp="2", server_cmd=command)
    deployment = set_up(run, "roofline")[1]
    model = deployment.model
    (experts,) = {stack.feed_forward for stack in model.stacks}
    assert isinstance(experts, ExpertFeedForward)
    factors = dict(experts.slower)
    assert (factors.get(64.0, 1.0), factors.get(128.0, 1.0)) == pytest.approx((1.0, slower), abs=0.02)
    # By all tokens of a step, not by those of the GPU with most of them.
    (call,) = (each for each in token_calls(model, deployment.layout, 64) if each.name == "experts")
    assert float(call.slower) == pytest.approx(1.0, abs=0.02)
