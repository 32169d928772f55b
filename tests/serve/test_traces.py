from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercast.errors import FileFormatError, UnknownNameError
from infercast.serve.workload.request import Request, Segment
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.serve.workload.traces import read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 19:17:03.9799600,110,27
"""
MOONCAKE = """{"timestamp": 500, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 3000, "input_length": 1024, "output_length": 26, "hash_ids": [46, 2366]}
"""
PLAIN_CSV = "arrival,input,output\n0.5,100,20\n1.25,200,30\n"
PLAIN = (Request(0.5, 100, 20, stops=True), Request(1.25, 200, 30, stops=True))


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str | bytes, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def problem_of(path: Path, format: str | None = None) -> str:
    with pytest.raises(FileFormatError) as caught:
        read_trace(path, format)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_azure(write: Any) -> None:
    workload = read_trace(write(AZURE, "conv.csv"))
    assert workload.requests == (
        Request(0.0, 4808, 10, stops=True), Request(0.052, 3180, 8, stops=True), Request(3600.0, 110, 27, stops=True),
    )  # fmt: skip
    assert workload.description == "3 requests over 3,600 s, Azure trace conv.csv, input mean 2,699, output mean 15"
    assert workload.rate is None
    assert workload.concurrency is None


def test_azure_with_and_without_fraction_and_zone(write: Any) -> None:
    rows = "2024-05-10 01:00:00+01:00,1,1\n2024-05-10 00:00:00.009930+00:00,2,1\n2024-05-10 00:00:01,3,1\n"
    workload = read_trace(write("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    assert [request.arrival for request in workload.requests] == [0.0, 0.00993, 1.0]


def test_mooncake_blocks_become_segments(write: Any) -> None:
    first, second = read_trace(write(MOONCAKE)).requests
    assert first == Request(0.0, 1100, 52, (Segment(46, 512), Segment(47, 512), Segment(2353, 76)), stops=True)
    assert second == Request(2.5, 1024, 26, (Segment(46, 512), Segment(2366, 512)), stops=True)
    assert first.prefix[0] is second.prefix[0]


@pytest.mark.parametrize(
    ("hash_ids", "prefix"),
    [
        ([1, 2, 3, 4], (Segment(1, 512), Segment(2, 88))),
        ([1], (Segment(1, 512),)),
        ([], ()),
    ],
)
def test_mooncake_ids_that_cover_more_or_less_than_the_prompt(write: Any, hash_ids: list[int], prefix: Any) -> None:
    record = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": hash_ids}
    assert read_trace(write(json.dumps(record))).requests == (Request(0.0, 600, 1, prefix, stops=True),)


def test_mooncake_without_ids(write: Any) -> None:
    path = write('{"timestamp": 7, "input_length": 9, "output_length": 1}')
    assert read_trace(path).requests == (Request(0.0, 9, 1, stops=True),)


@pytest.mark.parametrize(
    "header",
    ["arrival,input,output", "arrival_s,num_input,num_output", "arrival,input_tokens,output_tokens"],
)
def test_plain_csv_names(write: Any, header: str) -> None:
    assert read_trace(write(PLAIN_CSV.replace("arrival,input,output", header))).requests == PLAIN


def test_plain_csv_in_any_order_with_other_columns_spaces_and_windows_line_ends(write: Any) -> None:
    text = '\ufeffid, output ,arrival,input\r\nabc,20, 0.5,100.0\r\n\r\n"d,e",30,1.25,200\r\n'
    assert read_trace(write(text)).requests == PLAIN


def test_plain_jsonl(write: Any) -> None:
    lines = ['{"arrival": 0.5, "input": 100, "output": 20, "user": "a"}', "", '{"arrival_s":1.25,"num_input":200,']
    lines[2] += '"output_tokens":30}'
    assert read_trace(write("\n".join(lines))).requests == PLAIN


def test_plain_prefixes(write: Any) -> None:
    rows = "0,100,1,3,64\n1,100,1,3,64\n2,100,1,,\n3,100,1,4,0\n4,100,1,5.0,100.0\n"
    requests = read_trace(write("arrival,input,output,prefix_group,prefix_length\n" + rows)).requests
    shared = (Segment(3, 64),)
    assert [request.prefix for request in requests] == [shared, shared, (), (), (Segment(5, 100),)]
    assert requests[0].prefix[0] is requests[1].prefix[0]


def test_plain_keeps_its_own_zero(write: Any) -> None:
    assert read_trace(write("arrival,input,output\n100,1,1\n")).requests[0].arrival == 100.0


def test_unsorted_rows_are_sorted_stably(write: Any) -> None:
    requests = read_trace(write("arrival,input,output\n3,1,1\n1,2,1\n3,3,1\n1,4,1\n")).requests
    assert [request.num_input for request in requests] == [2, 4, 1, 3]
    rows = AZURE.splitlines()
    backwards = read_trace(write("\n".join([rows[0], *reversed(rows[1:])])))
    assert backwards.requests == read_trace(write(AZURE)).requests


def test_zero_output_becomes_one_and_is_counted(write: Any) -> None:
    workload = read_trace(write("arrival,input,output\n0,5,0\n1,5,3\n2,5,0\n"))
    assert [request.num_output for request in workload.requests] == [1, 3, 1]
    assert workload.description.endswith(", 2 with 0 output tokens taken as 1")


@pytest.mark.parametrize("text", [AZURE, MOONCAKE, PLAIN_CSV])
def test_gzip_reads_the_same(write: Any, text: str) -> None:
    packed = read_trace(write(gzip.compress(text.encode()), "trace.gz"))
    assert packed.requests == read_trace(write(text)).requests


@pytest.mark.parametrize(
    ("name", "text"),
    [("azure", AZURE), ("mooncake", MOONCAKE), ("csv", PLAIN_CSV), ("jsonl", '{"arrival":0,"input":1,"output":1}')],
)
def test_naming_the_format_gives_what_detection_gives(write: Any, name: str, text: str) -> None:
    path = write(text)
    assert read_trace(path, name) == read_trace(str(path))


def test_a_synthetic_workload_survives_the_way_through_a_file(write: Any) -> None:
    requests = synthetic_workload(
        rate=5.0,
        count=200,
        input_lengths="lognormal:300:1",
        output_lengths=9,
        prefix_length=40,
        prefix_groups=3,
        ignore_eos=False,
    ).requests
    rows = [(r.arrival, r.num_input, r.num_output, r.prefix[0].content, r.prefix[0].num_tokens) for r in requests]
    names = ("arrival", "input", "output", "prefix_group", "prefix_length")
    table = "\n".join([",".join(names), *(",".join(map(repr, row)) for row in rows)])
    objects = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    assert read_trace(write(table)).requests == requests
    assert read_trace(write(objects)).requests == requests


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("yesterday,1,1", "TIMESTAMP must be a time like '2023-11-16 18:17:03.9799600', not 'yesterday'"),
        ("0001-01-01 00:00:00+23:00,1,1", "TIMESTAMP must be a time like"),
        ("2023-11-16 18:17:04,0,1", "ContextTokens must be a whole number from 1 to 2147483647, not '0'"),
        ("2023-11-16 18:17:04,1.5,1", "ContextTokens must be a whole number from 1 to 2147483647, not '1.5'"),
        ("2023-11-16 18:17:04,1,", "GeneratedTokens must be a number of at least 0, not ''"),
        ("2023-11-16 18:17:04,1,-2", "GeneratedTokens must be a number of at least 0, not '-2'"),
        ("2023-11-16 18:17:04,1,99999999999", "GeneratedTokens must be a whole number from 0 to 2147483647"),
        ("2023-11-16 18:17:04,1", "has 2 values where the header has 3"),
    ],
)
def test_bad_azure_rows(write: Any, row: str, problem: str) -> None:
    assert problem_of(write(AZURE + row)).startswith(f", line 5: {problem}")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"timestamp": -1}, "timestamp must be a number of at least 0, not '-1'"),
        ({"timestamp": None}, "timestamp is missing"),
        ({"timestamp": True}, "timestamp must be a number of at least 0, not 'True'"),
        ({"timestamp": 10**400}, "timestamp must be a number of at least 0, not '1000"),
        ({"timestamp": float("nan")}, "timestamp must be a number of at least 0, not 'nan'"),
        ({"input_length": 0}, "input_length must be a whole number from 1 to 2147483647, not '0'"),
        ({"input_length": [3]}, "input_length must be a number of at least 0, not '[3]'"),
        ({"output_length": "many"}, "output_length must be a number of at least 0, not 'many'"),
        ({"hash_ids": 5}, "hash_ids must be a list of whole numbers, not '5'"),
        ({"hash_ids": [1, "2"]}, "hash_ids must be a list of whole numbers, not \"[1, '2']\""),
    ],
)
def test_bad_mooncake_rows(write: Any, changes: dict[str, Any], problem: str) -> None:
    record = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2], **changes}
    assert problem_of(write(MOONCAKE + json.dumps(record))).startswith(f", line 3: {problem}")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ('{"arrival": 1, "input": 2}', "has none where exactly one of output, num_output, output_tokens is needed"),
        (
            '{"arrival": 1, "input": 2, "num_input": 2, "output": 1}',
            "has input and num_input where exactly one of input, num_input, input_tokens is needed",
        ),
        ('{"arrival": -1, "input": 2, "output": 1}', "arrival must be a number of at least 0, not '-1'"),
        ('{"arrival": 1, "input": 2, "output": 1, "prefix_group": 1}', "prefix_length is missing"),
        ('{"arrival": 1, "input": 2, "output": 1, "prefix_length": 1}', "prefix_group is missing"),
        (
            '{"arrival": 1, "input": 2, "output": 1, "prefix_group": 1, "prefix_length": 3}',
            "prefix_length 3 is longer than the whole prompt, input 2",
        ),
        ('{"arrival": 1,', "expected one JSON object a line, not '{\"arrival\": 1,'"),
        ("[1, 2]", "expected one JSON object a line, not '[1, 2]'"),
        ("[" * 100_000, "expected one JSON object a line, not '[["),
    ],
)
def test_bad_plain_records(write: Any, record: str, problem: str) -> None:
    first = '{"arrival": 0, "input": 1, "output": 1}\n\n'
    assert problem_of(write(first + record)).startswith(f", line 3: {problem}")


def test_unknown_fields_name_every_format(write: Any) -> None:
    message = problem_of(write("time,in,out\n1,2,3\n"))
    assert message == (
        ": the fields 'time, in, out' are not those of a trace; expected "
        "azure (TIMESTAMP, ContextTokens, GeneratedTokens); aiperf (session_id, input_length, output_length); "
        "weka (requests, block_size); spans (resourceSpans/startTimeUnixNano); "
        "langfuse (startTime/start_time, usage/usageDetails/usage_details); "
        "mooncake (timestamp, input_length, output_length); "
        "conversations (turns/messages/conversations); "
        "csv (arrival/arrival_s/timestamp, input/num_input/input_tokens, output/num_output/output_tokens); "
        "jsonl (arrival/arrival_s/timestamp, input/num_input/input_tokens, output/num_output/output_tokens)"
    )


def test_the_wrong_format_is_refused(write: Any) -> None:
    message = problem_of(write(PLAIN_CSV), "azure")
    assert message.endswith("not those of a trace; expected azure (TIMESTAMP, ContextTokens, GeneratedTokens)")
    assert "expected one JSON object a line" in problem_of(write(PLAIN_CSV), "mooncake")
    known = "aiperf, azure, conversations, csv, jsonl, langfuse, mooncake, spans, weka"
    with pytest.raises(UnknownNameError, match=f"unknown trace format 'xlsx'; known: {known}"):
        read_trace(write(PLAIN_CSV), "xlsx")


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_empty_file_is_refused(write: Any, text: str) -> None:
    assert problem_of(write(text)) == ": is empty"


@pytest.mark.parametrize("text", ["arrival,input,output\n", "hello", '""', "\n,,\n"])
def test_a_file_without_requests_is_refused(write: Any, text: str) -> None:
    assert problem_of(write(text)) == ": has no requests after its first line"


def test_a_header_that_repeats_itself_is_refused(write: Any) -> None:
    message = problem_of(write("arrival,input,output,output\n1,2,3,4\n"))
    assert message == ", line 1: the header names 'output' more than once"


def test_files_that_cannot_be_read(write: Any, tmp_path: Path) -> None:
    assert problem_of(tmp_path / "none.csv") == ": cannot be read: No such file or directory"
    assert problem_of(write(b"\xff\xfe\x00\x01\n")) == ": is not UTF-8 text"
    cut = write(gzip.compress(PLAIN_CSV.encode())[:-12])
    assert problem_of(cut).startswith(": cannot be read: ")
    assert problem_of(write(b"\x1f\x8bnot gzip")).startswith(": cannot be read: ")
    huge = "arrival,input,output\n" + "9" * 200_000 + ",1,1\n"
    assert problem_of(write(huge)).startswith(": cannot be read: field larger than field limit")


@given(data=st.one_of(st.binary(max_size=60), st.text('{}[]",:\n arivlnputo019.-', max_size=60).map(str.encode)))
def test_any_bytes_are_a_trace_or_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any_bytes"
    for start in (b"", b"arrival,input,output\n1,2,3\n", b'{"arrival":0,"input":1,"output":1}\n'):
        path.write_bytes(start + data)
        with suppress(FileFormatError):
            assert read_trace(path).requests


@pytest.mark.parametrize(
    "arrivals",
    [
        ("2026-03-01T08:30:00", "2026-03-01T08:30:02.5"),
        ("2026-03-01 08:30:00+01:00", "2026-03-01 07:30:02.5Z"),
        ("1772353800", "1772353802.5"),
    ],
)
@pytest.mark.parametrize("name", ["arrival", "timestamp"])
def test_dates_count_from_the_earliest_request(tmp_path, name, arrivals):
    path = tmp_path / "day.csv"
    path.write_text(f"{name},input,output\n" + "".join(f"{arrival},10,5\n" for arrival in arrivals))
    assert [request.arrival for request in read_trace(path).requests] == [0.0, 2.5]


def test_a_date_that_is_none_is_refused(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("arrival,input,output\n2026-13-01T08:30:00,10,5\n")
    with pytest.raises(FileFormatError, match="arrival must be seconds or a date like '2026-03-01T08:30:00', not"):
        read_trace(path)
