"""Reading measured files: what is kept, what is left out, and what is refused."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from infercast.errors import FileFormatError, InputError
from infercast.forecast.deploy import load_model
from infercast.lab.validate.measured import read_measured, with_images_of
from infercast.serve.workload.request import Segment


@pytest.mark.parametrize("name", ["measured.json", "measured.json.gz"])
def test_plain_and_gzipped_files_read_the_same(document: Any, write: Any, name: str) -> None:
    measured = read_measured(write(document, name))
    assert (measured.model, measured.gpu, measured.setup.model["quantization"]) == ("qwen3-0.6b", "NVIDIA H200", None)
    settings: Any = measured.setup.settings
    assert (measured.setup.num_gpu_blocks, settings.max_num_seqs, settings.max_model_len) == (68000, 256, 8192)
    assert [run.label for run in measured.runs] == ["static 4x256x8 #1", "poisson 12/s"]
    static = measured.runs[0]
    assert static.ttft.tolist() == [0.02] * 4
    assert static.tpot.tolist() == [0.002] * 4
    assert static.output_tokens_per_second == pytest.approx(4 * 8 / 0.034)


def test_a_gzipped_file_may_have_any_name(document: Any, write: Any, tmp_path: Path) -> None:
    renamed = write(document, "measured.json.gz").rename(tmp_path / "measured.data")
    assert len(read_measured(renamed).runs) == 2


def test_what_follows_a_double_underscore_is_not_the_models_name(document: Any, write: Any) -> None:
    document["config"] |= {"name": "llama-3.1-8b__fp8", "quant": "fp8"}
    measured = read_measured(write(document))
    assert (measured.model, measured.setup.model["quantization"]) == ("llama-3.1-8b", "fp8")


def test_stalled_and_warmup_runs_are_left_out(document: Any, write: Any) -> None:
    document["runs"][0]["one_off_stall"] = True
    document["runs"].append({"kind": "warmup"})
    measured = read_measured(write(document))
    assert [run.kind for run in measured.runs] == ["poisson"]
    assert measured.num_stalled == 1


def test_requests_are_put_in_order_of_arrival(document: Any, write: Any) -> None:
    requests = document["runs"][1]["requests"]
    for position, row in enumerate(requests):
        row["ttft_ms"] = 1.0 + position
    requests.reverse()
    run = read_measured(write(document)).runs[1]
    assert [row.arrival for row in run.workload.requests] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert run.ttft.tolist() == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.006])


def test_groups_become_shared_prefixes(document: Any, write: Any) -> None:
    document["runs"][1] |= {"kind": "prefix", "prefix_len": 128, "groups": [0, 1, 0, 1, 0, 1]}
    run = read_measured(write(document)).runs[1]
    assert [row.prefix for row in run.workload.requests] == [(Segment(0, 128),), (Segment(1, 128),)] * 3


def test_prompts_may_have_images(document: Any, write: Any) -> None:
    rows = document["runs"][1]["requests"]
    for row in rows[1:]:
        row |= {"images": [[512, 512], [1024, 768]], "n_in": 1200}
    model = load_model("qwen3-vl-8b")
    run = with_images_of(read_measured(write(document)).runs[1], model)
    plain, *shown = run.workload.requests
    assert (plain.images, plain.num_input) == ((), 256)
    assert [request.num_input for request in shown] == [1200] * 5
    assert [image.num_embeds for image in shown[0].images] == [256, 768]
    assert len({image.content for request in shown for image in request.images}) == 10
    rows[1]["n_in"] = 1000
    with pytest.raises(InputError, match="a prompt of 1000 tokens with 2 images, which alone are 1028 tokens"):
        with_images_of(read_measured(write(document)).runs[1], model)
    rows[1]["images"] = [[512, 0]]
    assert refuse(write(document)).endswith(
        "runs[1].requests[1].images must be a list of [width, height], not [[512, 0]]"
    )


def test_conversations_repeat_what_was_said_and_cached_tokens_are_counted(document: Any, write: Any) -> None:
    run = document["runs"][1]
    rows = run["requests"] = run["requests"][:3]
    run["system_len"] = 32
    for row, (session, turn, new, said) in zip(rows, [(0, 0, 10, 32), (1, 0, 20, 32), (0, 1, 7, 0)], strict=True):
        before = 42 + rows[0]["n_out"] if turn else said
        row |= {
            "session": session,
            "turn": turn,
            "n_new": new,
            "n_in": before + new,
            "n_cached": 16,
            "n_external": turn,
        }
    measured = read_measured(write(document)).runs[1]
    first, other, second = (measured.workload.requests[index] for index in range(3))
    assert first.prefix[0] == other.prefix[0] == Segment(0, 32)
    assert second.prefix[:2] == first.prefix
    assert second.prefix[2] == Segment(first.answer or 0, first.num_output)
    assert measured.hits == (48, 1)
    rows[2]["n_in"] += 1
    with pytest.raises(FileFormatError, match="tokens said before and new"):
        read_measured(write(document))


def test_one_token_answers_need_no_tpot(document: Any, write: Any) -> None:
    first = document["runs"][0]["requests"][0]
    first["n_out"] = 1
    del first["tpot_ms"]
    assert read_measured(write(document)).runs[0].tpot.size == 3


def refuse(path: Path) -> str:
    with pytest.raises(FileFormatError) as caught:
        read_measured(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("config",), None, "the file needs the field 'config' of type dict, not None"),
        (("runs",), {}, "the file needs the field 'runs' of type list"),
        (("config", "num_gpu_blocks"), None, "config needs the field 'num_gpu_blocks' of type int"),
        (("config", "num_gpu_blocks"), 0, "config.num_gpu_blocks must be at least 1, not 0"),
        (("config", "max_num_seqs"), True, "config needs the field 'max_num_seqs' of type int, not True"),
        (("config", "gpu_memory_utilization"), "high", "'gpu_memory_utilization' of type float, not 'high'"),
        (("config", "kv_cache_dtype"), ["fp8"], "config needs the field 'kv_cache_dtype' of type str"),
        (("config", "quant"), 8, "config needs the field 'quant' of type str"),
        (("runs", 0), 3, "runs[0] must be an object, not 3"),
        (("runs", 0, "kind"), None, "runs[0] needs the field 'kind' of type str"),
        (("runs", 0, "requests"), [], "runs[0].requests is empty"),
        (("runs", 0, "requests", 2), 7, "runs[0].requests[2] must be an object, not 7"),
        (("runs", 0, "requests", 2, "n_in"), 0, "runs[0].requests[2].n_in must be a number of at least 1, not 0"),
        (("runs", 0, "requests", 2, "n_out"), "8", "runs[0].requests[2].n_out must be a number of at least 1, not '8'"),
        (("runs", 0, "requests", 2, "arrival"), -1, "runs[0].requests[2].arrival must be a number of at least -0.001"),
        (("runs", 0, "requests", 2, "ttft_ms"), 0, "runs[0].requests[2].ttft_ms must be a number of at least 1e-06"),
        (("runs", 0, "requests", 2, "tpot_ms"), None, "runs[0].requests[2].tpot_ms must be a number"),
        (("runs", 0, "requests", 2, "e2e_ms"), float("nan"), "runs[0].requests[2].e2e_ms must be a number"),
        (("runs", 0, "groups"), [0], "runs[0] needs the field 'prefix_len' of type int"),
    ],
)
def test_a_wrong_schema_is_refused_by_field(
    document: Any, write: Any, place: tuple[Any, ...], value: Any, expected: str
) -> None:
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = value
    assert expected in refuse(write(document))


@pytest.mark.parametrize(
    ("groups", "prefix_len", "expected"),
    [
        ([0], 16, "runs[0].groups must number a prefix for each of the 4 requests"),
        (["a", "b", "a", "b"], 16, "runs[0].groups must number a prefix"),
        ([0, 0, 0, 0], 0, "runs[0].prefix_len must be at least 1, not 0"),
        ([0, 0, 0, 0], 1000, "runs[0].requests[0].n_in 256 is below runs[0].prefix_len 1000"),
    ],
)
def test_wrong_prefixes_are_refused(document: Any, write: Any, groups: Any, prefix_len: int, expected: str) -> None:
    document["runs"][0] |= {"groups": groups, "prefix_len": prefix_len}
    assert expected in refuse(write(document))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((text, ", line 1: is not JSON or gzipped JSON: Expecting ") for text in (b"", b"hello", b"{")),
        (b"\xff\xfe\x00", "is not UTF-8 text, so not JSON or gzipped JSON"),
        (b"[" * 100_000, "is not JSON or gzipped JSON: nested too deeply"),
    ],
)
def test_a_file_that_is_not_json(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(content)
    assert refuse(path).removeprefix(str(path)).startswith(problem)


def test_a_json_file_of_another_kind(write: Any) -> None:
    assert refuse(write([1, 2])) == "must hold one JSON object, not list"


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data[:20], lambda data: data[:30] + b"\0" * 40]
)
def test_damaged_gzip(tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / "measured.json.gz"
    path.write_bytes(spoil(gzip.compress(bytes(range(256)) * 8)))
    assert "gzip" in refuse(path) or "cannot be read" in refuse(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refuse(tmp_path / "no.json").startswith("cannot be read: ")
    assert refuse(tmp_path).startswith("cannot be read: ")


def test_clients_of_a_closed_loop_begin_as_they_did(document: Any, write: Any) -> None:
    rows = document["runs"][1]["requests"]  # sent every 0.1 s
    document["runs"] = [{"kind": "closed", "clients": 3, "requests": rows}]
    (run,) = read_measured(write(document)).runs
    assert run.workload.concurrency == 3
    assert [round(each.arrival, 6) for each in run.workload.requests] == [0.0, 0.1, 0.2, 0.2, 0.2, 0.2]
