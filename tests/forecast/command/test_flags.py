"""Every flag is read, ignored, not modelled or refused."""

import shlex
from typing import Any

import pytest

from infercast.engines.base import engine_named
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ
from infercast.errors import InputError
from infercast.forecast.command.flags import read_flags
from infercast.forecast.deploy import deploy
from infercast.report.deployment import serve_command

ENGINE = engine_named()


def statuses(text: str) -> dict[str, str]:
    return {flag.name: flag.status for flag in read_flags(["m", *text.split()], ENGINE).flags}


def test_what_is_read() -> None:
    words = "-tp 2 --max_num_seqs=64 --max-num-batched-tokens 8k --no-enable-prefix-caching -q fp8 --enforce-eager"
    reading = read_flags(["--model", "m", *words.split(), "--cudagraph-capture-sizes", "1", "2", "4"], ENGINE)
    assert reading.model == "m"
    assert reading.options == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert reading.settings == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8000,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "cudagraph_capture_sizes": "1,2,4",
    }


def test_what_is_not_read() -> None:
    found = statuses(
        "--host 0.0.0.0 --seed 1 --port 80 --trust-remote-code --fully-sharded-loras -O1 "
        "--compilation-config.mode 3 --block-size 32"
    )
    assert found == {
        "host": IGNORED,
        "seed": IGNORED,
        "port": IGNORED,
        "trust-remote-code": IGNORED,
        "fully-sharded-loras": NOT_MODELLED,
        "optimization-level": NOT_MODELLED,
        "block-size": READ,
        "compilation-config": READ,
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-num-seqs", "many"], "--max-num-seqs must be a whole number such as 8192, 8k or 8K, not 'many'"),
        (["--max-num-seqs"], "--max-num-seqs has no value"),
        (["--max-model-len", "$LEN"], "write the value of the variable"),
        (["--enforce-eager=maybe"], "is a switch"),
    ],
)
def test_values_that_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_flags(["m", *words], ENGINE)


def test_a_command_without_a_model() -> None:
    with pytest.raises(InputError, match="the command names no model"):
        read_flags(["--port", "80"], ENGINE)


def test_flags_of_steps_and_memory_are_settings() -> None:
    words = "--max-model-len auto --device-memory-utilization 0.8 --max-num-scheduled-tokens 1k --cpu-offload-gb 4"
    words += " --prefill-schedule-interval 4 --long-prefill-token-threshold-adaptive --kv-cache-memory-bytes 4G"
    words += " --offload-group-size 8 --offload-num-in-group 2 --no-scheduler-reserve-full-isl --watermark 0.1"
    assert read_flags(["m", *words.split()], ENGINE).settings == {
        "max_model_len": -1,
        "gpu_memory_utilization": 0.8,
        "max_num_scheduled_tokens": 1000,
        "cpu_offload_gb": 4.0,
        "prefill_schedule_interval": 4,
        "long_prefill_token_threshold_adaptive": True,
        "kv_cache_memory_bytes": 4 << 30,
        "offload_group_size": 8,
        "offload_num_in_group": 2,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.1,
    }


@pytest.mark.parametrize(
    ("engine", "given"),
    [
        (
            "vllm",
            {
                "cudagraph_mode": "none", "max_num_seqs": 64, "kv_cache_dtype_skip_layers": ("0", "1"),
                "watermark": 0.1, "override_generation_config": '{"max_new_tokens": 9}', "block_size": 64,
                "async_scheduling": False, "scheduling_policy": "priority", "cpu_offload_gb": 2.0,
                "cudagraph_capture_sizes": (1, 2, 8),
            },
        ),
        (
            "sglang",
            {
                "max_running_requests": 32, "disable_cuda_graph": True, "schedule_policy": "lpm", "page_size": 16,
                "enable_mixed_chunk": True, "chunked_prefill_size": 2048,
            },
        ),
    ],
)  # fmt: skip
def test_the_command_of_a_run_is_read_back_as_its_settings(engine: str, given: dict[str, Any]) -> None:
    release = engine_named(engine)
    deployment = deploy("llama-3.1-8b", "h200-sxm", release.settings(given), kv_cache_dtype="fp8_e4m3")
    words = shlex.split(serve_command(deployment))[len(release.commands.serve) :]
    read = release.settings(read_flags(words, release, strict=True).settings)
    assert {name: getattr(read, name) for name in given} == given
