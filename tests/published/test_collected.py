"""Tables of published runs with the server's command."""

import csv
from pathlib import Path
from typing import Any

import pytest

from published.compare import compare_published, set_up
from published.table import read_published

ROW = {
    "source_repo": "someone/runs", "engine": "sglang", "version": "0.5.16", "gpu": "H100", "infercast_gpu": "h100-sxm",
    "model": "Qwen/Qwen3-8B", "infercast_model": "qwen3-8b", "precision": "bf16", "tp": "1", "dp": "1", "ep": "",
    "load_kind": "closed loop", "concurrency_or_rate": "concurrency 4", "num_requests": "10", "mean_in": "610.1",
    "mean_out": "422.0", "prefix_note": "", "quality": "A", "output_tok_s": "500", "ttft_p50": "30", "tpot_p50": "7",
    "len_dist": "random in=1000 out=1000 (sglang bench: lengths uniform 1..L, range_ratio default 0)",
    "server_cmd": "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.7 --tp 2",
    "ttft_mean_ms": "31", "tpot_mean_ms": "7.1", "itl_mean": "", "itl_p50": "",
    "notes": "", "date": "", "num_gpus": "2", "bench_cmd": "",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Write rows like the one above, with some fields changed."""

    def write(*changes: dict[str, str]) -> Path:
        path = tmp_path / "runs.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=[*ROW])
            writer.writeheader()
            writer.writerows({**ROW, **change} for change in changes)
        return path

    return write


def test_lengths_are_those_that_the_benchmark_draws(table: Any) -> None:
    (run,) = read_published(table({}))
    requests = run.workload.requests
    assert sum(each.num_input for each in requests) == 6101
    assert sum(each.num_output for each in requests) == 4220
    assert run.workload.concurrency == 4


def test_flags_of_the_command_are_the_engine_s_settings(table: Any) -> None:
    (run,) = read_published(table({}))
    deployment = set_up(run, "roofline")[1]
    settings: Any = deployment.settings
    assert (deployment.engine.name, deployment.layout.tensor) == ("sglang@0.5.16", 2)
    assert settings.mem_fraction_static == 0.7
    assert settings.prefill_sizes


def test_older_releases_had_no_graphs_of_prompts(table: Any) -> None:
    (run,) = read_published(table({"version": "v0.5.5.post1"}))
    settings: Any = set_up(run, "roofline")[1].settings
    assert run.version == (0, 5, 5)
    assert settings.prefill_sizes == ()


def test_medians_are_compared_where_they_are_published(table: Any) -> None:
    medians, means = read_published(table({}, {"ttft_p50": ""}))
    assert (medians.median, medians.ttft, medians.tpot) == (True, 0.03, 0.007)
    assert (means.median, means.ttft) == (False, 0.031)
    assert means.tpot == pytest.approx(0.0071)
    compared = compare_published([medians], predictor="roofline")[0]
    assert compared.problem == ""
    assert compared.tpot is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"len_dist": "image"}, "prompts are text"),
        ({"quality": "As"}, "speculative"),
        ({"load_kind": "trace"}, "closed loop, poisson"),
        ({"engine": "sglong"}, "sglang"),
        ({"num_requests": "", "load_kind": "burst"}, "num_requests"),
        ({"notes": "DISAGG prefill 2x tp8"}, "prefill pool"),
    ],
)
def test_what_cannot_be_simulated_is_kept_with_the_reason(table: Any, change: dict[str, str], reason: str) -> None:
    compared = compare_published(read_published(table(change)))[0]
    assert reason in compared.problem
    assert compared.ttft is None


def test_bursts_and_chats(table: Any) -> None:
    changes = {"load_kind": "burst", "len_dist": "sharegpt", "mean_in": "217", "mean_out": "201", "num_requests": "500"}
    chats, spread = read_published(
        table(changes, {"len_dist": "uniform[0.8L,L] 1024/512", "num_requests": "40", "precision": "fp8"})
    )
    assert chats.workload.concurrency is None
    assert sum(each.num_input for each in chats.workload.requests) / 500 == pytest.approx(217, rel=0.02)
    assert (spread.model, spread.dtype) == ("qwen3-8b-fp8", "")
    assert all(819 <= each.num_input <= 1024 and 409 <= each.num_output <= 512 for each in spread.workload.requests)


def test_time_per_token_that_counts_the_first_one_is_left_for_the_time_between_tokens(table: Any) -> None:
    # 100 tokens: the first after 2 s, the others 40 ms apart.
    stated = {"mean_out": "100", "ttft_mean_ms": "2000", "itl_mean": "40", "itl_p50": "39", "tpot_p50": "61"}
    whole, after_first = read_published(table({**stated, "tpot_mean_ms": "59.6"}, {**stated, "tpot_mean_ms": "40"}))
    assert whole.tpot == 0.039
    assert after_first.tpot == 0.061


def test_requests_come_at_a_stated_rate(table: Any) -> None:
    change = {"load_kind": "poisson", "concurrency_or_rate": "rate 2.0", "num_requests": "400"}
    (run,) = read_published(table(change))
    assert run.workload.concurrency is None
    assert run.workload.requests[-1].arrival == pytest.approx(200, rel=0.2)


def test_older_releases_ran_triton_for_experts_in_bf16(table: Any) -> None:
    change = {"infercast_model": "qwen3-30b-a3b", "model": "Qwen/Qwen3-30B-A3B", "infercast_gpu": "b200-sxm"}
    older, newer = read_published(table({**change, "version": "0.5.6"}, change))
    kernels = [set_up(run, "roofline")[1].model.weights.experts_kernel for run in (older, newer)]
    assert kernels == ["triton", "trtllm"]


def test_older_releases_planned_steps_of_recurrent_models_one_by_one(table: Any) -> None:
    change = {
        "infercast_model": "qwen3-next-80b-a3b",
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "infercast_gpu": "b200-sxm",
    }
    older, newer = read_published(table({**change, "version": "0.5.12"}, change))
    ahead: list[Any] = [set_up(run, "roofline")[1].settings for run in (older, newer)]
    assert [settings.disable_overlap_schedule for settings in ahead] == [True, False]
