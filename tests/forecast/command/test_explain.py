"""A command explained: meanings, forecast and advice that is more than chance."""

from math import exp

import pytest

from infercast.errors import InputError, UnknownNameError
from infercast.forecast.command.explain import Explained, explain_command, light_and_heavy
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests

TEXT = (
    "VLLM_X=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve qwen3-0.6b --max-num-seqs 8 --enforce-eager --max-model-len 4k "
    "--port 1"
)
SHORT = synthetic_workload(rate=10, count=8, input_lengths=64, output_lengths=8)


@pytest.fixture(scope="module")
def explained() -> Explained:
    workload = synthetic_workload(rate=10, count=120, input_lengths=300, output_lengths="uniform:20:60")
    return explain_command(TEXT, "h200-sxm", workload)


def test_flags_say_what_they_mean(explained: Explained) -> None:
    said = {each.flag.name: (each.default, each.text) for each in explained.meanings}
    assert said["max-num-seqs"][0] == "1,024"
    assert "this flag decides how many run" in said["max-num-seqs"][1]
    assert said["enforce-eager"][0] == "off"
    assert said["enforce-eager"][1].startswith("no CUDA graphs: a token of one sequence takes ")
    assert "of the KV cache" in said["max-model-len"][1]
    assert "port" not in said


def test_what_stands_beside_the_flags_is_noted(explained: Explained) -> None:
    assert "environment variables are not modelled: VLLM_X" in explained.notes
    assert "the flags use 1 GPUs, fewer than the 2 that the command is given" in explained.notes


def test_the_best_advice_is_the_one_that_simulations_bear_out(explained: Explained) -> None:
    assert explained.advised is not None
    best = explained.advised.ranked[0]
    assert best.label == "enforce_eager off"
    assert exp(best.gain) > 1.5
    assert all(abs(each.of.gain) > each.of.error for each in best.real)
    # A cache that nothing fills is no better for being larger.
    assert "gpu_memory_utilization 0.95" in explained.advised.without_effect


def test_the_recommended_command_has_the_advice_and_keeps_the_rest(explained: Explained) -> None:
    assert explained.recommended is not None
    assert explained.recommended.startswith("vllm serve qwen3-0.6b ")
    assert "--no-enforce-eager" in explained.recommended
    assert "--max-model-len 4k --port 1" in explained.recommended
    assert "quantization" not in explained.recommended  # it would change answers
    assert "parallel" not in explained.recommended  # and this the number of GPUs
    again = explain_command(explained.recommended, "h200-sxm", explained.served[0].forecast.workload, advice=False)
    before, after = explained.served[0].forecast, again.served[0].forecast
    assert before.tpot is not None
    assert after.tpot is not None
    assert after.tpot.p50 < 0.6 * before.tpot.p50


def test_the_same_twice(explained: Explained) -> None:
    other = explain_command(TEXT, "h200-sxm", explained.served[0].forecast.workload)
    assert other.advised == explained.advised
    assert other.recommended == explained.recommended


def test_a_command_that_does_not_fit_says_what_would() -> None:
    found = explain_command("vllm serve llama-3.3-70b --max-num-seqs 16", "h100-sxm")
    assert "does not fit" in found.problem
    assert found.served == ()
    labels = [each.label for each in found.would_fit]
    assert "tensor_parallel_size 4" in labels
    assert "quantization fp8, tensor_parallel_size 2" in labels
    assert any(label.startswith("quantization int4, max_model_len ") for label in labels)
    assert found.recommended is None


def test_a_light_and_a_heavy_load() -> None:
    found = explain_command("vllm serve qwen3-0.6b --max-num-seqs 32 --max-model-len 16384", "l4", advice=False)
    assert [each.name for each in found.served] == ["light", "heavy"]
    light, heavy = (each.forecast for each in found.served)
    assert found.capacity is not None
    assert light.workload.rate == pytest.approx(0.2 * found.capacity, rel=0.1)
    assert heavy.ttft.p99 > light.ttft.p99
    assert heavy.saturation is None


