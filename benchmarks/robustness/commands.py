"""Command lines that nobody should type, made from the command line's own table of options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import typer
from files import write_files

from infercast.cli.app import COMMANDS, make_app
from infercast.forecast.estimate import SHAPES

# A right and quick command line of each, to be spoilt.
SHORT = ("--num-requests", "8", "--input-len", "64", "--output-len", "8")
SMALL = ("--rate", "5", *SHORT)
PROMISE = "ttft_p99<1s,tpot_p95<40ms"
RIGHT: dict[str, tuple[str, ...]] = {
    "simulate": ("qwen3-0.6b", "--gpu", "h200-sxm", *SMALL),
    "explain-command": ("vllm serve qwen3-0.6b --max-num-seqs 8", "--gpu", "h200-sxm", "--no-advice", *SMALL),
    "plan": ("qwen3-0.6b", "--gpu", "l4", "--max-gpus", "1", "--slo", PROMISE, *SMALL),
    "sweep": ("qwen3-0.6b", "--gpu", "h200-sxm", "--rates", "5,6", *SHORT),
    "design": ("qwen3-0.6b", "--gpu", "h200-sxm", "--vary", "sms=0.5x,1x", "--cost", "sms", *SMALL),
    "capacity": ("qwen3-0.6b", "--gpu", "h200-sxm", "--slo", PROMISE, *SMALL),
    "traffic": ("TRACE",),
    "calibrate": ("RESULT", "--model", "qwen3-0.6b", "--gpu", "h200-sxm", "--out", "OUT.toml"),
    "kernels": ("qwen3-0.6b", "--gpu", "h200-sxm", "--decode", "4"),
    "speculate": (
        "qwen3-8b",
        "--gpu",
        "h200-sxm",
        "--concurrencies",
        "1,2",
        "--num-requests",
        "4",
        "--output-len",
        "8",
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2}',
    ),
    "diagnose": ("qwen3-0.6b", "--gpu", "h200-sxm", *SMALL),
    "tune": ("qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", "16"),
    "memory": ("qwen3-0.6b", "--gpu", "h200-sxm"),
    "partition": ("qwen3-0.6b", "--gpu", "h200-sxm", "-pp", "2"),
    "layouts": ("qwen3-0.6b", "--gpu", "l4", "--gpus", "1", "--concurrency", "2", "--output-len", "8"),
    "energy": ("qwen3-0.6b", "--gpu", "h200-sxm", "--power-limits", "400,600", *SMALL),
    "report": ("RUN", "RUN"),
    "web": ("--port", "70000"),  # so that nothing is served
    "emulate": ("qwen3-0.6b", "--gpu", "h200-sxm", "--port", "70000"),
    "watch": ("http://127.0.0.1:9", "--model", "qwen3-0.6b", "--gpu", "h200-sxm", "--seconds", "1"),
    "disaggregate": ("qwen3-0.6b", "--prefill-gpu", "l4", "--decode-gpu", "l4", *SMALL),
    "estimate": ("gemm", "--gpu", "h200-sxm", "--m", "4", "--n", "64", "--k", "64"),
    "kernel": ("fit", "SHAPES", "--gpu", "h200-sxm", "--out", "OUT.json"),
    "variants": (
        "--gpu",
        "l4",
        *("--layers", "2,4", "--hidden", "256", "--heads", "4", "--kv-heads", "2", "--inter", "512"),
    ),
    "gpus": (),
    "models": (),
    "hosts": (),
    "validate": ("RUNS",),
    "reproduce": ("synperf", "gpus"),
    "measure": ("--out", "OUT"),
    "trace": ("collections:OrderedDict", "--input", "8x64", "--gpu", "h200-sxm"),
    "fit": ("FOLDER", "--out", "OUT.npz"),
}
NUMBERS = (
    "0",
    "-1",
    "1",
    "7",
    "100",
    "999999999",
    "9" * 30,
    "1.5",
    "nan",
    "",
    "abc",
    "\uff11\uff12",
    "0x10",
    "1e3",
    " 5 ",
)
FLOATS = ("0", "-1", "0.5", "3", "1e308", "1e-308", "nan", "inf", "-inf", "", "abc", "1,5", "1e9999")
WORDS = (
    "",
    " ",
    "nonsense",
    "日本語",
    "a" * 3000,
    "../..",
    "-",
    "'",
    "%s%n",
    "💥",
    "auto,auto",
    "none",
    "null",
    "[]",
    "\n",
)
LENGTHS = (
    "0", "-3", "1", "512", "uniform:5:1", "uniform:1:9", "uniform:1", "lognormal:0:0", "lognormal:700:nan", "zipf:3",
    "lognormal:50:0.5", "lognormal:1e9:9", "lognormal:700:0.9:8000:16", "1e400", "999999999",
)  # fmt: skip
KNOWN: dict[str, tuple[str, ...]] = {
    "model": ("qwen3-0.6b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-3-1b", "llama-3.1-405b", "Qwen/Qwen3-0.6B"),
    "gpu": ("h200-sxm", "mi300x", "t4", "p100", "b300-sxm", "rtx-4090", "H200-SXM", "h200", "h200-sxm+l4", "2xl4+a10"),
    "name": ("h200-sxm", "qwen3-0.6b"),
    "pp_layer_partition": ("auto", "14,14", "28", "0,28", "14,14,"),
    "words": ("vllm serve qwen3-0.6b -tp 2", "vllm serve", "docker run vllm/vllm-openai --model", "a: [b", "- 'x",
              "vllm serve '", "command: [vllm, serve, qwen3-0.6b]", "vllm serve qwen3-0.6b --max-num-seqs 0 --foo",
              "vllm serve $MODEL"),
    "slo": (PROMISE, "ttft_p99<0s", "tpot<1", "e2e_mean<1e400s", "ttft_p50<1ns"),
    "family": ("gemm", "prefill", "decode", "moe", "norm", "rope", "quantise", "all_reduce", "all_gather", "conv2d",
               "softmax", "elementwise", "lstm", "topk"),
    "kernel": ("fa2", "triton", "cudnn", "gelu", "cublas", "marlin"),
    "families": ("gemm", "moe,gemm", ",", "gemm,", "collective"),
    "arrival": ("poisson", "gamma", "constant", "burst"),
    "runner": ("pooling", "generate", "auto"),
    "task": ("embed", "score", "generate"),
    "drop": ("norm", "attention", "norm+rope", "+", ";", "nothing"),
    "fuse": ("gate_up_proj+activation", "norm+qkv_proj;o_proj+norm", "qkv_proj+o_proj", "norm", "a+b"),
    "overlap": ("norm+rope", "gate_up_proj+activation", "norm+norm", "norm", "attention+norm", "a+b;"),
    "at_ceiling": ("all", "attention", "norm+down_proj", "nothing", "+"),
    "api_price": ("0.15/0.6", "1", "0", "-1/2", "a/b", "1/2/3", "inf", "nan"),
    "vary": ("sms=0.5x,1x", "dram_bandwidth=1x:2x:2", "sms=0", "a=1", "sms=1x:2x:9999", "sms"),
    "cost": ("sms", "sms*0", "-sms", "1/(sms-1)", "__import__('os')", "sms**sms**9", "x", ""),
    "scheduling_policy": ("fcfs", "priority", "deadline", "shortest_prompt", "lifo"),
    "quantization": ("int3", "int6", "fp8", "int4", "awq", "mxfp4", "nvfp4", "none"),
    "kv_cache_dtype": ("fp8", "bf16", "fp8_e5m2"),
    "dtype": ("fp8", "bf16", "int4", "fp32"),
    "weight_dtype": ("int4", "mxfp4"),
    "kv_dtype": ("fp8",),
    "all2all_backend": ("deepep_low_latency",),
    "moe_backend": ("marlin", "triton", "trtllm"),
    "expert_routing": ("power_law_1.2", "balanced"),
    "network": ("infiniband-ndr", "roce-400"),
    "link": ("nvlink", "roce-400"),
    "router": ("round_robin", "prefix_aware"),
    "predictor": ("roofline", "missing.npz"),
    "what_if": ("dram_bandwidth=1.5x", "sms=0", "gpu=b200-sxm", "sms=-1x", "dram_bandwidth=nan", "a=b", "=", "sms=1e30",
                "quantization=fp8,quantization=int4", "max_num_seqs=0", "host_speed=0x", "tensor_parallel_size=2"),
    "trace_window": ("0:60", "5:1", "a:b", "nan:nan", "-1:1", "1e9:1e10", ":"),
    "tokens": ("16", "0", "-1", "1,2,x", ",", "999999999999"),
    "gpus": ("1", "1,2", "0", "h200-sxm", "3,5", "999999"),
    "tier": ("measured", "few-shot", "unseen"),
    "engine": ("vllm", "torch"),
    "speculative_config": (
        '{"method": "mtp"}', '{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}', "{", "[]", '{"a": 1}',
        '{"method": "medusa", "num_speculative_tokens": 1}', '{"method": "ngram", "num_speculative_tokens": 0}',
    ),
    "power_limits": ("300,500", "400:700:3", "700:400:3", "400:700:0", "400:700:9999", "nan:nan:3", "175", "701", "0"),
    "gpu_clocks": ("900,1500", "400:1980:3", "1980:400:3", "400:1980:1e9", "5000", "-1"),
    "power_limit": ("none,400", "300", "none", "1", "none,none", "1e9", "nan"),
    "server": ("baseboard", "cards", "desktop", "superchip", "rack"),
    "objective": ("energy", "cost", "gpus"),
    "pue": ("1.2", "1", "2.5", "0.9", "nan"),
    "server_watts": ("500", "1200", "0", "-1", "inf"),
    "server_factor": ("1.1", "1.3", "0", "-2"),
    "grid_carbon": ("400", "50", "0", "-5"),
    "electricity_price": ("0.1", "0.3", "0", "-1"),
    "power_limit_w": ("400", "600", "700", "1e9", "0"),
    "gpu_clock_mhz": ("1200", "1800", "1980", "99999", "0"),
    "form": ("json", "csv", "md", "table", "xml"),
    "work": ("bytes=m*k", "bytes=2*m; flops=2*m*n*k", "bytes=", "x=1", "bytes=open('x')", "bytes=9**9**9"),
    "front": ("parameters", "flops", "speed"),
    "layers": ("16", "16:64:8", "16,32", "64:16", "0", "x", "1:9e9"),
    "acceptance": ("0.7", "2.4", "0.9,0.8", "1", "rate=2", "length=nan", "deepseek-v3-mtp", "Mean acceptance: x"),
}  # fmt: skip
FILES_OF = {
    "model": "model", "name": "model", "gpu": "gpu", "prefill_gpu": "gpu", "decode_gpu": "gpu", "trace": "trace",
    "host": "host", "table": "shapes", "files": "runs", "model_config": "folder", "anchors": "folder",
    "results": "result", "calibration": "calibration", "runs": "run", "rows": "shapes", "kernel_file": "result",
    "profile": "trace",
    "measurements": "folder", "data": "folder", "artifact": "noise", "predictor": "noise",
}  # fmt: skip
LEFT_ALONE = ("on_gpu", "port", "static")
"""Options that would measure where there is a GPU, serve, or download."""
INSTEAD = {"trace": ("--rate", "--input-len", "--output-len"), "concurrency": ("--rate",)}
"""What an option takes the place of."""
WRITTEN = ("report", "trace_out", "save_result", "out")


@cache
def parameters(command: str) -> list[Any]:
    """A command's own table of arguments and options."""
    group = typer.main.get_command(make_app(command))
    return list(group.commands[command].params)  # type: ignore[attr-defined]


