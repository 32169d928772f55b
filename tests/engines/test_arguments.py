"""Flags of the engines' releases: each has one class, and is found in every form that the engine takes."""

from collections import Counter

import pytest

from infercast.engines.arguments import Arguments, meanings_of
from infercast.engines.base import engine_named
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ, REFUSED
from infercast.errors import InputError
from infercast.forecast.command.flags import Reading, known_flags, read_flags

COUNTS = {
    "vllm@0.8.5": 137, "vllm@0.10.0": 158, "vllm@0.12": 194, "vllm@0.18": 226, "vllm@0.25": 270, "vllm@0.32": 316,
    "vllm@0.33": 320, "sglang@0.5.16": 460, "sglang@0.5.19": 505, "sglang@0.5.23": 531,
}  # fmt: skip
"""Definitions that the packages have."""
OF_TYPE = {"int": "1", "float": "0.5", "json": "{}", "bool": "", "str": "auto"}


def flags_of(engine: str) -> Arguments:
    return known_flags(engine_named(engine))


def read(text: str, engine: str = "vllm", *, strict: bool = True) -> Reading:
    return read_flags(["m", *text.split()], engine_named(engine), strict=strict)


@pytest.mark.parametrize("engine", COUNTS)
def test_every_flag_of_a_release_has_a_class(engine: str) -> None:
    flags = list({each.name: each for each in flags_of(engine).spelled.values()}.values())
    assert len(flags) == COUNTS[engine]
    statuses: Counter[str] = Counter()
    for each in flags:
        if not {"model", "model-path"} & {*each.names}:
            words = f"--{each.name} {each.choices[0] if each.choices else OF_TYPE[each.type]}"
            (flag,) = read(words if each.takes not in ("switch", "bool") else f"--{each.name}", engine).flags
            assert flag.status == READ or flag.note
            assert "not known here" not in flag.note or "scheduler" in flag.note
            statuses[flag.status] += 1
    assert {*statuses} == {READ, IGNORED, NOT_MODELLED}
    assert statuses[READ] >= 25


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_what_is_not_modelled_has_a_direction(family: str) -> None:
    for meaning in meanings_of(family).values():
        assert "; " in meaning.note or meaning.status == IGNORED


@pytest.mark.parametrize(
    ("text", "engine", "options"),
    [
        ("--tensor-parallel 2", "vllm", {"tensor_parallel_size": 2}),
        ("--tensor_parallel_size=2", "vllm", {"tensor_parallel_size": 2}),
        ("-tp 2", "vllm", {"tensor_parallel_size": 2}),
        ("-dp=4", "vllm", {"data_parallel_size": 4}),
        ("-qfp8", "vllm", {"quantization": "fp8"}),
        ("--tp 2", "sglang", {"tensor_parallel_size": 2}),
        ("--tensor-parallel-size 2", "sglang", {"tensor_parallel_size": 2}),
        ("--dp 2", "sglang", {"data_parallel_size": 2}),
    ],
)
def test_forms_of_a_flag(text: str, engine: str, options: dict[str, object]) -> None:
    assert read(text, engine).options == options


@pytest.mark.parametrize(
    ("text", "engine", "settings"),
    [
        ("--device-memory-utilization 0.8", "vllm", {"gpu_memory_utilization": 0.8}),
        ("--gpu-mem 0.8", "vllm", {"gpu_memory_utilization": 0.8}),
        ("--no-enable-prefix-c --no-async-s", "vllm", {"enable_prefix_caching": False, "async_scheduling": False}),
        (
            "--speculative-algo EAGLE --mem-frac 0.8",
            "sglang",
            {"speculative_algorithm": "EAGLE", "mem_fraction_static": 0.8},
        ),
        ("--mamba-scheduler-strategy no_buffer", "sglang@0.5.16", {"mamba_radix_cache_strategy": "no_buffer"}),
        (
            "--speculative-config.method ngram --speculative_config.num_speculative_tokens=4",
            "vllm",
            {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}'},
        ),
        (
            "-cc.cudagraph_capture_sizes+ 1,2 --compilation-config.cudagraph_mode NONE",
            "vllm",
            {"compilation_config": '{"cudagraph_capture_sizes": [1, 2], "cudagraph_mode": "NONE"}'},
        ),
    ],
)  # fmt: skip
def test_forms_of_settings(text: str, engine: str, settings: dict[str, object]) -> None:
    assert read(text, engine).settings == settings


