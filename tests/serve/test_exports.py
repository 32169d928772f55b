"""Exports of tracing tools and traces of agents as rows of requests, and one sentence for what is none."""

import json

import pytest

from infercast.errors import FileFormatError
from infercast.serve.workload.traces import read_trace


def written(tmp_path, content, name="trace.jsonl"):
    path = tmp_path / name
    text = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
    path.write_text(text, encoding="utf-8")
    return path


def span(start, tokens, conversation="", **others):
    said = {"gen_ai.usage.input_tokens": tokens[0], "gen_ai.usage.output_tokens": tokens[1]}
    if conversation:
        said["gen_ai.conversation.id"] = conversation
    kinds = {int: "intValue", str: "stringValue"}
    attributes = [{"key": key, "value": {kinds[type(value)]: str(value)}} for key, value in said.items()]
    return {"traceId": "t", "startTimeUnixNano": str(start), "attributes": attributes, **others}


def lengths(workload):
    return [(round(each.arrival, 3), each.num_input, each.num_output) for each in workload.requests]


def test_opentelemetry_export(tmp_path):
    second = 1_800_000_000 * 10**9
    spans = [span(second, (100, 20), "a"), {"traceId": "t", "startTimeUnixNano": "5", "attributes": []}]
    spans.append(span(second + 2 * 10**9, (150, 10), "a"))
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    for content in (json.dumps(whole), json.dumps(whole, indent=1), [whole], spans[::2], json.dumps(spans[::2])):
        workload = read_trace(written(tmp_path, content))
        assert lengths(workload) == [(0.0, 100, 20), (2.0, 150, 10)]
        assert [each.session for each in workload.requests] == [0, 0]
        assert sum(piece.num_tokens for piece in workload.requests[1].prefix[:2]) == 120  # prompt and answer before
    flat = {**spans[0], "attributes": {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}}
    assert lengths(read_trace(written(tmp_path, [flat]))) == [(0.0, 7, 3)]


def test_langfuse_export(tmp_path):
    rows = [
        {"id": "1", "type": "GENERATION", "startTime": "2026-03-01T08:30:00.000Z", "usage": {"input": 90, "output": 9}},
        {"id": "2", "type": "SPAN", "startTime": "2026-03-01T08:30:01.000Z", "usage": None},
        {
            "type": "GENERATION", "start_time": "2026-03-01 08:30:02.500000", "session_id": "s",
            "usage_details": {"input": 50, "output": 5, "total": 55},
        },
    ]  # fmt: skip
    for content in (rows, json.dumps(rows)):
        assert lengths(read_trace(written(tmp_path, content))) == [(0.0, 90, 9), (2.5, 50, 5)]


def test_sharegpt_list(tmp_path):
    turns = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 80}]
    workload = read_trace(written(tmp_path, json.dumps([{"id": "1", "conversations": turns * 2}], indent=2)))
    assert [(each.num_input, each.num_output) for each in workload.requests] == [(100, 20), (220, 20)]
    assert workload.in_turns


def test_aiperf_turns_bring_new_tokens(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 100, "output_length": 10},
        {"session_id": "b", "timestamp": 1500, "input_length": 50, "output_length": 10},
        {"session_id": "a", "delay": 2500, "input_length": 30, "output_length": 5},
    ]
    workload = read_trace(written(tmp_path, rows))
    assert [(each.session, each.num_input, each.think) for each in workload.requests] == [
        (0, 100, 0.0), (0, 140, 2.5), (1, 50, 0.0)
    ]  # fmt: skip
    assert workload.in_turns


