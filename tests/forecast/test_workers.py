"""Who does the work: same answers in the same order, lost work is done again, and what is known is not asked twice."""

import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import factorial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.forecast.plan.candidate import Candidate, Row, Stage
from infercast.forecast.plan.executors import (
    TRIES,
    Processes,
    RayCluster,
    Resumed,
    WorkerError,
    executor_for,
    from_plain,
    pieces_of,
    to_plain,
)
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.search import plan
from infercast.forecast.slo import Percentiles, parse_slo
from infercast.models.layout import ParallelLayout
from infercast.serve.workload.synthetic import synthetic_workload

JOBS = """
    import os, time
    from pathlib import Path
    from infercast.errors import InputError

    def whose(item):
        return item, os.getpid()

    def die_once(folder, item):
        mark = Path(folder) / "died"
        if item == 5 and not mark.exists():
            mark.write_text("")
            os._exit(9)
        return item * item

    def die(item):
        os._exit(9)

    def fail_once(folder, item):
        mark = Path(folder) / f"failed{item}"
        if item == 3 and not mark.exists():
            mark.write_text("")
            raise OSError("gone")
        return item * item

    def refuse(item):
        raise InputError("no such thing")

    def slow(item):
        time.sleep(0.05 * (8 - item))
        return item

    def stuck(item):
        time.sleep(600)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that workers can import."""
    (tmp_path / "jobs_of_a_test.py").write_text(textwrap.dedent(JOBS), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import jobs_of_a_test  # noqa: PLC0415 - it was just written

    yield jobs_of_a_test
    del sys.modules["jobs_of_a_test"]


@pytest.fixture
def two() -> Iterator[Processes]:
    executor = Processes(2)
    yield executor
    executor.close()


def test_answers_come_in_order_from_other_processes(two: Processes, jobs: ModuleType) -> None:
    assert list(two.map(jobs.slow, range(8))) == list(range(8))
    pairs = list(two.map(jobs.whose, range(20)))
    assert [item for item, _ in pairs] == list(range(20))
    assert os.getpid() not in {process for _, process in pairs}
    assert list(two.map(factorial, range(20))) == list(map(factorial, range(20)))  # the same workers again


def test_a_worker_of_another_pool_starts_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert Processes(2).width == 1


def test_work_of_a_killed_worker_is_done_again(two: Processes, jobs: ModuleType, tmp_path: Path) -> None:
    assert list(two.map(partial(jobs.die_once, str(tmp_path)), range(12))) == [item * item for item in range(12)]
    assert (tmp_path / "died").exists()


def test_work_that_always_ends_its_worker_is_given_up(two: Processes, jobs: ModuleType) -> None:
    with pytest.raises(WorkerError, match=f"ended {TRIES} times"):
        list(two.map(jobs.die, range(4)))
    assert list(two.map(factorial, range(4))) == [1, 1, 2, 6]


def test_failed_work_is_done_again_and_refused_work_is_not(two: Processes, jobs: ModuleType, tmp_path: Path) -> None:
    assert list(two.map(partial(jobs.fail_once, str(tmp_path)), range(8))) == [item * item for item in range(8)]
    with pytest.raises(InputError, match="no such thing"):
        list(two.map(jobs.refuse, range(8)))


def test_progress_is_told(jobs: ModuleType) -> None:
    told: list[tuple[int, int]] = []
    with executor_for(workers=2, progress=lambda done, total: told.append((done, total))) as executor:
        assert executor.width == 2
        list(executor.map(factorial, range(40)))
    assert told[-1] == (40, 40)
    assert told == sorted(told)


def test_one_worker_is_this_process() -> None:
    with executor_for(workers=1) as executor:
        assert list(executor.map(lambda item: os.getpid(), range(3))) == [os.getpid()] * 3


def test_short_work_is_done_here_and_long_work_is_not(jobs: ModuleType) -> None:
    patient = Processes(2, patience=60.0)
    assert {process for _, process in patient.map(jobs.whose, range(8))} == {os.getpid()}
    hasty = Processes(2, patience=0.1)
    try:
        assert list(hasty.map(jobs.slow, range(8))) == list(range(8))
        assert os.getpid() not in {process for _, process in hasty.map(jobs.whose, range(8))}
    finally:
        hasty.close()


def test_a_reader_who_wants_no_more_ends_the_work(two: Processes, jobs: ModuleType) -> None:
    answers = two.map(jobs.slow, range(8))
    assert next(answers) == 0
    answers.close()  # type: ignore[attr-defined]
    assert list(two.map(factorial, range(4))) == [1, 1, 2, 6]


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_leaves_nothing_behind(jobs: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    text = """
        import signal, threading, time, os
        from infercast.forecast.plan.executors import executor_for
        import jobs_of_a_test

        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background are started without
            with executor_for(workers=2) as executor:
                list(executor.map(jobs_of_a_test.whose, range(4)))  # workers are there
                print(*executor._pool._processes, flush=True)
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                list(executor.map(jobs_of_a_test.stuck, range(4)))
    """
    script.write_text(textwrap.dedent(text), "utf-8")
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    for process in map(int, done.stdout.split()):
        assert not is_running(process)


def is_running(process: int) -> bool:
    for _ in range(50):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def test_pieces_hold_all_items_and_keep_all_busy() -> None:
    for count in (1, 2, 7, 100, 5000):
        pieces = pieces_of(range(count), 4)
        assert [item for piece in pieces for item in piece] == list(range(count))
        assert len(pieces) >= min(count, 32)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="workers must be at least 1, not 0"), executor_for(workers=0):
        pass
    with pytest.raises(InputError, match="--workers 2"), executor_for(workers=2, ray="auto"):
        pass


CANDIDATE = Candidate("vllm@0.25", "h200-sxm", ParallelLayout(tensor=2), 3, settings=(("max_num_seqs", 64),))


def row_of(candidate: Candidate, headroom: float) -> Row:
    return Row(candidate, Stage.SIMULATED, 12.5, None, np.float64(headroom) / 3, reason="dearer")


def test_records_come_back_as_they_were() -> None:
    row = replace(row_of(replace(CANDIDATE, prefill=CANDIDATE), 1.0), rate=float("inf"))
    again = from_plain(json.loads(json.dumps(to_plain(row))))
    assert again == row
    assert from_plain(to_plain(Percentiles(1.0, 0.1, 0.2, 0.3, 1 / 3))) == Percentiles(1.0, 0.1, 0.2, 0.3, 1 / 3)
    with pytest.raises(ValueError, match="no record of infercast"):
        from_plain({"type": "subprocess:Popen", "args": ["true"]})


class Counted(Processes):
    """Knows what it was asked to do."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[Any] = []

    def map(self, function: Any, items: Any) -> Any:
        for item in items:
            self.asked.append(item)
            yield function(item)


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path, first = tmp_path / "rows.jsonl", Counted()
    candidates = [CANDIDATE.times(count) for count in range(1, 7)]
    judge = partial(row_of, headroom=2.0)
    answers = Resumed(first, path).map(judge, candidates)
    begun = [next(answers) for _ in range(3)]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"key": "torn')
    second = Counted()
    resumed = Resumed(second, path)
    assert resumed.num_known == 3
    assert list(resumed.map(judge, candidates)) == list(map(judge, candidates))
    assert begun == list(map(judge, candidates[:3]))
    assert second.asked == candidates[3:]
    third = Counted()
    assert list(Resumed(third, path).map(judge, reversed(candidates))) == list(map(judge, reversed(candidates)))
    assert not third.asked
    list(Resumed(third, path).map(partial(row_of, headroom=3.0), candidates[:2]))  # another question
    assert third.asked == candidates[:2]


@pytest.fixture(scope="module")
def question() -> Question:
    workload = synthetic_workload(count=30, rate=4.0, input_lengths=200, output_lengths=20)
    slo = parse_slo("ttft_p95<500ms,tpot_p95<40ms")
    return Question(
        "qwen3-0.6b", workload, slo, ("l4", "l40s"), ("vllm@0.25",), prices=(1.0, 1.5), max_gpus=1, settings=((),)
    )


def test_a_plan_does_not_depend_on_who_makes_it(question: Question, two: Processes, tmp_path: Path) -> None:
    alone, together = plan(question), plan(question, two)
    assert alone.winner is not None
    assert together == alone
    path, counted = tmp_path / "rows.jsonl", Counted()
    assert plan(question, Resumed(Processes(1), path)) == alone
    assert plan(question, Resumed(counted, path)) == alone
    assert not counted.asked


def test_the_same_candidate_twice_is_judged_once(tmp_path: Path) -> None:
    counted = Counted()
    rows = list(Resumed(counted, tmp_path / "rows.jsonl").map(partial(row_of, headroom=2.0), [CANDIDATE, CANDIDATE]))
    assert rows[0] == rows[1]
    assert counted.asked == [CANDIDATE]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n", "utf-8")
    with pytest.raises(InputError, match="line 1 is no answer of an earlier search"):
        Resumed(Processes(1), path)
    assert path.read_text("utf-8") == "my notes\n"
    with pytest.raises(InputError, match="which does not exist"):
        Resumed(Processes(1), tmp_path / "nowhere" / "rows.jsonl")


def test_without_ray_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install ray"):
        RayCluster("auto")


def test_a_cluster_that_does_not_answer_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(InputError, match=r"no Ray cluster answers at '127\.0\.0\.1:1': "):
        RayCluster("127.0.0.1:1")


@pytest.mark.filterwarnings("ignore")
def test_a_real_ray_gives_the_same(jobs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)]))
    with executor_for(ray="local") as executor:
        assert list(executor.map(factorial, range(30))) == list(map(factorial, range(30)))
        pairs = list(executor.map(jobs.whose, range(30)))
        assert [item for item, _ in pairs] == list(range(30))
        assert os.getpid() not in {process for _, process in pairs}
        assert list(executor.map(partial(jobs.die_once, str(tmp_path)), range(12))) == [item**2 for item in range(12)]
        assert (tmp_path / "died").exists()
        with pytest.raises(InputError, match="no such thing"):
            list(executor.map(jobs.refuse, range(8)))
