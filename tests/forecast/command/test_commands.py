"""Commands as people post them (tests/data/commands.jsonl, each with its source): every flag has a class."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infercast.engines.base import engine_named
from infercast.engines.settings import IGNORED, NOT_MODELLED, READ, REFUSED
from infercast.errors import InputError
from infercast.forecast.command.explain import loaded_model
from infercast.forecast.command.flags import Reading, read_flags
from infercast.forecast.command.pasted import read_command, started_engine, the_command
from infercast.hardware import load_gpu
from infercast.models.read import read_model

FILE = Path(__file__).parents[2] / "data" / "commands.jsonl"
ALL = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
COMMANDS = [row for row in ALL if "refused" not in row]


EARLIER = {"vllm@0.33": "vllm@0.32", "sglang@0.5.23": "sglang@0.5.16"}
"""The default releases when most of these were collected."""


def reading_of(text: str, *, earlier: bool = False) -> Reading:
    engine = started_engine(text)
    engine = engine_named(EARLIER.get(engine.name, engine.name)) if earlier else engine
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


def test_every_model_and_gpu_is_known(every: Any) -> None:
    def check(command: dict[str, str]) -> None:
        assert load_gpu(command["gpu"])
        read_model(loaded_model(reading_of(command["command"])))

    every([row for row in COMMANDS if row["id"] > 62], check)


def test_what_is_refused_says_why(every: Any) -> None:
    def check(command: dict[str, str]) -> None:
        with pytest.raises(InputError) as caught:
            read_model(loaded_model(reading_of(command["command"])))
        assert command["refused"] in str(caught.value)

    refused = [row for row in ALL if "refused" in row]
    assert len(refused) < 0.1 * len(ALL)
    every(refused, check)


def test_what_they_are_made_of() -> None:
    assert len(COMMANDS) >= 140
    for rows in ([row for row in COMMANDS if row["id"] <= 62], [row for row in COMMANDS if row["id"] > 62]):
        statuses = Counter(flag.status for each in rows for flag in reading_of(each["command"], earlier=True).flags)
        assert statuses[READ] > 170
        assert statuses[NOT_MODELLED] > 20
        assert statuses[READ] + statuses[NOT_MODELLED] > 190  # flags that became modelled went from one to the other
        assert statuses[REFUSED] < 0.2 * len(rows)


def test_a_newer_release_refuses_no_flag_but_those_that_it_dropped() -> None:
    for row in COMMANDS:
        now, before = (reading_of(row["command"], earlier=each).flags for each in (False, True))
        for flag, then in zip(now, before, strict=True):
            if flag.status == REFUSED:
                assert "was the last with it" in flag.note
            elif then.status != REFUSED:
                assert (flag.status == READ) >= (then.status == READ) or flag.status == NOT_MODELLED


def test_without_a_release_it_is_the_newest_with_all_flags(every: Any) -> None:
    def check(command: dict[str, str]) -> None:
        found = read_command(command["command"])
        refused = reading_of(command["command"]).refused
        newest = found.engine.name == engine_named(found.engine.family).name
        assert not found.reading.refused
        assert bool(found.why) == bool(refused)
        assert all(flag in found.why for flag in refused)
        assert newest or found.why or found.pasted.release

    every(COMMANDS, check)


def test_which_release_that_is_and_when_flags_do_not_choose() -> None:
    old = read_command("vllm serve m --swap-space 16 --disable-log-requests --max-num-seqs 4")
    assert old.engine.name == "vllm@0.16.0"
    assert old.why == (
        "no release is named: vllm@0.16.0 is the newest that takes all flags (--swap-space, --disable-log-requests)"
    )
    assert old.reading.settings == {"max_num_seqs": 4}
    assert read_command("vllm serve m --max-num-seqs 4").engine.name == engine_named().name
    with pytest.raises(InputError, match=r"vLLM 0\.33 has no --swap-space; 0\.17\.0 was the last with it"):
        read_command("vllm serve m --swap-space 16", "vllm@0.33")
    never_together = read_command("vllm serve m --worker-use-ray --watchdog-config '{}'")
    assert never_together.engine.name == engine_named().name
    assert never_together.reading.refused == ["--worker-use-ray"]


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


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("docker run -v /data/Qwen3-8B:/model:ro vllm/vllm-openai --model=/model", "/data/Qwen3-8B"),
        ("docker run -v /data:/models -v $PWD/x:/y vllm/vllm-openai --model /models/m", "/data/m"),
        ("docker run -v /data:/models/Qwen3-8B vllm/vllm-openai --model /models/Qwen3-8B", "/models/Qwen3-8B"),
        ("services: {a: {image: vllm/vllm-openai, volumes: ['/m/Phi-4:/model'], command: --model /model}}", "/m/Phi-4"),
        ("kind: Pod\nspec: {containers: [{name: a, command: ['vllm serve m --max-num-seqs 4']}]}", "m"),
        ("# A=1 \\\n# B=2 \\\nvllm serve m", "m"),
    ],
)
def test_where_the_model_is_found(text: str, model: str) -> None:
    assert reading_of(text).model == model


def test_lines_of_comments_within_a_command_and_products_of_variables() -> None:
    text = "NODES=2\nvllm serve m \\\n  # --enforce-eager \\\n  --tensor-parallel-size $(($NODES*4)) --max-num-seqs 4"
    reading = reading_of(text)
    assert reading.options == {"tensor_parallel_size": 8}
    assert reading.settings == {"max_num_seqs": 4}


def test_variables_that_stand_for_a_flag() -> None:
    reading = reading_of("VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve m")
    assert reading.options == {"all2all_backend": "deepep_low_latency"}
    older = the_command("docker run -e VLLM_ALL2ALL_BACKEND=pplx vllm/vllm-openai:v0.10.0 m/m", engine_named().commands)
    assert older.words == ("m/m",)
    assert older.environment == {"VLLM_ALL2ALL_BACKEND": "pplx"}
