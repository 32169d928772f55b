"""Joules of runs: parts that add up, more of them for more work, and limits that hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infercast import deploy, simulate
from infercast.engines.timer import Corrections, Factor
from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.energy import IDLE, STATIC
from infercast.predict.estimate import SOURCES
from infercast.serve.workload.synthetic import synthetic_workload


def run(model="qwen3-0.6b", gpu="h200-sxm", *, deployment=None, **workload):
    asked = {"count": 24, "input_lengths": 256, "output_lengths": 32, **workload}
    if "rate" not in asked:
        asked.setdefault("concurrency", 8)
    return simulate(deploy(model, gpu, **deployment or {}), synthetic_workload(**asked))


@pytest.fixture(scope="module")
def forecast():
    return run()


def test_parts_add_up_to_the_joules(forecast):
    energy = forecast.energy
    assert sum(energy.by_part.values()) == pytest.approx(energy.joules)
    assert all(value >= 0 for value in energy.by_part.values())
    assert energy.joules == pytest.approx(energy.mean_watts * forecast.duration)
    phases = sum(phase.joules for phase in energy.phases)
    assert phases == pytest.approx(energy.joules - energy.by_part[IDLE])
    assert energy.by_part[STATIC] > 0


def test_joules_by_token_and_request_follow(forecast):
    energy, tokens = forecast.energy, 24 * 32
    assert energy.joules_per_output_token == pytest.approx(energy.joules / tokens)
    assert energy.joules_per_token == pytest.approx(energy.joules / (tokens + 24 * 256))
    assert energy.joules_per_request == pytest.approx(energy.joules / 24)
    assert energy.watt_hours_per_million_output_tokens == pytest.approx(energy.joules_per_output_token * 1e6 / 3600)


def test_power_lies_between_idle_and_the_limit(forecast):
    energy = forecast.energy
    assert energy.idle_watts <= energy.mean_watts <= energy.peak_watts <= energy.limit_watts == 700
    assert energy.low < energy.joules < energy.high
    assert energy.source in SOURCES
    assert forecast.energy is energy


def test_a_run_that_waits_for_requests_draws_idle_power():
    energy = run(rate=0.5, arrival="constant", count=4).energy
    assert energy.by_part[IDLE] > 0.8 * energy.joules
    assert energy.mean_watts == pytest.approx(energy.idle_watts, rel=0.1)


def test_two_replicas_draw_about_twice_the_watts():
    one = run(rate=20, deployment={"data_parallel_size": 1}).energy
    two = run(rate=20, deployment={"data_parallel_size": 2}).energy
    assert two.gpus == 2
    assert one.joules < two.joules < 2.2 * one.joules


@pytest.mark.parametrize("layout", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_gpus_that_share_a_model_all_draw(layout):
    energy = run("llama-3.1-8b", deployment=layout).energy
    assert energy.gpus == 2
    assert energy.idle_watts < energy.mean_watts < 700
    assert sum(energy.by_part.values()) == pytest.approx(
        2 * energy.mean_watts * energy.joules / (energy.gpus * energy.mean_watts)
    )


def test_stages_under_load_draw_as_much_as_tensors():
    """Each stage has a board of its own, with a power limit of its own."""
    layouts = ({"tensor_parallel_size": 4}, {"pipeline_parallel_size": 4})
    tensors, stages = (run("llama-3.1-8b", rate=60, input_lengths=2048, deployment=each).energy for each in layouts)
    assert stages.by_part["gemm"] == pytest.approx(tensors.by_part["gemm"], rel=0.25)


def test_prompts_draw_more_than_decoding(forecast):
    energy = run("llama-3.1-8b", input_lengths=2048).energy
    prefill, decode = energy.phases
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert decode.watts < prefill.watts <= energy.peak_watts <= energy.limit_watts
    assert prefill.burst_watts >= prefill.watts
    assert prefill.joules_per_token < decode.joules_per_token


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b", "nemotron-nano-9b-v2"])
def test_kinds_of_layers_have_their_joules(model):
    energy = run(model, count=8).energy
    assert energy.idle_watts < energy.mean_watts <= 700


def test_a_lower_power_limit_is_held_and_slows_down():
    whole = run("llama-3.1-8b", input_lengths=4096, output_lengths=4)
    limited = run("llama-3.1-8b", input_lengths=4096, output_lengths=4, deployment={"power_limit_w": 450})
    assert limited.energy.peak_watts <= 450
    assert limited.energy.limit_watts == 450
    assert limited.duration > 1.05 * whole.duration
    assert limited.energy.joules < whole.energy.joules


def test_a_lower_clock_draws_less_and_decodes_nearly_as_fast():
    whole = run("llama-3.1-8b", output_lengths=128)
    locked = run("llama-3.1-8b", output_lengths=128, deployment={"gpu_clock_mhz": 1300})
    assert whole.duration < locked.duration < 1.25 * whole.duration
    assert locked.energy.mean_watts < 0.97 * whole.energy.mean_watts


@pytest.mark.parametrize("same", [{"power_limit_w": 700}, {"gpu_clock_mhz": 1980}])
def test_the_boards_own_limits_move_nothing(same, forecast):
    again = run(deployment=same)
    assert again.ttft == forecast.ttft
    assert again.tpot == forecast.tpot
    assert again.energy == forecast.energy


def test_two_pools_draw_together():
    deployment = deploy("qwen3-0.6b", "h200-sxm")
    workload = synthetic_workload(count=12, rate=10, input_lengths=512, output_lengths=32)
    energy = simulate(deployment, workload, prefill=deployment).energy
    assert energy.gpus == 2
    assert [phase.name for phase in energy.phases] == ["prefill", "decode"]
    assert energy.idle_watts < energy.mean_watts < 700


def test_drafts_have_their_joules():
    drafting = '{"method": "ngram", "num_speculative_tokens": 3}'
    settings = EngineSettings(speculative_config=drafting, max_model_len=4096)
    workload = synthetic_workload(count=8, concurrency=4, input_lengths=256, output_lengths=32)
    energy = simulate(deploy("qwen3-0.6b", "h200-sxm", settings), workload).energy
    assert energy.idle_watts < energy.mean_watts < 700


def test_corrected_times_keep_the_work_and_change_what_time_costs():
    plain = deploy("llama-3.1-8b", "h200-sxm")
    slower = replace(plain, corrections=Corrections(prompts=Factor(1.5, 0.05), decodes=Factor(1.5, 0.05)))
    workload = synthetic_workload(count=8, concurrency=4, input_lengths=256, output_lengths=64)
    first, second = (simulate(each, workload).energy for each in (plain, slower))
    assert first.joules < second.joules < 1.5 * first.joules
    assert second.mean_watts < first.mean_watts


def test_an_unknown_board_has_a_wider_interval():
    known, other = run().energy, run(gpu="rtx-4090").energy
    assert other.source == "unseen"
    assert other.high / other.low > known.high / known.low
