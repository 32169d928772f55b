"""Wrong input: exit code 2, one sentence on standard error that helps, nothing on standard output."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIMULATE = ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "-n", 30)
KERNELS = ("kernels", "qwen3-0.6b", "--gpu", "h200-sxm")
ESTIMATE = ("estimate", "--gpu", "h200-sxm")
TUNE = ("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm")
MEMORY = ("memory", "qwen3-0.6b", "--gpu", "h200-sxm")


def problem(result: Any) -> str:
    """The one line that was printed, less the name of the program."""
    return str(result.sentence)


CASES = {
    "unknown GPU": (("memory", "qwen3-0.6b", "--gpu", "h20o"), "unknown GPU 'h20o'; did you mean", "h200-sxm"),
    "missing GPU file": (("memory", "qwen3-0.6b", "--gpu", "./no.toml"), "no.toml"),
    "unknown model": (("memory", "qwen3-0.6", "--gpu", "l4"), "unknown model 'qwen3-0.6'; did you mean qwen3-0.6b"),
    "unknown GPU listed": (("gpus", "h20o"), "did you mean", "h200-sxm"),
    "unknown model listed": (("models", "lama-3.1-8b"), "did you mean llama-3.1-8b"),
    "missing config file": (("models", "no/config.json"), "config.json: there is no such file"),
    "negative rate": ((*SIMULATE, "--rate", -1), "rate must be a positive, finite number", "-1.0"),
    "zero rate": ((*SIMULATE, "--rate", 0), "rate must be a positive, finite number"),
    "NaN rate": ((*SIMULATE, "--rate", "nan"), "rate must be a positive, finite number", "nan"),
    "infinite rate": ((*SIMULATE, "--rate", "inf"), "rate must be a positive, finite number", "inf"),
    "no arrivals": (SIMULATE, "--rate R, --concurrency N, --arrival burst or --trace FILE"),
    "rate and concurrency": ((*SIMULATE, "--rate", 1, "--concurrency", 2), "exclude each other"),
    "rate of a burst": ((*SIMULATE, "--rate", 1, "--arrival", "burst"), "a burst has none"),
    "no clients": ((*SIMULATE, "--concurrency", 0), "concurrency must be at least 1"),
    "missing trace": ((*SIMULATE, "--trace", "no.csv"), "no.csv: cannot be read: No such file"),
    "length form": ((*SIMULATE, "--rate", 1, "--input-len", "zipf:3"), "--input-len 'zipf:3'", "lognormal:MEAN:SIGMA"),
    "negative length": ((*SIMULATE, "--rate", 1, "--output-len", "-3"), "--output-len '-3'", "from 1 to"),
    "arrival kind": ((*SIMULATE, "--rate", 1, "--arrival", "poison"), "did you mean poisson?", "gamma"),
    "burstiness": ((*SIMULATE, "--rate", 1, "--burstiness", 0.5), "no meaning for poisson"),
    "prefix groups alone": ((*SIMULATE, "--rate", 1, "--prefix-groups", 3), "prefix_groups 3 needs prefix_length"),
    "rate scale without a trace": ((*SIMULATE, "--rate", 1, "--rate-scale", 2), "--rate-scale needs --trace"),
    "negative count": ((*SIMULATE[:-2], "--rate", 1, "-n", -5), "--num-requests must be at least 1, not -5"),
    "zero count": ((*SIMULATE[:-2], "--rate", 1, "-n", 0), "--num-requests must be at least 1, not 0"),
    "negative seed": ((*SIMULATE, "--rate", 1, "--seed", -1), "seed"),
    "too long": (
        (*SIMULATE, "--rate", 1, "--input-len", 3000, "--output-len", 1, "--max-model-len", 2048),
        "request 0 needs 3000 input + 1 output tokens, above max_model_len 2048 (30 of 30 requests are too long)",
        "--too-long truncate or --too-long skip",
    ),
    "what to do with long ones": ((*SIMULATE, "--rate", 1, "--too-long", "cut"), "'cut'", "refuse, skip, truncate"),
    "above the positions": ((*MEMORY, "--max-model-len", 10**6), "max_model_len 1000000 is above the 40960 positions"),
    "does not fit": (
        ("simulate", "llama-3.3-70b", "--gpu", "h100-sxm", "--rate", 1),
        "does not fit on 1 x h100-sxm",
        "tensor_parallel_size=4 fits",
    ),
    "fits nowhere": (("kernels", "deepseek-v3", "--gpu", "l4", "--decode", 1), "no layout within the"),
    "parallel heads": ((*MEMORY, "-tp", 3), "tensor_parallel_size 3 does not divide", "valid: 1, 2, 4, 8, 16"),
    "no GPUs": ((*MEMORY, "-tp", 0), "tensor_parallel_size must be at least 1, not 0"),
    "block size": ((*MEMORY, "--block-size", 0), "block_size must be at least 1, not 0"),
    "utilization": ((*MEMORY, "--gpu-memory-utilization", 1.5), "gpu_memory_utilization must lie in (0, 1], not 1.5"),
    "no utilization": ((*MEMORY, "--gpu-memory-utilization", "nan"), "gpu_memory_utilization must lie in (0, 1]"),
    "more sequences than tokens": (
        (*MEMORY, "--max-num-seqs", 512, "--max-num-batched-tokens", 256),
        "max_num_batched_tokens 256 is below max_num_seqs 512",
    ),
    "no memory context": ((*MEMORY, "--context", 0), "--context must be at least 1, not 0"),
    "cache format": ((*MEMORY, "--kv-cache-dtype", "fp3"), "unknown kv_cache_dtype 'fp3'; known: auto, bf16"),
    "weight format": ((*MEMORY, "--quantization", "fp9"), "unknown quantization 'fp9'; did you mean fp8"),
    "neither step": (KERNELS, "either --prefill TOKENS, or --decode SEQUENCES"),
    "both steps": ((*KERNELS, "--prefill", 8, "--decode", 8), "either --prefill TOKENS, or --decode SEQUENCES"),
    "negative context": ((*KERNELS, "--decode", 8, "--context", -1), "--context must be 0 or more, not -1"),
    "negative cached": ((*KERNELS, "--prefill", 8, "--context", -1), "--context must be 0 or more, not -1"),
    "empty prefill": ((*KERNELS, "--prefill", 0), "--prefill must be at least 1, not 0"),
    "empty batch": ((*KERNELS, "--decode", 0), "--decode must be at least 1, not 0"),
    "prefill over the positions": ((*KERNELS, "--prefill", 50_000), "above the 40960 positions"),
    "no token budget": ((*KERNELS, "--decode", 1, "--max-num-batched-tokens", 0), "max_num_batched_tokens must be at"),
    "step over the budget": (
        (*KERNELS, "--prefill", 300, "--max-num-batched-tokens", 256),
        "300 tokens is above max_num_batched_tokens 256",
    ),
    "no sweep": ((*KERNELS, "--decode", 1, "--measurements", "nowhere"), "nowhere has no table of `infercast measure`"),
    "sweep for the roofline": (
        (*KERNELS, "--decode", 1, "--measurements", "nowhere", "--predictor", "roofline"),
        "--measurements improve learned estimates; leave out --predictor roofline",
    ),
    "no anchors": ((*KERNELS, "--decode", 1, "--anchors", "nowhere"), "--anchors nowhere is not a folder"),
    "endless count": (
        (*SIMULATE[:-2], "--rate", 1, "-n", 10**14),
        "count must be at most 100000000 requests, not 100000000000000",
    ),
    "no clock that long": ((*SIMULATE, "--rate", 1e-300), "rate 1e-300", "gives arrival times too large for a clock"),
    "what if, twice": ((*SIMULATE, "--rate", 1, "--what-if", "sms=160,sms=170"), "'sms=170' gives sms a second time"),
    "what if, endless": ((*SIMULATE, "--rate", 1, "--what-if", "sms=1e400"), "sms=1e400 must be above 0 and finite"),
    "heads in groups": (
        (*ESTIMATE, "decode", "--batch", 1, "--kv-len", 9, "--heads", 5, "--kv-heads", 2, "--head-dim", 128),
        "heads 5 must be a multiple of kv_heads 2",
    ),
    "window": (
        (
            *ESTIMATE,
            "decode",
            "--batch",
            1,
            "--kv-len",
            9,
            "--heads",
            4,
            "--kv-heads",
            2,
            "--head-dim",
            64,
            "--window",
            -4,
        ),
        "window must be at least 0, not -4",
    ),
    "more than all experts": (
        (*ESTIMATE, "moe", "--tokens", 4, "--hidden", 64, "--inter", 64, "--experts", 4, "--topk", 8),
        "topk 8 must be at most experts 4",
    ),
    "collective of one": ((*ESTIMATE, "all_reduce", "--bytes", 8, "--gpus", 1), "gpus must be at least 2, not 1"),
    "size": ((*ESTIMATE, "gemm", "--m", 10**20, "--n", 2, "--k", 3), "m must be at most 2147483647, not 1000000000000"),
    "trial without time": ((*TUNE, "--minutes", -1), "--minutes must be a number above 0, not -1"),
    "step of a billion tokens": ((*TUNE, "--tokens", 10**9), "--tokens must be whole numbers from 1 to 1048576"),
    "no host": ((*SIMULATE, "--rate", 1, "--host", "no.json"), "no.json: cannot be read: No such file"),
    "missing measurements": (("validate", "no.json"), "no.json: cannot be read: No such file"),
    "no config folder": (
        ("validate", "no.json", "--model-config", "nowhere"),
        "--model-config nowhere is not a folder",
    ),
}


@pytest.mark.parametrize(("words", "expected"), [(words, rest) for words, *rest in CASES.values()], ids=list(CASES))
def test_one_sentence(infercast: Any, words: tuple[object, ...], expected: list[str]) -> None:
    sentence = problem(infercast(*words))
    for part in expected:
        assert part in sentence


@pytest.mark.parametrize(
    "option", [("--burstiness", 3), ("--concurrency", 3), ("--arrival", "burst"), ("--input-len", 9), ("--seed", 1)]
)
def test_a_trace_allows_no_synthetic_options(infercast: Any, tmp_path: Path, option: tuple[object, ...]) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrival,input,output\n0,10,10\n", encoding="utf-8")
    assert f"{option[0]} has no meaning with --trace" in problem(infercast(*SIMULATE, "--trace", path, *option))


def test_too_little_memory_is_a_sentence_too(infercast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 728. TiB")

    monkeypatch.setattr("infercast.cli.app.make_app", exhaust)
    assert problem(infercast("gpus")) == "not enough memory for this: Unable to allocate 728. TiB"


def test_tune_refuses_a_file_as_a_folder_before_it_measures(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "configs"
    path.write_text("mine", encoding="utf-8")
    assert problem(infercast(*TUNE, "--try", "--out", path)) == f"--out {path} is not a folder"
    assert path.read_text(encoding="utf-8") == "mine"


def test_with_json_an_error_is_one_line_of_json(infercast: Any) -> None:
    result = infercast("gpus", "h20o", "--json")
    assert (result.code, result.out) == (2, "")
    error = json.loads(result.err)["error"]
    assert (error["type"], error["message"]) == ("UnknownNameError", problem(infercast("gpus", "h20o")))
    assert (error["kind"], error["name"], error["did_you_mean"][0]) == ("GPU", "h20o", "h20")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpus", "--nope"), "no such option: --nope; see infercast gpus --help"),
        (("memory", "--gpu", "l4"), "missing argument 'MODEL'; see infercast memory --help"),
    ],
)
def test_with_json_bad_words_are_json_too(infercast: Any, words: tuple[str, ...], message: str) -> None:
    result = infercast(*words, "--json")
    assert (result.code, result.out) == (2, "")
    assert json.loads(result.err) == {"error": {"type": "UsageError", "message": message}}
    assert infercast(words[0], "--help", "--json").code == 0


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_one_sentence(more: tuple[str, ...]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "infercast", "gpus", "l4", *more]
        result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "the answer cannot be written: No space left on device" in result.stderr


def test_a_report_on_a_full_disk_leaves_nothing_behind(
    infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fill)
    path = tmp_path / "run.json"
    sentence = problem(infercast(*SIMULATE, "--rate", 1, "--trace-out", path))
    assert sentence == f"{path} cannot be written: No space left on device"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("memory", "qwen3-0.6b"), "missing option '--gpu'; see infercast memory --help"),
        (("memory", "qwen3-0.6b", "--gpu", "l4", "--tensor-parralel", 2), "no such option: --tensor-parralel"),
        (("memory", "qwen3-0.6b", "--gpu"), "option '--gpu' requires an argument; see infercast --help"),
        (("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "fast"), "'--rate' / '-r': 'fast' is not a valid float"),
        (("memory",), "missing argument 'MODEL'; see infercast memory --help"),
        (("memory", "qwen3-0.6b", "l4", "--gpu", "l4"), "got unexpected extra argument"),
        (("web", "--host", ""), "--host must be an address or a name, not an empty text"),
        (("web", "--allow-host", " "), "--allow-host must be an address or a name, not an empty text"),
        (("guess",), "no such command 'guess'; did you mean 'gpus'? see infercast --help"),
    ],
)
def test_usage_errors(infercast: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in problem(infercast(*words))


def test_what_spans_lines_is_quoted_in_one(infercast: Any) -> None:
    assert "unknown GPU" in problem(infercast("memory", "qwen3-0.6b", "--gpu", "a\nb"))
    assert "no table" in problem(infercast(*KERNELS, "--decode", 1, "--measurements", "a\nb"))


def test_what_the_machine_refuses_is_one_sentence(infercast: Any) -> None:
    assert "name too long" in problem(infercast(*KERNELS, "--decode", 1, "--measurements", "a" * 3000)).lower()
