"""A whole sweep on a GPU that exists on paper."""

import tomllib
from pathlib import Path
from typing import Any

import pandas
import pytest

from infercast.errors import InputError, UnknownNameError
from infercast.lab.measure import sweep
from infercast.lab.measure.rows import HEAVY_FLOPS, Case, Kernel, Store, Timing, sweep_cases
from infercast.lab.measure.sweep import BATCH, batches, run_sweep

MOE, MIXED = 726, 1_804
"""Cases of a family; test_plan.py counts them."""


def test_batches_are_all_light_or_all_heavy_and_lose_nothing() -> None:
    cases = sweep_cases()[:2000]
    found = list(batches(cases))
    assert all(len({case.flops >= HEAVY_FLOPS for case in batch}) == 1 for batch in found)
    assert max(map(len, found)) == BATCH
    assert sorted(case.key for batch in found for case in batch) == sorted(case.key for case in cases)
    light = [case for batch in found for case in batch if case.flops < HEAVY_FLOPS]
    assert light == [case for case in cases if case.flops < HEAVY_FLOPS], "in their order"


def test_everything_is_measured_once(gpu: Any, tmp_path: Path) -> None:
    told = []
    result = run_sweep(tmp_path, minutes=10, families=["moe"], progress=lambda *words: told.append(words))
    assert (result.gpu, result.rows, result.left) == ("h200-sxm", MOE, 0)
    assert result.tables == {"moe": MOE}
    table = pandas.read_parquet(tmp_path / "h200-sxm" / "moe.parquet")
    assert len(table) == MOE
    assert {"engine", "tokens", "latency_us", "burst_us", "warm_us", "kernel", "tile", "watts", "tuned"} <= set(table)
    assert table.tile.eq("64x8_64x16_4x1").all()
    assert table.split_k.all()
    assert {kind for kind, _ in gpu.batches} == {"light", "heavy"}
    assert told[0] == (0, MOE, 0.0)
    assert [words[0] for words in told] == sorted(words[0] for words in told)


def test_meta_says_what_was_done(gpu: Any, tmp_path: Path) -> None:
    run_sweep(tmp_path, minutes=10, families=["moe"])
    facts = tomllib.loads((tmp_path / "h200-sxm" / "meta.toml").read_text())
    assert (facts["gpu"], facts["driver"], facts["kernels"], facts["rows"]) == ("h200-sxm", "580", "torch", MOE)
    assert (facts["sm_mhz_before"], facts["watts_during"], facts["skipped"]) == (1980.0, 120.0, "")
    assert "GPU's own clock" in facts["protocol"]


def test_an_interrupted_sweep_goes_on_without_loss_or_repetition(gpu: Any, tmp_path: Path) -> None:
    gpu.interrupt_after = 2
    with pytest.raises(KeyboardInterrupt):
        run_sweep(tmp_path, minutes=10, families=["moe"])
    folder = tmp_path / "h200-sxm"
    kept = list(Store(folder).rows())
    assert len(kept) == sum(size for _, size in gpu.batches) > 0
    assert tomllib.loads((folder / "meta.toml").read_text())["rows"] == len(kept)
    gpu.interrupt_after = None
    result = run_sweep(tmp_path, minutes=10, families=["moe"])
    assert result.rows == MOE - len(kept)
    rows = [row for row in Store(folder).rows() if "table" not in row]
    assert rows[: len(kept)] == kept
    assert len(rows) == len({row["key"] for row in rows}) == MOE
    assert run_sweep(tmp_path, minutes=10, families=["moe"]).rows == 0
    assert result.tables == {"moe": MOE}


def test_it_stops_at_its_budget_and_takes_up_there(gpu: Any, clock: Any, tmp_path: Path) -> None:
    gpu.seconds_a_case = 1.0
    begin = clock.now
    result = run_sweep(tmp_path, minutes=4, families=["moe"])
    assert 240 <= clock.now - begin <= 242, "also in the middle of a batch"
    assert 235 <= result.rows <= 242
    assert result.left == MOE - result.rows
    assert result.tables == {"moe": result.rows}
    minutes = tomllib.loads((tmp_path / "h200-sxm" / "meta.toml").read_text())["minutes"]
    assert minutes == pytest.approx(4, abs=0.05)
    second = run_sweep(tmp_path, minutes=60, families=["moe"])
    assert second.rows == result.left
    assert tomllib.loads((tmp_path / "h200-sxm" / "meta.toml").read_text())["minutes"] > minutes + 5