@pytest.mark.parametrize(
    ("text", "engine", "problem"),
    [
        ("--max-num 3", "vllm", "vLLM 0.33 refuses --max-num, which could be --max-num-active-seqs, --max-num-batched"),
        ("--speculative-draft x", "sglang", "SGLang 0.5.23 refuses --speculative-draft, which could be"),
        (
            "--max-num-batch-tokens 3",
            "vllm",
            "vLLM 0.33 has no flag --max-num-batch-tokens; did you mean --max-num-bat",
        ),
        ("--tp_size 2", "sglang", "SGLang 0.5.23 has no flag --tp_size; did you mean --tp-size"),
        ("--json-model-override-args.a 2", "sglang", "SGLang 0.5.23 has no flag --json-model-override-args.a"),
        ("--swap-space 4", "vllm", "vLLM 0.33 has no --swap-space; 0.17.0 was the last with it; leave it out"),
        (
            "--device-memory-utilization 0.8",
            "vllm@0.25",
            "vLLM 0.25 has no --device-memory-utilization; it came with 0.31.0",
        ),
        ("--enforce-eager yes", "vllm", "the word 'yes' belongs to no flag"),
        ("--max-num-seqs --enforce-eager", "vllm", "--max-num-seqs has no value"),
        ("--qqq 1", "vllm", "vLLM 0.33 has no flag --qqq"),
    ],
)
def test_what_the_release_refuses(text: str, engine: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read(text, engine)
    assert str(raised.value).startswith(problem)


def test_where_the_release_is_not_certain_another_s_flag_is_said_to_be_refused() -> None:
    flag, other = read("--swap-space 4 --max-num-seqs 8", strict=False).flags
    assert (flag.status, flag.note) == (REFUSED, "vLLM 0.33 has no --swap-space; 0.17.0 was the last with it")
    assert other.value == 8


def test_where_the_release_is_not_certain_a_flag_may_be_written_as_earlier_releases_took_it() -> None:
    (flag,) = read("--speculative-draft x", "sglang", strict=False).flags
    assert (flag.status, flag.name, flag.value) == (READ, "speculative-draft-model-path", "x")
    older, other = read("--enable-deepep-moe --enable-flashinfer-trtllm-moe", "sglang", strict=False).flags
    assert (older.name, older.value) == ("moe-a2a-backend", "deepep")
    assert (other.name, other.value) == ("moe-runner-backend", "flashinfer_trtllm")
    with pytest.raises(InputError, match="could be --speculative-draft-attention-backend"):
        read("--speculative-draft x", "sglang")
    with pytest.raises(InputError, match=r"has no --enable-deepep-moe; 0\.5\.3 was the last with it"):
        read("--enable-deepep-moe", "sglang")


def test_a_value_that_is_forecast_anyway() -> None:
    text = "--distributed-executor-backend mp --generation-config vllm --no-fully-sharded-loras --optimization-level 2"
    assert {flag.status for flag in read(text).flags} == {IGNORED}
    assert {flag.status for flag in read("--distributed-executor-backend ray --fully-sharded-loras").flags} == {
        NOT_MODELLED
    }


def test_several_values() -> None:
    reading = read("--cudagraph-capture-sizes 1 2 4 --lora-modules a=b c=d --api-key x", strict=True)
    assert reading.settings == {"cudagraph_capture_sizes": "1,2,4"}
    assert [flag.words for flag in reading.flags] == [("1", "2", "4"), ("a=b", "c=d"), ("x",)]


def test_releases_between_those_that_were_read() -> None:
    assert flags_of("vllm@0.8.4").knows("--enable-reasoning")
    assert {*flags_of("vllm@0.8.4").spelled} == {*flags_of("vllm@0.8.5").spelled}
    assert {*flags_of("vllm@0.99").spelled} == {*flags_of("vllm@0.33").spelled}