SEEN = 15
"""Commands are drawn by their options and as if they had so many more: those with few are tried, too."""


def hostile_commands(folder: Path, count: int, seed: int = 0) -> Iterator[list[str]]:
    """So many command lines; files that they name are in the folder."""
    random = Random(seed)
    files = write_files(folder, random, each=12 if count < 500 else 60)
    names = [name for name in COMMANDS if name != "measure" or find_spec("torch") is None]
    weights = [SEEN + len(parameters(name)) for name in names]
    for _ in range(count):
        yield _spoilt(random.choices(names, weights)[0], random, files, folder)


PLAIN_MODELS = ("qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-4b", "bge-m3", "qwen3-8b")
PLAIN_GPUS = ("h200-sxm", "h100-sxm", "l40s", "a100-sxm", "mi300x", "b200-sxm", "l4", "rtx-4090", "h20", "rtx-5090")
PLAIN_LOADS = (
    ("--rate", "0.003"), ("--rate", "4"), ("--rate", "90"), ("--concurrency", "1"), ("--concurrency", "70"),
    ("--arrival", "burst"), ("--rate", "6", "--arrival", "gamma", "--burstiness", "0.2"),
)  # fmt: skip
PLAIN_LENGTHS = (("--input-len", "64"), ("--input-len", "900"), ("--input-len", "uniform:1:300"))
PLAIN_WORDS = (
               "-tp 2", "-pp 2", "-dp 2", "--max-model-len 4096", "--max-num-seqs 3", "--slo ttft_p99<1s,tpot_p95<40ms",
               "--enable-lora --adapters 3", "--enforce-eager", "--quantization fp8", "--kv-cache-dtype fp8",
               "--power-limit 300", "--network roce-400", "--turns 2", "--prefix-len 32", "--output-len 1",
               "--allow-overload", "--engine sglang", "--engine vllm@0.25", "--num-gpu-blocks-override 300",
)  # fmt: skip


