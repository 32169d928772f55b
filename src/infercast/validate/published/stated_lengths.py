"""Lengths of prompts and answers of a published row, one by one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import product
from statistics import NormalDist

import numpy as np

from infercast.validate.published.load import SHARES, RowReader, chat_lengths

UNIFORM = re.compile(r"random in=(\d+) out=(\d+) \(sglang bench")
"""Lengths that SGLang's benchmark draws between 1 and the stated one."""
BENCH_SEED = 1
"""Its seed: the lengths that it draws are known one by one."""
USUAL = (100, 128, 200, 256, 500, 512, 1000, 1024, 2000, 2048, 4000, 4096, 8000, 8192, 16000, 16384)
"""Longest prompts and answers that people ask it for."""
SAME_MEAN, MOST_DRAWN = 0.0005, 5000
STATED = re.compile(r"(\d+)/(\d+)$")
"""Stated lengths of prompts and answers, behind how they vary."""
RANGED = re.compile(r"random (\d+)/(\d+) range ([\d.]+)")
"""The same in words, with the share of each that the shortest has."""
NOT_SERVED = ("image", "vision", "video", "audio")
"""Words of data sets whose prompts hold more than text."""
DATASETS = {
    "lm-arena-chat": (450.0, 1.1), "gpqa": (260.0, 0.6), "sourcegraph-fim": (1200.0, 0.8), "openorca": (222.3, 0.9),
}  # fmt: skip
"""Mean prompts of data sets where a table has none, and how they vary: the standard deviation of logarithms. Chats of
LM Arena have several turns, and nobody states their length: tokens a second of 14 runs of seven dense models come out
with 360 to 600 tokens each."""
CHATS = ("sharegpt", "lm-arena", "openorca", "cnn", "longbench", "gpqa", "sourcegraph", "mlperf", "hf")
"""How descriptions of natural prompts begin: no two are of one length."""
EQUAL = ("random", "synthetic", "fixed", "exact")
"""Words of descriptions of prompts of one length."""
ANSWERS = 0.8
"""The same of natural answers."""
LONG_CHATS = (0.55, 0.15)
"""The same of prompts and answers of chats chosen to be long, as the one publisher has them who lists them."""
MOST_MEANS = 4.0
"""No natural prompt or answer is longer than so many means: clients ask for no more, and longer ones are left out."""
MOST_CHATTED = 400.0
"""Mean lengths up to which chats are as benchmarks cut them, at 1,000 tokens."""
SOME_EARLY = 0.02
"""A mean that leaves a smaller share of answers to end early is that of answers of one length."""
CONTRADICTED = 1.5
"""A stated length that the mean is so many times longer or shorter than is that of another run."""

Lengths = tuple[list[int], list[int]]


def read_lengths(row: RowReader, count: int) -> Lengths:
    """Lengths of all prompts and answers."""
    stated = row.text("len_dist")
    if any(word in f"{stated} {row.text('bench_cmd')}".lower() for word in NOT_SERVED):
        raise row.wrong(f"len_dist {stated!r} is not modelled: prompts are text")
    means = _means(row)
    drawn = _drawn_again(row, means, count)
    if drawn is not None:
        return drawn
    shuffle = np.random.default_rng(0)
    lower = stated.lower()
    shares, lengths = SHARES.match(lower), STATED.search(stated)
    if shares is not None and lengths is not None:
        low, high = (float(share or 1) for share in shares.groups())
        return _between(count, shuffle, [(low * int(most), high * int(most)) for most in lengths.groups()])
    ranged = RANGED.search(row.text("notes"))
    if ranged is not None:
        low = float(ranged[3])
        return _between(count, shuffle, [(max(1.0, low * int(most)), float(most)) for most in ranged.groups()[:2]])
    if "uniform 1..l" in lower:
        row.assume(f"lengths are uniform up to twice their means, {means[0]:,.0f} and {means[1]:,.0f}")
        return _between(count, shuffle, [(1.0, 2 * mean - 1) for mean in means])
    lower = lower or ("sharegpt" if "sharegpt" in row.text("concurrency_or_rate").lower() else "")
    if lower.startswith(CHATS) or _is_chat(row, means):
        return _natural(row, lower, means, count, shuffle)
    if not any(word in lower for word in EQUAL):
        row.assume(f"every prompt has {means[0]:,.0f} tokens and every answer {means[1]:,.0f}, their means")
    return [max(1, round(means[0]))] * count, _answers(row, means, count, shuffle)


def _drawn_again(row: RowReader, means: tuple[float, float], count: int) -> Lengths | None:
    """Lengths that SGLang's benchmark draws between 1 and the longest, one by one; None where it was another one.

    Where the longest are not stated, usual ones are tried: right are those with which drawn lengths have the means.
    """
    stated = UNIFORM.match(row.text("len_dist"))
    if stated is not None and not _contradicts([int(most) / 2 for most in stated.groups()], means):
        return _draw(int(stated[1]), int(stated[2]), count)
    text = f"{row.text('len_dist')} {row.text('server_cmd')} {row.text('bench_cmd')}"
    if "sglang" not in text or count > MOST_DRAWN:
        return None
    for longest in product(USUAL, repeat=2):
        if _contradicts([each / 2 for each in longest], means):
            continue
        drawn = _draw(longest[0], longest[1], count)
        if all(abs(sum(each) / count / mean - 1) < SAME_MEAN for each, mean in zip(drawn, means, strict=True)):
            row.assume(
                f"lengths are uniform up to {longest[0]:,} and {longest[1]:,}: those that are drawn have the means"
            )
            return drawn
    return None