def test_weka_sessions_and_sub_agents(tmp_path):
    call = {"type": "n", "in": 130, "out": 20, "hash_ids": [0, 1, 2], "api_time": 1.0}
    once = {"type": "subagent", "t": 2.0, "requests": [{**call, "t": 2.5}, {**call, "t": 4.0}]}
    again = {"type": "subagent", "t": 2.0, "requests": [{**call, "t": 0.0}]}  # counts from its own start
    late = {"type": "subagent", "t": 6.0, "requests": [{**call, "t": 6.0, "api_time": 9.0}]}
    calls = [{**call, "t": 0.0}, once, again, late, {**call, "t": 6.0, "in": 200}]
    workload = read_trace(written(tmp_path, [{"id": "x", "block_size": 64, "requests": calls}] * 2))
    assert len(workload.requests) == 12
    assert {each.arrival for each in workload.requests} == {0.0}
    whole = [each for each in workload.requests if each.session in {0, 1, 2, 3}]
    first, quick, slow, other, *_ = whole
    final = next(each for each in whole if each.num_input == 200)
    assert len({each.session for each in whole}) == 4
    assert first.prefix == final.prefix[:2]
    assert slow.prefix == first.prefix  # blocks have the same names in all of a session
    assert not {each.content for each in first.prefix} & {each.content for each in workload.requests[-1].prefix}
    assert [(each.after, each.think) for each in (first, quick, slow)] == [
        ((), 0.0), ((first.answer,), 1.0), ((first.answer,), 1.5)
    ]  # fmt: skip
    assert (other.after, other.think) == ((slow.answer,), 0.5)
    assert set(final.after) >= {quick.answer, other.answer}  # not for the one that goes on in the background
    assert len(final.after) == 3
    assert final.think == 1.0


def test_calls_follow_the_answers_that_they_had(tmp_path):
    second = 1_800_000_000 * 10**9
    times = [(0.0, 1.0), (1.5, 4.0), (1.5, 3.0), (5.0, 6.0)]  # two at once, and a call that has both answers
    spans = [
        span(second + int(start * 1e9), (100, 20), "a", endTimeUnixNano=str(second + int(end * 1e9)))
        for start, end in times
    ]
    path = written(tmp_path, spans)
    assert [each.after for each in read_trace(path).requests] == [()] * 4
    first, *both, last = read_trace(path, follow=True).requests
    assert [each.after for each in both] == [(first.answer,)] * 2
    assert [each.think for each in (first, *both, last)] == pytest.approx([0.0, 0.5, 0.5, 1.0])
    assert last.after == tuple(each.answer for each in reversed(both))
    lines = [f"{start},100,20,a,{end}" for start, end in times]
    plain = read_trace(written(tmp_path, "\n".join(["arrival,input,output,session,end", *lines]), "t.csv"), follow=True)
    assert [each.think for each in plain.requests] == [0.0, 0.5, 0.5, 1.0]
    assert {each.arrival for each in plain.requests} == {0.0}


@pytest.mark.parametrize(
    "row",
    [
        {"resourceSpans": 3},
        {"resourceSpans": [{"scopeSpans": [{}]}]},
        {"startTimeUnixNano": "x", "attributes": {"gen_ai.usage.input_tokens": 5}},
        {"startTimeUnixNano": 5, "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {}}]},
        {"startTimeUnixNano": 5, "attributes": [7]},
        {"startTimeUnixNano": 5, "attributes": {"gen_ai.usage.input_tokens": -5}},
        {"startTime": "soon", "usage": {"input": 5, "output": 5}},
        {"startTime": "2026-03-01T08:30:00Z", "usage": {"input": 5}},
        {"startTime": "2026-03-01T08:30:00Z", "usage": [5]},
        {"requests": 7, "block_size": 64},
        {"requests": [{"t": 0}], "block_size": 64},
        {"requests": [{"t": 0, "in": 100, "out": 5, "hash_ids": 9}], "block_size": 64},
        {"session_id": "a", "input_length": 0, "output_length": 5},
        {"session_id": "a", "input_length": 5, "output_length": 5, "delay": "long"},
    ],
)
def test_wrong_rows_are_one_sentence(tmp_path, row):
    with pytest.raises(FileFormatError) as caught:
        read_trace(written(tmp_path, [row]))
    assert "line 1" in str(caught.value)
    assert "\n" not in str(caught.value)
