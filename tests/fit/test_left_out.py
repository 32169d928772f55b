"""Rows that are not what they say are found by the table alone."""

from pathlib import Path

import numpy as np
import pandas

from infercast.lab.fit.samples import is_of_kernel, is_usual
from infercast.lab.fit.tables import read_table, takes_whole_tokens
from infercast.predict.families.moe import SEEN


def test_a_group_over_twice_its_physics_is_left_out() -> None:
    group = np.array([7, 7, 7, 9, 9, 9])
    residual = np.log([2.5, 3.0, 1.0, 1.1, 4.0, 0.9])
    assert is_usual("moe", residual, group).tolist() == [False, False, False, True, True, True]
    assert is_usual("collective", residual, group).all()
    assert is_usual("gemm", np.array([]), np.array([])).size == 0


def _run(share: float) -> pandas.DataFrame:
    """Experts on one, four and eight GPUs, which take this share of the time on one."""
    sizes = [(tokens, ep) for tokens in (8192, 16384, 32768) for ep in (1, 4, 8)]
    table = pandas.DataFrame(sizes, columns=["tokens", "ep"])
    fixed = {"gpu": "h200-sxm", "engine": "sglang", "engine_version": "0", "kernel": "triton", "dtype": "bf16"}
    fixed |= {"hidden": 4096, "inter": 1536, "experts": 128, "topk": 8, "tp": 1, "routing": "balanced"}
    for name, value in fixed.items():
        table[name] = value
    table["latency_us"] = table.tokens * np.where(table.ep == 1, 1.0, share)
    return table


def test_runs_that_take_as_long_on_a_quarter_of_the_experts_are_told_apart() -> None:
    assert takes_whole_tokens(_run(0.9)).tolist() == [False, True, True] * 3
    assert not takes_whole_tokens(_run(0.3)).any()
    part = _run(0.9).assign(whole_tokens=takes_whole_tokens(_run(0.9)))[1:2]
    assert takes_whole_tokens(part).tolist() == [True]


def test_rows_of_kernels_shorter_than_the_hosts_launch_are_of_the_host() -> None:
    physics = np.geomspace(2e-6, 3e-3, 400)
    random = np.random.default_rng(0)
    launch = 300e-6 * np.exp(0.1 * np.abs(random.normal(size=400)))
    launch[::50] *= 3.0  # where the host was slow, which says nothing of the kernel either
    by_host = np.maximum(launch, 1.2 * physics)
    kept = is_of_kernel("gemm", by_host, np.log(by_host / physics))
    assert 0 < np.count_nonzero(kept) < 200
    assert physics[kept].min() > 300e-6
    replayed = 1.2 * physics + 4e-6
    assert is_of_kernel("gemm", replayed, np.log(replayed / physics)).all()
    assert is_of_kernel("attention_decode", by_host, np.log(by_host / physics)).all()


def test_experts_far_beyond_their_physics_are_no_experts_that_anybody_serves() -> None:
    assert is_of_kernel("moe", np.ones(3), np.log([30.0, 4.0, 0.9])).tolist() == [False, True, True]


def test_spread_experts_of_an_older_collector_are_given_their_own_tokens(tmp_path: Path) -> None:
    routings = {}
    for version in ("0.5.10", "0.5.14"):
        path = tmp_path / f"{version}.parquet"
        _run(0.3).assign(engine_version=version).to_parquet(path)
        routings[version] = {rows.op.routing for rows in read_table(path, "moe")}
    assert routings == {"0.5.10": {"balanced", f"balanced{SEEN}"}, "0.5.14": {"balanced"}}
