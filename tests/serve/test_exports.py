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
    inner = {"type": "subagent", "t": 4.0, "requests": [{**call, "t": 0.0}]}
    row = {"id": "x", "block_size": 64, "requests": [{**call, "t": 0.0}, inner, {**call, "t": 3.0, "in": 200}]}
    workload = read_trace(written(tmp_path, [row, row]))
    assert len(workload.requests) == 6
    first, later = workload.requests[:2]
    assert (first.session, later.session, later.think) == (0, 0, 2.0)
    assert first.prefix == later.prefix[:2]
    assert len({each.session for each in workload.requests}) == 4
    assert {each.arrival for each in workload.requests} == {0.0, 4.0}
    assert workload.requests[2].prefix[0] != first.prefix[0]  # blocks have names of their own in each


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