def test_given_requests_have_no_other_rates() -> None:
    given = workload_from_requests(synthetic_workload(rate=1, count=3, input_lengths=9, output_lengths=9).requests)
    with pytest.raises(InputError, match="must be drawn"):
        light_and_heavy(given, 1.0)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownNameError):
        explain_command("vllm serve qwen3-0.6b", "h2000")
    with pytest.raises(InputError):
        explain_command("vllm serve no-such-model", "h200-sxm")


def test_with_a_promise_its_headroom_counts() -> None:
    workload = synthetic_workload(rate=30, count=150, input_lengths=300, output_lengths="uniform:20:60")
    text = "vllm serve qwen3-0.6b --max-num-seqs 8 --max-model-len 4k"
    found = explain_command(text, "h200-sxm", workload, slo=parse_slo("ttft_p99<100ms,tpot_p95<5ms"))
    assert found.served[0].forecast.verdict is not None
    assert found.advised is not None
    best = found.advised.ranked[0]
    assert [each.name for each in best.effects] == ["TTFT p99", "TPOT p95"]
    assert best.effects[0].is_aim
    assert best.effects[0].gain > 0
    assert "max_num_seqs" in best.change.values


def test_requests_that_are_given_are_served_as_they_are() -> None:
    """They have no other draws: what the luck of ranks leaves open is the noise."""
    drawn = synthetic_workload(rate=30, count=200, input_lengths="uniform:50:900", output_lengths="uniform:20:60")
    found = explain_command(
        "vllm serve qwen3-0.6b --max-num-seqs 4 --max-model-len 4k", "h200-sxm", workload_from_requests(drawn.requests)
    )
    assert found.advised is not None
    assert "max_num_seqs" in found.advised.ranked[0].change.values
    assert found.recommended is not None
    assert all(each.noise > 0 for each in found.advised.ranked[0].effects)


def flags_of(text: str, gpu: str = "h100-sxm") -> Explained:
    workload = synthetic_workload(rate=1.0, count=4, input_lengths=100, output_lengths=4)
    return explain_command(text, gpu, workload, advice=False, predictor="roofline")


def test_a_value_that_is_not_modelled_is_left_out_with_a_word() -> None:
    connector = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    found = flags_of(f"vllm serve qwen3-0.6b --kv-transfer-config '{connector}' --kv-cache-dtype nvfp4 --swap-space 4")
    assert [(flag.name, flag.status) for flag in found.reading.flags] == [
        ("kv-transfer-config", "not modelled"), ("kv-cache-dtype", "not modelled"), ("swap-space", "refused"),
    ]  # fmt: skip
    assert all("forecast without it" in flag.note for flag in found.reading.flags[:2])
    assert "swap-space" not in found.command
    with pytest.raises(InputError, match="unknown kv_cache_dtype 'fp9'"):  # which vLLM refuses, too ...
        flags_of("docker run vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-0.6B --kv-cache-dtype fp9")
    (flag,) = flags_of("vllm serve qwen3-0.6b --kv-cache-dtype fp9").reading.flags  # ... up to 0.33, which has no list
    assert (flag.status, "unknown kv_cache_dtype 'fp9'" in flag.note) == ("not modelled", True)


def test_as_long_as_the_cache_holds() -> None:
    assert flags_of("vllm serve llama-3.1-8b --max-model-len auto", "l4").fit.settings.max_model_len == 31_488
    assert flags_of("vllm serve llama-3.1-8b --max-model-len -1").fit.settings.max_model_len == 131_072


def test_nodes_are_joined_by_a_usual_network() -> None:
    found = flags_of("VLLM_PORT=1 vllm serve llama-3.1-8b -tp 8 -pp 2 --nnodes 2 --distributed-executor-backend ray")
    assert found.notes == ("no network joins the nodes: infiniband-ndr is assumed; --network says which it is",)
    assert found.fit.layout.gpus == 16


