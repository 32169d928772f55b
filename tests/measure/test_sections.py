"""The profiler's record, cut at markers."""

from typing import Any

import pytest

from infercast.lab.measure.rows import LostRecordError, Sections, cut, split_light, split_sustained

MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def events(*names: str) -> list[dict[str, Any]]:
    """Kernels one after the other; each lasts as many microseconds as its place."""
    return [
        {
            "cat": "kernel",
            "name": name,
            "ts": 10.0 * place,
            "dur": place,
            "args": {"grid": [place, 1, 1], "block": [128, 1, 1]},
        }
        for place, name in enumerate(names)
    ]


def names(sections: Sections) -> list[list[str]]:
    return [[kernel.name for kernel in kernels] for kernels in sections]


def test_kernels_lie_between_marks() -> None:
    record = events("before", MARK, "a", "b", MARK, "c", MARK)
    assert names(cut(record)) == [["a", "b"], ["c"]]
    assert names(cut(reversed(record))) == [["a", "b"], ["c"]], "by time, not by place in the file"


def test_a_kernel_keeps_its_time_and_grid() -> None:
    kernel = cut(events(MARK, "x", "a", MARK))[0][1]
    assert (kernel.name, kernel.grid, kernel.block, kernel.microseconds) == ("a", "2x1x1", "128x1x1", 2.0)


def test_only_work_of_the_gpu_counts() -> None:
    record = events(MARK, "a", MARK)
    record.append({"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 11.0, "dur": 5})
    record.append({"name": "process_name", "ph": "M"})
    record.append({"cat": "gpu_memset", "name": "Memset", "ts": 12.0, "dur": 1})
    sections = cut(record)
    assert names(sections) == [["a", "Memset"]]
    assert sections[0][1].grid == ""


def test_no_marks_no_sections() -> None:
    assert cut([]) == []
    assert cut(events("a", "b")) == []
    assert cut(events("a", MARK, "b")) == [], "what follows the last mark is nobody's"


def test_light_kernels_are_cold_then_warm() -> None:
    one = [MARK, "{0}-cold", MARK, "{0}-warm", MARK, "flush"]
    record = events(*(name.format(launch) for launch in "ab" for _ in range(4) for name in one), MARK)
    first, second = split_light(cut(record), launches=2, repeats=4)
    assert names(first.cold) == [["a-cold"]] * 4
    assert names(first.warm) == [["a-warm"]] * 4
    assert first.burst == first.cold
    assert names(second.warm) == [["b-warm"]] * 4
    assert first.is_whole


def test_heavy_kernels_run_in_rounds_then_after_a_pause() -> None:
    rounds = [name for _ in range(4) for launch in "ab" for name in ("touch", MARK, f"{launch}-hot", MARK)]
    pauses = [n for launch in "ab" for n in ("touch", MARK, MARK, f"{launch}-burst", MARK, f"{launch}-warm", MARK)] * 3
    first, second = split_sustained(cut(events("heat", *rounds, *pauses, MARK)), launches=2, repeats=4, bursts=3)
    assert names(first.cold) == [["a-hot"]] * 4
    assert names(second.cold) == [["b-hot"]] * 4
    assert (names(first.burst), names(first.warm)) == ([["a-burst"]] * 3, [["a-warm"]] * 3)
    assert (names(second.burst), names(second.warm)) == ([["b-burst"]] * 3, [["b-warm"]] * 3)


def test_a_record_with_a_mark_too_few_is_refused() -> None:
    sections = cut(events(MARK, "a", MARK, "b", MARK))
    with pytest.raises(LostRecordError, match="lost 1 of 3"):
        split_light(sections, launches=1, repeats=1)
    with pytest.raises(LostRecordError, match="lost 4 of 6"):
        split_sustained(sections, launches=1, repeats=1, bursts=1)


def test_a_run_without_a_kernel_is_seen() -> None:
    (timing,) = split_light(cut(events(MARK, "a", MARK, MARK, MARK)), launches=1, repeats=1)
    assert not timing.is_whole