def plain_commands(folder: Path, count: int, seed: int = 0) -> Iterator[list[str]]:
    """Right command lines of every kind with other models, GPUs, loads and a few options more."""
    random = Random(seed)
    files = write_files(folder, random, each=2)
    left_out = ("measure", "web", "emulate", "watch", "fit", "evaluate")
    names = [name for name in COMMANDS if name not in left_out]
    for number in range(count):
        command = names[number % len(names)]
        words = [_place(word, random, files, folder) for word in RIGHT[command]]
        model, gpu = random.choice(PLAIN_MODELS), random.choice(PLAIN_GPUS)
        words = [model if word in ("qwen3-0.6b", "qwen3-8b") else gpu if word in ("h200-sxm", "l4") else word
                 for word in words]  # fmt: skip
        known = {option for each in parameters(command) for option in each.opts}
        if "--rate" in words:
            words = [*_without(words, ["--rate", "--input-len"]), *random.choice(PLAIN_LOADS)]
            words += random.choice(PLAIN_LENGTHS)
        for more in random.sample(PLAIN_WORDS, random.choice((0, 1, 1, 2))):
            words += more.split() if more.split()[0] in known else []
        yield [command, *words]


def _spoilt(command: str, random: Random, files: dict[str, list[str]], folder: Path) -> list[str]:
    """A right command line with one to three things changed."""
    words = [_place(word, random, files, folder) for word in RIGHT[command]]
    if command == "estimate":
        family = random.choice(list(SHAPES))
        sizes = (
            (f"--{size.replace('_', '-')}", random.choice(("1", "2", "64", "4096"))) for size in SHAPES[family].sizes
        )
        words = [family, *words[1:3], *chain.from_iterable(sizes)]
    for _ in range(random.choice((1, 1, 2, 3))):
        parameter = random.choice(parameters(command))
        if parameter.name in LEFT_ALONE:
            continue
        if parameter.param_type_name == "argument":
            words = words[1:] if words and not words[0].startswith("--") else words
            value = _value(parameter, random, files, folder)
            words = words if random.random() < 0.1 else [value, *words]
        elif parameter.is_flag:
            words.append(random.choice([*parameter.opts, *parameter.secondary_opts]))
        else:
            option = random.choice(parameter.opts)
            instead = INSTEAD.get(parameter.name, ())
            words = _without(words, [*parameter.opts, *instead]) if random.random() < 0.9 else words
            words += [option, _value(parameter, random, files, folder)]
    if random.random() < 0.05:
        words.append(random.choice(("--nonsense", "-x", "extra", "--", "-", "--json=maybe", "--help", "")))
    if random.random() < 0.3:
        words.append("--json")
    return [command, *words]


