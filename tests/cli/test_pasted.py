"""A pasted ``vllm serve`` command: its flags are read, left out with a word, or refused by name."""

from typing import Any

import pytest
import typer

from infercast.cli.app import COMMANDS, human_readable_int, make_app
from infercast.cli.options import translated
from infercast.engines.base import engines
from infercast.errors import InputError

SMALL = ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--concurrency", 8, "-n", 30, "--output-len", 20)


@pytest.mark.parametrize(
    ("text", "number"),
    [("8192", 8192), ("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("1M", 2**20), ("1m", 10**6), (" 7 ", 7)],
)
def test_numbers_as_vllm_reads_them(text: str, number: int) -> None:
    assert human_readable_int(text) == number


@pytest.mark.parametrize("text", ["many", "1.5K", "k", "3.5", ""])
def test_other_words_are_no_numbers(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        human_readable_int(text)


def test_a_pasted_command(infercast: Any) -> None:
    result = infercast(
        *SMALL, "--dtype", "float16", "--max_model_len", "8K", "--max-num-batched-tokens", "4k",
        "--enable-chunked-prefill", "--long-prefill-token-threshold", 1024, "--num-gpu-blocks-override", 9000,
        "-q", "fp8", "--port=8000", "--trust-remote-code", "--no-enable-log-requests", "--served-model-name", "mine",
        "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    flags = "--port, --trust-remote-code, --no-enable-log-requests, --served-model-name"
    assert result.err == f"infercast: no forecast depends on {flags}; left out\n"
    assert '"max_model_len": 8192' in result.out
    assert '"max_num_batched_tokens": 4000' in result.out
    assert '"num_gpu_blocks": 9000' in result.out
    assert '"kv_cache_dtype": "fp16"' in result.out
    assert '"weights": "fp8"' in result.out


def test_graphs_as_the_compilation_config_has_them(infercast: Any) -> None:
    slow, fast = infercast(*SMALL, "-cc", '{"cudagraph_mode": "NONE"}', "--json"), infercast(*SMALL, "--json")
    assert slow.json["tpot_ms"]["p50"] > 1.5 * fast.json["tpot_ms"]["p50"]
    few = infercast(*SMALL, "--cudagraph-capture-sizes", 1, 2, "--json")
    same = infercast(*SMALL, "-cc", '{"cudagraph_capture_sizes": [2, 1]}', "--json")
    assert few.json == same.json
    assert few.json["tpot_ms"]["p50"] > fast.json["tpot_ms"]["p50"]
    ignored = infercast(*SMALL, "--compilation-config", '{"mode": 3, "max_cudagraph_capture_size": 64}')
    assert ignored.code == 0
    assert ignored.err.startswith("infercast: --compilation-config: mode ignored; read are cudagraph_mode")


def test_priorities_change_nothing_where_there_are_none(infercast: Any) -> None:
    flag = ("--scheduling-policy", "priority")
    result = infercast(*SMALL, *flag).out.replace(f" {' '.join(flag)}", "")  # in the command that runs it
    assert result == infercast(*SMALL, "-dcp", 1, "--scheduling-policy", "fcfs").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-dcp", 2), "--decode-context-parallel-size 2 is not modelled; leave it at 1"),
        (
            ("--scheduling-policy", "lifo"),
            "unknown scheduling policy 'lifo'; known: deadline, fcfs, priority, shortest_prompt",
        ),
        (("-cc", "{"), "--compilation-config must be a JSON object, not '{'"),
        (("-cc", "[]"), "--compilation-config must be a JSON object, not '[]'"),
        (("-cc", '{"cudagraph_mode": "FULL"}'), "unknown cudagraph_mode 'full'"),
        (("-cc", '{"cudagraph_capture_sizes": 8}'), "cudagraph_capture_sizes must be whole numbers, not 8"),
        (("-cc", '{"max_cudagraph_capture_size": "8"}'), "max_cudagraph_capture_size must be a whole number, not '8'"),
        (("--cudagraph-capture-sizes", "0"), "cudagraph_capture_sizes must be one or more numbers of at least 1"),
        (("--cudagraph-capture-sizes", "8", "--max-cudagraph-capture-size", 4), "4 is not the largest of"),
        (("--speculative-config", "{}"), "--speculative-config of method draft_model needs model"),
        (("--dtype", "float64"), "dtype 'float64' is not modelled; known: auto, bfloat16"),
        (("-q", "compressed-tensors"), "this checkpoint is not quantised; give the config.json of one that is"),
    ],
)
def test_what_is_not_modelled_is_refused(infercast: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in infercast(*SMALL, *words).sentence


@pytest.mark.parametrize(
    ("name", "ours"), [("awq_marlin", "int4"), ("gptq_marlin", "int4"), ("modelopt", "fp8"), ("modelopt_fp4", "nvfp4")]
)
def test_vllms_names_of_formats(infercast: Any, name: str, ours: str) -> None:
    words = ("memory", "qwen3-0.6b", "--gpu", "h200-sxm", "--json", "-q")
    assert infercast(*words, name).json == infercast(*words, ours).json


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Options by the command that takes them."""
    found: dict[str, set[str]] = {}
    for name, command in COMMANDS.items():
        if command.engine_flags:
            params = typer.main.get_command(make_app(name)).commands[name].params  # type: ignore[attr-defined]
            found[name] = {
                word[2:] for each in params for word in (*each.opts, *each.secondary_opts) if word[:2] == "--"
            }
    return found


@pytest.mark.parametrize("engine", engines())
def test_no_option_of_ours_is_taken_for_one_of_an_engine(engine: str, options: dict[str, set[str]]) -> None:
    flags = engines()[engine].flags
    for name, words in options.items():
        assert not words & {*flags.settings}
        given = [name, "--engine", engine, *(f"--{word}=1" for word in sorted(words - {*flags.other_names, "engine"}))]
        assert translated(given, COMMANDS[name].load().options()) == (given, [])


def test_a_flag_at_the_end_and_words_that_are_no_flags() -> None:
    assert translated(["--", "a_b", "--a_b=c_d"]) == (["--", "a_b", "--a-b=c_d"], [])
    for words, problem in (
        (["--port"], "--port has no value"),
        (["--swap-space", "4"], "vLLM 0.33 has no --swap-space; 0.17.0 was the last with it; leave it out"),
    ):
        with pytest.raises(InputError, match=problem):
            translated(words)


def test_what_matters_and_is_not_modelled_is_said() -> None:
    kept, (ignored, remark) = translated(
        ["x", "--fully_sharded_loras", "--seed", "4", "--uds", "u", "--tensor-parallel", "2"]
    )
    assert kept == ["x", "--seed", "4", "--tensor-parallel-size", "2"]
    assert ignored == "no forecast depends on --uds; left out"
    assert remark.startswith("--fully-sharded-loras is not modelled: LoRA adapters in other layouts")


def test_dotted_keys_are_one_value() -> None:
    words = [
        "x",
        "--speculative-config.method",
        "ngram",
        "--rate",
        "2",
        "--speculative_config.num_speculative_tokens=3",
    ]
    value = '--speculative-config={"method": "ngram", "num_speculative_tokens": 3}'
    assert translated(words) == (["x", "--rate", "2", value], [])


def test_names_of_the_serving_benchmark() -> None:
    words = ["simulate", "--request-rate", "4", "--num-prompts=9", "--max_concurrency", "2", "--offline"]
    assert translated(words)[0] == [
        "simulate", "--rate", "4", "--num-requests=9", "--concurrency", "2", "--no-api-server",
    ]  # fmt: skip