def test_the_release_of_an_image_is_certain() -> None:
    text = "docker run vllm/vllm-openai:{} --model qwen3-0.6b --enable-reasoning"
    assert flags_of(text.format("v0.9.2")).engine.name == "vllm@0.9.2"
    with pytest.raises(InputError, match=r"vLLM 0\.25\.0 has no --enable-reasoning; 0\.9\.2 was the last"):
        flags_of(text.format("v0.25.0"))


@pytest.mark.parametrize("variable", ["", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 "])
def test_contexts_beyond_the_models_positions_are_forecast_and_noted_unless_allowed(variable: str) -> None:
    explained = explain_command(
        f"{variable}vllm serve Qwen/Qwen3-4B --max-model-len 60000", "h200-sxm", SHORT, advice=False
    )
    noted = [note for note in explained.notes if "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in note]
    assert explained.fit.settings.max_model_len == 60000
    assert len(noted) == (0 if variable else 1)


@pytest.mark.parametrize(("variable", "words"), [("VLLM", "vllm serve"), ("SGLANG", "sglang serve --model-path")])
def test_the_cut_of_a_pipeline_is_read_from_the_environment(variable: str, words: str) -> None:
    flag = "--pipeline-parallel-size 2 --max-num-seqs 8" if variable == "VLLM" else "--pp-size 2"
    text = f"{variable}_PP_LAYER_PARTITION=10,18 {words} qwen3-0.6b {flag}"
    found = explain_command(text, "h100-sxm", synthetic_workload(concurrency=1, count=2), advice=False)
    assert found.fit.layout.cut == (10, 18)
    assert found.served[0].forecast.deployment.layout.cut == (10, 18)
    assert f"{variable}_PP_LAYER_PARTITION cuts the layers into stages of 10,18" in found.notes
    assert not any("not modelled" in note for note in found.notes)
    with pytest.raises(InputError, match="28 in all, such as 14,14"):
        explain_command(text.replace("10,18", "10,19"), "h100-sxm", advice=False)


def test_the_load_of_a_benchmark_and_encoders_that_are_left_out_are_noted() -> None:
    text = "vllm serve OpenGVLab/InternVL3-1B --max-model-len 4k\nvllm bench serve --model x --max-concurrency 4"
    notes = explain_command(text, "h200-sxm", SHORT, advice=False).notes
    assert [note.partition(":")[0] for note in notes] == [
        "the load of the benchmark is not read",
        "vision part left out",
    ]


def test_an_unmodelled_number_is_left_out_with_a_word() -> None:
    found = explain_command("vllm serve qwen3-0.6b -dcp 2 -tp 2", "h200-sxm", SHORT, advice=False)
    assert {flag.name: flag.status for flag in found.reading.flags} == {
        "decode-context-parallel-size": "not modelled",
        "tensor-parallel-size": "read",
    }


def test_of_two_flags_that_exclude_each_other_the_later_is_left_out() -> None:
    text = (
        "sglang serve --model-path Qwen/Qwen3-8B --speculative-algorithm EAGLE3 --speculative-draft-model-path a/b "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
        "--enable-hierarchical-cache"
    )
    found = explain_command(text, "h200-sxm", SHORT, advice=False)
    assert [flag.name for flag in found.reading.flags if flag.status != "read"] == ["enable-hierarchical-cache"]


def test_memory_counts_experts_on_all_gpus_with_deepep() -> None:
    text = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 --enable-dp-attention"
    shared = explain_command(
        f"{text} --moe-a2a-backend deepep --ep-num-redundant-experts 32 --max-running-requests 64",
        "h200-sxm",
        SHORT,
        advice=False,
    )
    assert shared.fit.layout.expert_gpus == 16
    assert shared.fit.memory.weights == shared.served[0].forecast.deployment.memory.weights


def test_weights_of_int4_with_inputs_of_fp8() -> None:
    for text in ("vllm serve x/Llama-3.1-8B-Instruct-W4A8", "sglang serve --model x/Llama-3.1-8B-Instruct-W4A8"):
        found = explain_command(text, "h200-sxm", SHORT, advice=False)
        assert found.fit.model.weights.name == "int4"
        assert found.served
