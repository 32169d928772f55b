"""Kernels of sparse and compressed attention: what they count, how they grow, and what no estimate may break."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import EncoderAttention, HyperConnection, IndexScores, SparseAttention, TopK
from infercast.ops.mixers import entries_up_to
from infercast.predict.families.sparse import latent_attention
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Roofline, limit_seconds

LEARNED = make_predictor()
H200, B200, A100, MI300X = (load_gpu(name) for name in ("h200-sxm", "b200-sxm", "a100-sxm", "mi300x"))


def lengths(queries, keys, sequences=1):
    return tuple(np.atleast_1d(np.asarray(each)) for each in (queries, keys, sequences))


def blocks(queries, keys, sequences=1, **changes):
    sizes = {"heads": 16, "head_dim": 128, "value_dim": 128, "kv_heads": 1, "selected": 2048, "block": 128}
    return SparseAttention(*lengths(queries, keys, sequences), **sizes, bytes_per_key=512, kind="msa", **changes)


def latent(queries, keys, sequences=1, kind="mla", kv_dtype="bf16", selected=2048, heads=64):
    batch = lengths(queries, keys, sequences)
    return latent_attention(*batch, heads=heads, selected=selected, kind=kind, kv_dtype=kv_dtype)


OPS = {
    "scores prompt": IndexScores(*lengths(2048, 9000), heads=64),
    "scores decode": IndexScores(*lengths(1, 9000, 32), heads=64),
    "scores compressed": IndexScores(*lengths(1, 9000, 32), heads=64, compress=4),
    "scores of blocks": IndexScores(*lengths(1, 9000, 32), heads=4, entry_bytes=256, dtype="bf16"),
    "choice prompt": TopK(*lengths(2048, 9000), topk=2048),
    "choice decode": TopK(*lengths(1, 9000, 32), topk=512, compress=4),
    "choice of blocks": TopK(*lengths(300, 9000, 4), topk=16, compress=128),
    "latent prompt": latent(2048, 9000),
    "latent decode": latent(1, 9000, 32),
    "latent packed": latent(1, 9000, 32, kv_dtype="fp8"),
    "compressed prompt": latent(1024, 9000, kind="csa", selected=512),
    "compressed decode": latent(1, 9000, 64, kind="csa", kv_dtype="fp8", selected=512),
    "heavily compressed": latent(1, 90000, 64, kind="hca", kv_dtype="fp8", selected=0),
    "blocks prompt": blocks(2048, 9000),
    "blocks decode": blocks(1, 9000, 32),
    "images": EncoderAttention(4, 1500, heads=16, head_dim=72),
    "streams in": HyperConnection(64, hidden=7168, half="pre"),
    "streams out": HyperConnection(64, hidden=7168, half="post"),
}


@pytest.mark.parametrize(("compress", "most", "tokens"), [(1, 0, 7), (4, 0, 23), (4, 3, 40), (128, 2, 5000), (1, 5, 3)])
def test_entries_are_those_of_each_token(compress, most, tokens):
    each = [min(place // compress, most) if most else place // compress for place in range(1, tokens + 1)]
    assert entries_up_to(np.array(tokens), compress, most) == sum(each)


def test_no_more_than_chosen_keys_are_multiplied():
    short, long = latent(1, 1000), latent(1, 100_000)
    assert short.num_pairs == 1000
    assert long.num_pairs == 2048
    prompt = latent(4096, 4096)
    assert prompt.num_pairs == 2048 * 2049 // 2 + 2048 * 2048
    assert latent(1, 100_000, kind="csa", selected=512).num_pairs == 512 + 128
    assert latent(1, 100_000, kind="hca", selected=0).num_pairs == 100_000 // 128 + 128


@pytest.mark.parametrize("gpu", [H200, B200], ids=lambda gpu: gpu.name)
def test_only_the_indexer_grows_with_the_context(gpu):
    """Beyond what is chosen, attention takes as long whatever the context, and scores take longer in proportion."""
    at = {keys: LEARNED.seconds(latent(1, keys, 64, kv_dtype="fp8"), gpu) for keys in (8_000, 128_000)}
    assert at[128_000] < 1.15 * at[8_000]
    scores = [LEARNED.seconds(IndexScores(*lengths(1, keys, 64), heads=64), gpu) for keys in (8_000, 128_000)]
    assert 6 < scores[1] / scores[0] < 20
    dense = [LEARNED.seconds(latent(1, keys, 64, "hca", "fp8", 0), gpu) for keys in (8_000, 1_000_000)]
    assert dense[1] > 1.5 * dense[0]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("gpu", [H200, B200, A100, MI300X], ids=lambda gpu: gpu.name)
def test_no_estimate_beats_the_hardware(name, gpu):
    for predictor in (LEARNED, Roofline()):
        estimate = predictor.estimate(OPS[name], gpu)
        assert estimate.low <= estimate.seconds <= estimate.high
        assert estimate.seconds >= 0.999 * limit_seconds(OPS[name], gpu).item()
        assert 1e-6 < estimate.seconds < 1


@pytest.mark.parametrize("name", [name for name in OPS if not name.startswith(("streams", "images"))])
def test_many_batches_are_estimated_as_each_alone(name):
    op = OPS[name]
    queries, keys, sequences = (np.ravel(each) for each in (op.queries, op.keys, op.sequences))
    scale = np.array([[1], [2], [5]])
    many = replace(op, queries=queries * np.ones_like(scale), keys=keys * scale, sequences=sequences * scale)
    together = LEARNED.estimate(many, H200)
    for place in range(3):
        alone = replace(op, queries=many.queries[place], keys=many.keys[place], sequences=many.sequences[place])
        assert together.seconds[place] == pytest.approx(LEARNED.estimate(alone, H200).seconds, rel=1e-9)


def test_images_are_estimated_together_as_alone():
    images, tokens = np.array([1, 4, 9]), np.array([100, 1500, 700])
    many = EncoderAttention(images, tokens, heads=16, head_dim=72)
    alone = [replace(many, images=int(images[place]), tokens=int(tokens[place])) for place in range(3)]
    assert LEARNED.seconds(many, H200) == pytest.approx([LEARNED.seconds(op, H200) for op in alone], rel=1e-9)


def test_prompts_and_decoding_sequences_of_one_launch_are_told_apart():
    both = latent([500, 1], [500, 4000], [1, 16])
    parts = [LEARNED.seconds(latent(500, 500), H200), LEARNED.seconds(latent(1, 4000, 16), H200)]
    assert max(parts) <= LEARNED.seconds(both, H200) <= 1.6 * sum(parts)


def test_a_padded_batch_is_as_its_sequences():
    padded = IndexScores(*lengths([1, 1], [9000, 1], [32, 0]), heads=64)
    plain = IndexScores(*lengths(1, 9000, 32), heads=64)
    assert LEARNED.seconds(padded, H200) == pytest.approx(LEARNED.seconds(plain, H200), rel=1e-9)


@pytest.mark.parametrize("name", ["scores prompt", "scores decode", "choice prompt", "latent prompt", "streams in"])
def test_measured_kernels_are_known_on_measured_gpus(name):
    assert LEARNED.estimate(OPS[name], H200).source == "measured"
    assert LEARNED.estimate(OPS[name], load_gpu("gh200")).source == "sibling"


def test_each_architecture_has_its_own_kernel_for_blocks():
    """What was learned of Triton's kernels on Hopper says nothing of Blackwell's."""
    assert {LEARNED.estimate(OPS["blocks prompt"], gpu).source for gpu in (H200, B200)} == {"measured"}
    entries = [LEARNED.choose(OPS["blocks prompt"], gpu).entry.variant for gpu in (H200, B200)]
    assert entries == ["msa prompt", "msa prompt fmha"]


def test_scores_that_are_all_alike_take_longer_to_search():
    """As those of an indexer with dummy weights; short rows of decoding sequences are searched otherwise."""
    times = {}
    for name, batch in {"prompt": (4096, 40_000, 1), "short": (1, 15_000, 4), "long": (1, 60_000, 4)}.items():
        plain = TopK(*lengths(*batch), topk=2048)
        times[name] = [LEARNED.seconds(op, H200) for op in (plain, replace(plain, tied=True))]
    assert times["prompt"][1] > 3 * times["prompt"][0]
    assert times["long"][1] > 3 * times["long"][0]
    assert times["short"][1] < 2 * times["short"][0]


@pytest.mark.parametrize("heads", [8, 16])
def test_a_lone_sequence_with_few_heads_is_cut_on_blackwell_too(heads: int) -> None:
    """vLLM takes TensorRT-LLM's kernel for at most 16 heads of a GPU, FlashMLA's, which does not cut, for more."""
    one, many = np.array([[1]]), np.array([[4000]])

    def seconds(heads: int, gpu: str) -> float:
        op = latent_attention(one, many, one, heads=heads, selected=2048, kind="mla", kv_dtype="bf16")
        return float(np.ravel(make_predictor().estimate(op, load_gpu(gpu)).seconds)[0])

    assert seconds(heads, "b200-sxm") < seconds(heads, "h200-sxm")
    assert seconds(128, "b200-sxm") > 1.5 * seconds(heads, "b200-sxm")
