"""Groups, blocks and capacities that vLLM 0.25's own functions gave for every bundled model of plain attention.

``kv_groups.csv`` was written by benchmarks/scheduler/kv_groups.py: 40 GiB a GPU, sequences of 32,768 tokens computed
8,192 at a time.
"""

import csv
from itertools import groupby
from pathlib import Path

from infercast.engines.vllm.kv_cache import kv_layout
from infercast.models.layout import ParallelLayout
from infercast.models.library import model_names
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention, NoMixer
from infercast.models.read import read_model

with Path(__file__).with_name("kv_groups.csv").open(encoding="utf-8", newline="") as file:
    TABLE = {name: list(rows) for name, rows in groupby(csv.DictReader(file), key=lambda row: row["model"])}


def numbers(text):
    return tuple(map(int, text.split()))


def test_blocks_are_grouped_as_the_engine_groups_them(every):
    every(TABLE, check_groups)


def check_groups(model):
    config = read_model(model)
    for row in TABLE[model]:
        layout = ParallelLayout(int(row["tensor"]), int(row["pipeline"]))
        stages = [kv_layout(config, layout, 16, stage) for stage in range(layout.pipeline)]
        shape = stages[0].shape
        assert (shape.windows, shape.sizes) == (numbers(row["windows"]), numbers(row["block_sizes"]))
        blocks = min(40 * 2**30 // kv.block_bytes for kv in stages)
        assert blocks == int(row["blocks"])
        assert (blocks - 1) // shape.most_blocks(32_768, 8_192) == int(row["sequences"])


def test_no_bundled_model_of_plain_attention_is_missing():
    mixers = {name: [stack.mixer for stack in read_model(name).stacks] for name in model_names()}
    plain = {GroupedAttention, LatentAttention, NoMixer}
    caching = {name for name, found in mixers.items() if not all(getattr(each, "bidirectional", 0) for each in found)}
    assert set(TABLE) == {name for name in caching if {*map(type, mixers[name])} <= plain}
