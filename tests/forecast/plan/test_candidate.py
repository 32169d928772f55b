"""Candidates as flags, as words, and by what they share."""

from dataclasses import replace

from infercast.forecast.plan.candidate import Candidate
from infercast.models.layout import ParallelLayout

ONE = Candidate(
    "vllm@0.25",
    "h100-sxm",
    ParallelLayout(4, 1, 2, experts=True),
    replicas=3,
    quantization="fp8",
    kv_cache_dtype="fp8",
    settings=(("enable_chunked_prefill", False), ("max_num_seqs", 64)),
)


def test_options_are_flags_of_the_engine() -> None:
    assert ONE.options() == {
        "tensor-parallel-size": 4,
        "data-parallel-size": 2,
        "enable-expert-parallel": True,
        "quantization": "fp8",
        "kv-cache-dtype": "fp8",
        "no-enable-chunked-prefill": True,
        "max-num-seqs": 64,
    }
    assert Candidate("vllm@0.25", "l4").options() == {}


def test_gpus_of_all_pools() -> None:
    assert ONE.gpus == 24
    both = replace(ONE, prefill=Candidate("vllm@0.25", "l40s", replicas=2))
    assert both.gpus == 26
    assert [pool.gpu for pool in both.pools] == ["l40s", "h100-sxm"]
    assert str(both).startswith("prefill 2 x TP1 on l40s")


def test_what_candidates_share() -> None:
    other = ONE.times(1).with_settings(max_num_seqs=None)
    assert other.stem == ONE.stem
    assert other.unit != ONE.unit
    assert dict(other.settings) == {"enable_chunked_prefill": False}
    assert "enable_chunked_prefill off" in str(ONE)
