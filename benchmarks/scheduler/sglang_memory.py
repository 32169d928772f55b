"""SGLang's own defaults against ours: chunks, graphs, the static share of memory, requests at once, bytes of a token.

    python benchmarks/scheduler/sglang_memory.py [--sglang DIR] [--write tests/engines/sglang/memory.csv]

Asks its `ServerArgs` and memory pools on every bundled NVIDIA GPU for bundled models of every kind, on 1 to 8 GPUs,
with and without DP attention. The file has every 37th row, for tests/engines/sglang/test_memory_table.py.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import sglang_tree as tree

from infercast.engines.sglang.engine import resolve, spread
from infercast.engines.sglang.memory import budget, shown_mib, tokens_that_fit
from infercast.engines.sglang.settings import SglangSettings
from infercast.errors import InfercastError
from infercast.hardware.load import gpu_names, load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.read import read_model

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "qwen3-0.6b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b",
    "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "mistral-small-3.2-24b", "qwen2.5-vl-7b", "qwen3-vl-30b-a3b",
    "llama-4-scout", "kimi-k2.5", "glm-4.5-air", "phi-4", "olmo-2-7b",
)  # fmt: skip
SIZES = (1, 2, 4, 8)
FLAGS: tuple[dict[str, Any], ...] = (
    {},
    {"chunked_prefill_size": 2048, "max_running_requests": 100},
    {"chunked_prefill_size": -1},
    {"cuda_graph_max_bs": 300},
    {"disable_cuda_graph": True},
)
"""What a user might ask for, by our names."""
COLUMNS = ("chunk", "static", "decode", "prefill", "cell", "running")
EVERY = 37


def questions() -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
    """GPU, model, tp_size, dp_size (groups of DP attention) and flags of the deployments that are looked at."""
    for gpu in gpu_names():
        if load_gpu(gpu).vendor.lower() != "nvidia":
            continue
        for model in MODELS:
            for tensor in SIZES:
                groups = [size for size in SIZES if size <= tensor] if read_model(model).has_experts else [1]
                for data in groups:
                    for flags in FLAGS if tensor in (1, 8) else FLAGS[:1]:
                        yield gpu, model, tensor, data, flags


def ours(gpu_name: str, name: str, tensor: int, data: int, flags: dict[str, Any]) -> tuple[list[Any], int] | None:
    """Our answers, and the tokens that fit; None where the model does not."""
    gpu, model = load_gpu(gpu_name), read_model(name)
    asked = SglangSettings(**flags, enable_dp_attention=data > 1, engine=f"sglang@{tree.VERSION}")
    try:
        layout = spread(asked, model, ParallelLayout(tensor=tensor, data=data), gpu)
        found = resolve(asked, model, layout, gpu)
        room = budget(model, layout, gpu, asked, found.mem_fraction_static)
    except InfercastError:
        return None
    tokens = tokens_that_fit(room, asked, found.page_size)
    if tokens < 100:
        return None
    decode, prefill = found.decode_sizes, found.prefill_sizes
    sizes = [f"{len(each)}:{sum(each)}" for each in (decode, prefill)]
    return [found.chunked_prefill_size, round(found.mem_fraction_static, 6), *sizes, room.token_bytes,
            found.max_running_requests], tokens  # fmt: skip


def main() -> None:
    """Compare, say what differs, and write some of it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, help="a folder with the package; default: the wheel's, fetched once")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--show", type=int, default=10, help="kinds of differences to print")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.sglang))
    from sglang_defaults import theirs  # noqa: PLC0415 - imports SGLang, see `sglang_tree.use`

    rows, differences, seen = [], 0, set()
    for question in questions():
        answer = ours(*question)
        if answer is None:
            continue
        gpu, model, tensor, data, flags = question
        real = theirs(shown_mib(load_gpu(gpu)), model, bundled_config(model), tensor, data, flags, answer[1])
        rows.append([gpu, model, tensor, data, " ".join(f"{key}={value}" for key, value in flags.items()), *real])
        if real != answer[0]:
            differences += 1
            parts = zip(COLUMNS, real, answer[0], strict=True)
            different = {what: (one, other) for what, one, other in parts if one != other}
            kind = (model, data > 1, *flags, *different)
            if kind not in seen and len(seen) < arguments.show:
                seen.add(kind)
                print(*question, different)
    print(f"{len(rows):,} deployments, {differences:,} differ")
    if arguments.write:
        with arguments.write.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["gpu", "model", "tensor", "data", "flags", *COLUMNS])
            writer.writerows(rows[::EVERY])
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