def _place(word: str, random: Random, files: dict[str, list[str]], folder: Path) -> str:
    if word == "RUNS":
        return random.choice(files["runs"] + files["table"])
    if word == "RUN":
        return random.choice(files["run"])
    if word == "RESULT":
        return random.choice(files["result"])
    if word == "SHAPES":
        return random.choice(files["shapes"])
    written = {"OUT": "out", "OUT.npz": "out.npz", "OUT.toml": "out.toml", "OUT.json": "out.json"}
    return str(folder) if word == "FOLDER" else str(folder / written[word]) if word in written else word


def _without(words: list[str], options: list[str]) -> list[str]:
    for option in options:
        if option in words:
            place = words.index(option)
            words = words[:place] + words[place + 2 :]
    return words


def _value(parameter: Any, random: Random, files: dict[str, list[str]], folder: Path) -> str:
    """Something for a parameter, more often wrong than right."""
    name = parameter.name
    if name in WRITTEN:
        suffix = {"report": ".html", "trace_out": ".json", "save_result": ".json"}.get(name, ".npz")
        places = (f"out{suffix}", f"missing/x{suffix}", "", "x.txt", ".", f"nul\n{suffix}")
        return random.choice((*(str(folder / place) for place in places), "/dev/full", f"/proc/x{suffix}"))
    if random.random() < 0.1:
        return random.choice(random.choice(list(files.values())))
    if name in FILES_OF and random.random() < 0.6:
        return random.choice(files[FILES_OF[name]])
    known = KNOWN.get("gpu" if name.endswith("_gpu") else name, ())
    lengths = LENGTHS if name in ("input_len", "output_len") else known
    right_or_wrong = lengths or {"INT": NUMBERS, "FLOAT": FLOATS}.get(str(parameter.type), ())
    return random.choice(right_or_wrong if right_or_wrong and random.random() < 0.7 else WORDS)