def test_what_cannot_run_is_counted_by_reason(gpu: Any, tmp_path: Path) -> None:
    gpu.unable = {"moe": ImportError("No module named 'vllm'"), "attention_mixed": RuntimeError("no\nmemory")}
    result = run_sweep(tmp_path, minutes=10, families=["moe", "attention_mixed"])
    assert result.tally.skipped == {"moe: No module named 'vllm'": MOE, "attention_mixed: RuntimeError no": MIXED}
    assert (result.rows, result.left, result.tables) == (0, 0, {})
    facts = tomllib.loads((tmp_path / "h200-sxm" / "meta.toml").read_text())
    assert f"{MOE} x moe: No module named 'vllm'" in facts["skipped"]


def test_another_version_of_the_engine_costs_no_rows(gpu: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Packages that lack a function raise errors of any kind."""

    def gone(case: Case) -> Any:
        raise AttributeError("get_moe_configs")

    monkeypatch.setattr(gpu, "details", gone)
    gpu.unable = {"attention_mixed": AttributeError("no operator _vllm_fa3_C")}
    result = run_sweep(tmp_path, minutes=10, families=["moe", "attention_mixed"])
    assert result.rows == MOE
    assert result.tally.skipped == {"attention_mixed: AttributeError no operator _vllm_fa3_C": MIXED}
    assert "tuned" not in pandas.read_parquet(tmp_path / "h200-sxm" / "moe.parquet")


def test_unsteady_kernels_are_repeated(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = gpu.time

    def shaky(launches: Any, repeats: int) -> list[Timing]:
        if repeats > 4:
            return list(steady(launches, repeats))
        runs = [[Kernel("k", "1", "1", 10.0 + number)] for number in range(repeats)]
        return [Timing(runs, runs, runs) for _ in launches]

    monkeypatch.setattr(gpu, "time", shaky)
    run_sweep(tmp_path, minutes=10, families=["moe"])
    rows = [row for row in Store(tmp_path / "h200-sxm").rows() if "table" not in row]
    light = {case.key for case in sweep_cases(["moe"]) if case.flops < HEAVY_FLOPS}
    assert {row["repeats"] for row in rows if row["key"] in light} == {12}
    assert {row["repeats"] for row in rows if row["key"] not in light} == {3}


def test_runs_that_the_profiler_lost_are_no_rows(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "time_sustained", lambda launches, *_: [Timing([[]], [[]], [[]]) for _ in launches])
    result = run_sweep(tmp_path, minutes=10, families=["moe"])
    (reason,) = result.tally.skipped
    assert "the profiler saw no kernel" in reason
    assert result.rows == sum(case.flops < HEAVY_FLOPS for case in sweep_cases(["moe"]))


def test_engines_are_not_mixed(gpu: Any, tmp_path: Path) -> None:
    run_sweep(tmp_path, minutes=10, families=["moe"], engine="torch")
    path = tmp_path / "h200-sxm" / "meta.toml"
    path.write_text(path.read_text().replace('kernels = "torch"', 'kernels = "vllm"'))
    with pytest.raises(InputError, match="measured with --engine vllm; choose another --out"):
        run_sweep(tmp_path, minutes=10, families=["moe"], engine="torch")


def test_wrong_words_are_refused_before_anything_is_written(gpu: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--engine vllm needs vLLM"):
        run_sweep(tmp_path, minutes=10, engine="vllm")
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'; did you mean vllm"):
        run_sweep(tmp_path, minutes=10, engine="vlm")
    assert not list(tmp_path.iterdir())


def test_the_monitor_is_stopped_however_it_ends(gpu: Any, monitor: Any, tmp_path: Path, monkeypatch: Any) -> None:
    before = monitor.stopped
    gpu.interrupt_after = 0
    with pytest.raises(KeyboardInterrupt):
        run_sweep(tmp_path, minutes=10, families=["moe"])
    monkeypatch.setattr(sweep, "open_bench", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_sweep(tmp_path, minutes=10, families=["moe"])
    assert monitor.stopped == before + 2


def test_keys_do_not_depend_on_the_order_of_columns() -> None:
    assert Case("gemm", {"m": 1, "n": 2}).key == Case("gemm", {"n": 2, "m": 1}).key