def _draw(longest_input: int, longest_output: int, count: int) -> Lengths:
    generator = np.random.RandomState(BENCH_SEED)
    inputs, outputs = (generator.randint(1, most + 1, size=count).tolist() for most in (longest_input, longest_output))
    return inputs, outputs


def _answers(row: RowReader, means: tuple[float, float], count: int, shuffle: np.random.Generator) -> list[int]:
    """Answers of one length, or some of them shorter where their mean is below what was asked for."""
    asked = STATED.search(row.text("len_dist"))
    limit = float(asked[2]) if asked else 0.0
    command = row.text("bench_cmd")
    lengths = [re.search(rf"--random-{each}-len[ =](\d+)", command) for each in ("input", "output")]
    if lengths[0] and lengths[1] and not _contradicts([float(lengths[0][1])], means[:1]):
        limit = float(lengths[1][1])
    early = 2 * (1 - means[1] / limit) if limit else 0.0
    if not SOME_EARLY < early < 1:
        return [max(1, round(means[1]))] * count
    row.assume(f"{early:.0%} of the answers end anywhere before their {limit:,.0f} tokens")
    ends = np.where(shuffle.random(count) < early, shuffle.integers(1, round(limit), count), round(limit))
    return [int(end) for end in ends]


def _means(row: RowReader) -> tuple[float, float]:
    """Mean lengths of prompts and answers."""
    inputs, outputs = row.number("mean_in"), row.number("mean_out")
    if inputs is None:
        lower = row.text("len_dist").lower()
        known = next((value for name, value in DATASETS.items() if name in lower), None)
        if known is not None:
            inputs = known[0]
            row.assume(f"prompts have {inputs:,.0f} tokens in the mean: those of {row.text('len_dist')} are not stated")
    if inputs is None or outputs is None:
        raise row.wrong("needs the columns 'mean_in' and 'mean_out'")
    return inputs, outputs


def _contradicts(stated: Sequence[float], means: Sequence[float]) -> bool:
    """Whether means are not those of the stated lengths."""
    pairs = zip(stated, means, strict=True)
    return any(abs(math.log(mean / length)) > math.log(CONTRADICTED) for length, mean in pairs)


def _is_chat(row: RowReader, means: Sequence[float]) -> bool:
    """Whether a row names lengths of another run of its page, and was one of chats."""
    found = re.match(r"random in=(\d+) out=(\d+)", row.text("len_dist"))
    if found is None or not _contradicts([float(length) for length in found.groups()][:1], means[:1]):
        return False
    row.assume(f"lengths of chats: means of {means[0]:,.0f} and {means[1]:,.0f} are not {row.text('len_dist')!r}")
    return True


def _natural(
    row: RowReader, stated: str, means: tuple[float, float], count: int, shuffle: np.random.Generator
) -> Lengths:
    """Lengths of natural prompts and answers, of which means are known."""
    row.assume("lengths are log-normal around their means")
    if max(means) < MOST_CHATTED and stated.startswith(("sharegpt", "random")):
        inputs, outputs = (
            chat_lengths(name, mean, count, shuffle) for name, mean in zip(("isl", "osl"), means, strict=True)
        )
        return inputs, outputs
    spread = next((value[1] for name, value in DATASETS.items() if name in stated), ANSWERS)
    spreads = LONG_CHATS if stated.startswith(("sharegpt", "random")) else (spread, ANSWERS)
    inputs, outputs = (log_normal(mean, each, count, shuffle) for mean, each in zip(means, spreads, strict=True))
    return inputs, outputs


def log_normal(mean: float, spread: float, count: int, shuffle: np.random.Generator) -> list[int]:
    """So many lengths of that mean, none many times as long, evenly spaced in probability and in random order."""
    ranks = np.array([NormalDist().inv_cdf((position + 0.5) / count) for position in range(count)])
    shape, longest = np.exp(spread * ranks), MOST_MEANS * mean
    low, high = mean / shape.max(), mean / shape.min()
    for _ in range(40):  # halve the range of the median until the lengths have their mean
        middle = (low + high) / 2
        lengths = np.minimum(middle * shape, longest)
        low, high = (middle, high) if lengths.mean() < mean else (low, middle)
    return [max(1, int(length)) for length in shuffle.permutation(np.rint(lengths))]


def _between(count: int, shuffle: np.random.Generator, ends: Sequence[tuple[float, float]]) -> Lengths:
    drawn = [
        shuffle.integers(round(low), max(round(low), round(high)), count, endpoint=True).tolist() for low, high in ends
    ]
    return drawn[0], drawn[1]
