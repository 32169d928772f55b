"""Sessions that are made up or read from files, classes of requests and adapters."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infercast.errors import FileFormatError, InputError
from infercast.serve.workload.classes import parse_class, with_adapters, with_classes
from infercast.serve.workload.distributions import parse_pauses
from infercast.serve.workload.request import Adapters, Request, Segment, Workload
from infercast.serve.workload.synthetic import begun_anew, redrawn, scaled, session_workload
from infercast.serve.workload.traces import read_trace

TALK: dict[str, Any] = {
    "count": 400, "turns": "uniform:1:6", "input_lengths": 100, "turn_lengths": 20, "output_lengths": "uniform:5:50",
    "think": "exponential:4",
}  # fmt: skip


def sessions(workload: Workload) -> dict[int | None, list[Request]]:
    found: dict[int | None, list[Request]] = defaultdict(list)
    for request in workload.requests:
        found[request.session].append(request)
    return found


def test_every_prompt_goes_on_with_the_answer_before_it() -> None:
    workload = session_workload(rate=5, prefix_length=64, prefix_groups=3, **TALK)
    assert len(workload.requests) == 400
    for turns in sessions(workload).values():
        assert turns[0].num_input == 164
        assert turns[0].think == 0.0
        for before, after in pairwise(turns):
            assert after.num_input == before.num_input + before.num_output + 20
            assert after.prefix[:-2] == before.prefix
            assert after.prefix[-2] == Segment(before.answer or 0, before.num_output)
            assert after.arrival == pytest.approx(before.arrival + after.think)
    names = [segment.content for request in workload.requests for segment in request.prefix[-1:]]
    assert len(set(names)) == 400


def test_the_same_arguments_draw_the_same_and_other_seeds_others() -> None:
    workload = session_workload(rate=5, seed=3, **TALK)
    assert session_workload(rate=5, seed=3, **TALK) == workload
    assert redrawn(workload, seed=3, count=400) == workload
    other = redrawn(workload, seed=4, count=100)
    assert other is not None
    assert len(other.requests) == 100
    assert other.in_turns
    faster = session_workload(rate=10, seed=3, **TALK)
    assert sorted(each.num_input for each in faster.requests) == sorted(each.num_input for each in workload.requests)


def test_sessions_begin_so_often_that_requests_come_at_the_rate() -> None:
    workload = session_workload(rate=7.0, **{**TALK, "count": 20_000})
    starts = [turns[0].arrival for turns in sessions(workload).values()]
    assert len(starts) / max(starts) == pytest.approx(7.0 / 3.5, rel=0.05)
    assert session_workload(session_rate=2.0, **TALK).rate == pytest.approx(7.0)


def test_a_tool_has_pauses_and_lengths_of_its_own() -> None:
    workload = session_workload(
        concurrency=4, tool_share=1.0, tool_time=2, tool_lengths=77, **{**TALK, "turns": 3, "count": 30}
    )
    for turns in sessions(workload).values():
        assert [turn.think for turn in turns] == [0.0, 2.0, 2.0][: len(turns)]
        assert [turn.prefix[-1].num_tokens for turn in turns] == [100, 77, 77][: len(turns)]
    assert "100% of later turns after a tool of 2 s that brings 77" in workload.description


def test_another_rate_moves_sessions_and_not_their_pauses() -> None:
    workload = session_workload(rate=5, **TALK)
    faster = scaled(workload, rate_scale=2.0)
    pairs = zip(sessions(workload).values(), sessions(faster).values(), strict=True)
    for before, after in pairs:
        assert after[0].arrival == pytest.approx(before[0].arrival / 2)
        assert [each.think for each in after] == [each.think for each in before]


@pytest.mark.parametrize(
    ("text", "mean"), [("8", 8.0), ("uniform:2:4", 3.0), ("exponential:10", 10.0), ("lognormal:5:1", 5.0)]
)
def test_pauses_are_read(text: str, mean: float) -> None:
    assert parse_pauses(text, "--think").mean == mean


@pytest.mark.parametrize("text", ["-1", "soon", "uniform:4:2", "lognormal:0:1", "normal:1:1", "exponential"])
def test_wrong_pauses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--think"):
        parse_pauses(text, "--think")


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_a_conversation_a_line(tmp_path: Path) -> None:
    turns = [{"input": 50, "output": 10}, {"input": 7, "output": 20, "think": 3.5}]
    line = {"arrival": 2.0, "turns": turns, "prefix_length": 30, "class": "chat", "priority": -1}
    workload = read_trace(write(tmp_path / "talk.jsonl", line, {"turns": turns[:1]}))
    assert workload.in_turns
    alone, first, second = workload.requests
    assert (alone.arrival, alone.num_input, alone.session) == (0.0, 50, 0)
    assert (first.num_input, second.num_input, second.think) == (80, 97, 3.5)
    assert second.prefix[1:3] == (first.prefix[1], Segment(first.answer or 0, 10))
    assert (second.slo_class, second.priority) == ("chat", -1)


def test_messages_are_counted_by_their_characters_and_instructions_are_shared(tmp_path: Path) -> None:
    def talk(asked: str) -> dict[str, Any]:
        roles = ("system", "user", "assistant", "user", "assistant", "user")
        texts = ("Be brief. " * 8, asked, "x" * 40, "and?", "y" * 9, "left over")
        return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}

    workload = read_trace(write(tmp_path / "chat.jsonl", talk("a" * 12), talk("b" * 12)))
    assert [each.num_input for each in workload.requests] == [23, 34, 23, 34]
    assert [each.num_output for each in workload.requests] == [10, 3, 10, 3]
    one, other = workload.requests[0].prefix, workload.requests[2].prefix
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize(
    "record",
    [{"turns": []}, {"turns": 3}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "tokens": 3}]}],
)
def test_wrong_conversations_are_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError):
        read_trace(write(tmp_path / "talk.jsonl", record))


def test_blocks_tell_the_sessions_of_a_trace(tmp_path: Path) -> None:
    def line(time: int, blocks: list[int], length: int) -> dict[str, Any]:
        return {"timestamp": time, "input_length": length, "output_length": 9, "hash_ids": blocks}

    # 1 is a system prompt. 1 2 goes on as 1 2 4 and 1 2 4 6; 1 8 parts from them.
    records = [
        line(0, [1, 2, 3], 1100), line(1, [1, 8, 9], 1200), line(2, [1, 2, 4, 5], 1700), line(3, [1, 2, 4, 6, 7], 2100),
    ]  # fmt: skip
    workload = read_trace(write(tmp_path / "mooncake.jsonl", *records))
    assert [each.session for each in workload.requests] == [0, None, 0, 0]
    assert not workload.in_turns
    assert read_trace(tmp_path / "mooncake.jsonl", follow=True).in_turns


def test_a_column_names_sessions_whose_answers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    rows = "arrival,input,output,session\n0,100,10,a\n5,150,10,a\n6,40,5,\n7,90,5,a\n"
    path.write_text(rows, encoding="utf-8")
    first, second, alone, shorter = read_trace(path).requests
    assert second.prefix == (*first.prefix, Segment(first.answer or 0, 10), second.prefix[-1])
    assert (alone.session, alone.prefix) == (None, ())
    assert shorter.prefix[0] not in second.prefix
    path.write_text("arrival,input,output\n0,100,10\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match="no sessions to follow"):
        read_trace(path, follow=True)


def test_conversations_may_begin_at_a_rate_or_so_many_at_a_time(tmp_path: Path) -> None:
    turns = [{"input": 50, "output": 10}, {"input": 7, "output": 20, "think": 3.5}]
    workload = read_trace(write(tmp_path / "talk.jsonl", *[{"turns": turns}] * 50))
    begun = begun_anew(workload, session_rate=4.0)
    starts = [turns[0].arrival for turns in sessions(begun).values()]
    assert 5 < max(starts) < 30
    assert begun.rate == 8.0
    assert begun_anew(workload, concurrency=3).concurrency == 3
    with pytest.raises(InputError, match="needs a trace of conversations"):
        begun_anew(replace(workload, in_turns=False), concurrency=3)


def test_classes_are_drawn_by_whole_sessions() -> None:
    with pytest.raises(InputError, match="two shares, 1 and 2"):
        parse_class("chat:1:2")
    with pytest.raises(InputError, match="'chat' is 2 of all requests"):
        with_classes(Workload((Request(0.0, 1, 1),) * 4), [parse_class("chat:2")])
    classes = [parse_class("chat:3:priority=0:ttft=500ms,tpot=0.05"), parse_class("batch:1:priority=7:e2e=1min")]
    workload = with_classes(session_workload(rate=5, **{**TALK, "count": 4000}), classes)
    assert workload.classes[0].limits == (("ttft", 0.5), ("tpot", 0.05))
    assert [each.share for each in workload.classes] == [0.75, 0.25]
    kinds = [{request.slo_class for request in turns} for turns in sessions(workload).values()]
    assert all(len(each) == 1 for each in kinds)
    assert 0.65 < sum(each == {"chat"} for each in kinds) / len(kinds) < 0.85
    assert {each.priority for each in workload.requests if each.slo_class == "batch"} == {7}
    other = redrawn(workload, seed=9, count=50)
    assert other is not None
    assert {each.slo_class for each in other.requests} == {"chat", "batch"}


@pytest.mark.parametrize(
    "text", [":0.5", "chat:x", "chat:0", "chat:1:ttft=", "chat:1:ttft=-1", "chat:1:speed=3", "chat:1:priority=high"]
)
def test_wrong_classes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="class"):
        parse_class(text)


def test_classes_of_a_workload_that_names_them() -> None:
    workload = Workload((Request(0.0, 5, 5, slo_class="a"), Request(0.0, 5, 5, slo_class="b", priority=3)))
    named = with_classes(workload, [parse_class("a:priority=2:ttft=1")])
    assert [each.name for each in named.classes] == ["a", "b"]
    assert [each.priority for each in named.requests] == [2, 3]
    for wrong in ("a:0.5", "c:ttft=1"):
        with pytest.raises(InputError):
            with_classes(workload, [parse_class(wrong)])
    with pytest.raises(InputError, match="needs a share"):
        with_classes(Workload((Request(0.0, 5, 5),)), [parse_class("a")])


def test_adapters_are_popular_by_rank_and_share_no_prompts() -> None:
    workload = session_workload(rate=5, prefix_length=32, **{**TALK, "count": 3000})
    mixed = with_adapters(workload, Adapters(10, skew=1.0, share=0.5))
    asked = [turns[0].adapter for turns in sessions(mixed).values()]
    assert 0.4 < sum(each is not None for each in asked) / len(asked) < 0.6
    assert asked.count(0) > asked.count(5)
    first = {each.prefix[0].content: each.adapter for each in mixed.requests}
    assert len(first) == 11
