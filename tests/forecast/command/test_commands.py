"""Commands as people post them (tests/data/commands.jsonl, each with its source): every flag has a class."""

import json
from collections import Counter
from pathlib import Path

import pytest

from infercast.engines.base import engine_named
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ, REFUSED
from infercast.forecast.command.flags import Reading, read_flags
from infercast.forecast.command.pasted import started_engine, the_command

FILE = Path(__file__).parents[2] / "data" / "commands.jsonl"
COMMANDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def reading_of(text: str) -> Reading:
    engine = started_engine(text)
    return read_flags(the_command(text, engine.commands).words, engine)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: str(each["id"]))
def test_every_flag_has_a_class(command: dict[str, str]) -> None:
    assert command["source"].startswith("https://")
    for flag in reading_of(command["command"]).flags:
        if flag.status == READ:
            assert flag.field
        else:
            assert flag.status in (IGNORED, NOT_MODELLED, REFUSED)
            assert flag.note


def test_what_they_are_made_of() -> None:
    statuses = Counter(flag.status for each in COMMANDS for flag in reading_of(each["command"]).flags)
    assert len(COMMANDS) >= 60
    assert statuses[READ] > 170
    assert statuses[NOT_MODELLED] > 20
    assert statuses[READ] + statuses[NOT_MODELLED] > 190  # flags that became modelled went from one to the other
    assert statuses[REFUSED] < 15


def test_the_tag_of_an_image_is_the_release() -> None:
    assert started_engine("docker run vllm/vllm-openai:v0.17.0-cu130 a/m").name == "vllm@0.17.0"
    assert started_engine("docker run vllm/vllm-openai:nightly a/m").name == engine_named("vllm").name
    assert started_engine(
        "services: {a: {image: 'lmsysorg/sglang:v0.5.4-x', command: sglang serve --model m}}"
    ).name == ("sglang@0.5.4")


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  vllm:\n    build: .\n    command: --model m --max-num-seqs 4\n",
        "command: [python3, -m, dynamo.vllm]\nargs: [--model, m, --max-num-seqs, '4']",
        "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve m --max-num-seqs=4 &>> log.txt",
        "$ python3 -m vllm.entrypoints.openai.api_server --model m \\\n  --max_num_seqs 4",
    ],
)
def test_ways_to_start_a_server(text: str) -> None:
    reading = reading_of(text)
    assert reading.model == "m"
    assert reading.settings == {"max_num_seqs": 4}
