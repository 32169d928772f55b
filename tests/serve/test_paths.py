from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercast.serve.cache.blocks import PrefixPaths
from infercast.serve.workload.request import Request, Segment


class Names(PrefixPaths):
    """Paths block by block."""

    def shared_keys(self, request: Request) -> list[tuple[int, int]]:
        """A name for each block: its edge and its position."""
        path, end = self.path(request), 0
        for before, (edge, start, stop) in zip([(0, 0, 0), *path], path, strict=False):
            assert start == end < stop  # without holes
            assert edge != before[0]
            end = stop
        return [(edge, position) for edge, start, stop in path for position in range(start, stop)]


def request(*prefix: tuple[int, int], own: int = 0) -> Request:
    segments = tuple(Segment(content, num_tokens) for content, num_tokens in prefix)
    return Request(0.0, sum(segment.num_tokens for segment in segments) + own, 1, segments)


def test_only_whole_blocks_have_names() -> None:
    names = Names(4)
    assert [len(names.shared_keys(request((1, tokens), own=9))) for tokens in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_no_prefix_no_names() -> None:
    assert Names(4).shared_keys(request(own=40)) == []


def test_equal_prefixes_have_equal_names() -> None:
    names = Names(4)
    assert names.shared_keys(request((1, 8), own=3)) == names.shared_keys(request((1, 8), own=30))


def test_different_contents_have_nothing_in_common() -> None:
    names = Names(4)
    first, second = names.shared_keys(request((1, 8))), names.shared_keys(request((2, 8)))
    assert not set(first) & set(second)


def test_a_shorter_last_segment_shares_its_whole_blocks() -> None:
    names = Names(4)
    long, short = names.shared_keys(request((1, 12))), names.shared_keys(request((1, 9), own=3))
    assert short == long[:2]


def test_what_follows_a_segment_depends_on_its_length() -> None:
    # The second segment starts at token 4 in one and at token 8 in the other: its tokens stand elsewhere.
    names = Names(4)
    early, late = names.shared_keys(request((1, 4), (2, 8))), names.shared_keys(request((1, 8), (2, 8)))
    assert early[0] == late[0]
    assert not set(early[1:]) & set(late[1:])


def test_a_block_across_segments_needs_both_to_be_equal() -> None:
    # Block 1 holds tokens 4 and 5 of the first segment and two tokens of the second.
    names = Names(4)
    both = names.shared_keys(request((1, 6), (2, 2)))
    other_end = names.shared_keys(request((1, 6), (3, 2)))
    other_start = names.shared_keys(request((3, 6), (2, 2)))
    assert len(both) == 2
    assert other_end[0] == both[0]
    assert len({both[1], other_end[1], other_start[1]}) == 3


def test_equal_ids_at_different_positions_do_not_match() -> None:
    names = Names(4)
    first, second = names.shared_keys(request((1, 4), (2, 4))), names.shared_keys(request((2, 4), (1, 4)))
    assert not set(first) & set(second)


def test_a_segment_repeated_is_not_a_segment_continued() -> None:
    names = Names(4)
    twice, once = names.shared_keys(request((1, 4), (1, 4))), names.shared_keys(request((1, 8)))
    assert twice[0] == once[0]
    assert twice[1] != once[1]


prefixes = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), max_size=4)


@given(prefixes, prefixes, st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_names_are_equal_exactly_if_all_tokens_so_far_are(
    first: list[tuple[int, int]], second: list[tuple[int, int]], block_size: int
) -> None:
    names = Names(block_size)
    keys = [names.shared_keys(request(*prefix)) for prefix in (first, second)]
    tokens = [[(content, place) for content, count in prefix for place in range(count)] for prefix in (first, second)]
    for position, (one, other) in enumerate(zip(*keys, strict=False)):
        end = (position + 1) * block_size
        assert (one == other) == (tokens[0][:end] == tokens[1][:end])


@pytest.mark.parametrize("block_size", range(1, 6))
def test_random_prompts_share_the_blocks_that_they_share_by_name(reference_cache: Any, block_size: int) -> None:
    rng = Random(block_size)
    for _ in range(200):
        paths, names = Names(block_size), reference_cache["PrefixNames"](block_size)
        same: dict[object, object] = {}
        asked: list[tuple[tuple[int, int], ...]] = [()]
        for _ in range(rng.randint(2, 30)):
            before = rng.choice(asked)
            before = before[: rng.randint(0, len(before))]
            if before and rng.random() < 0.3:  # the same content, longer or shorter
                before = (*before[:-1], (before[-1][0], rng.randint(1, 9)))
            more = [(rng.randint(0, 2), rng.randint(1, 9)) for _ in range(rng.randint(0, 3))]
            asked.append((*before, *more))
            answer = rng.choice([None, None, 0, 1, 2])
            each = replace(request(*asked[-1], own=rng.choice([0, 0, 4])), num_output=rng.randint(1, 9), answer=answer)
            keys, expected = paths.shared_keys(each), names.shared_keys(each)
            assert len(keys) == len(expected)
            for key, name in zip(keys, expected, strict=True):
                assert same.setdefault(key, name) == name
                assert same.setdefault(name, key) == key


def test_an_answer_has_keys_where_the_whole_prompt_has() -> None:
    names = Names(4)
    prefix = (Segment(1, 6),)
    assert len(names.shared_keys(Request(0.0, 6, 6, prefix, answer=2))) == 3
    assert len(names.shared_keys(Request(0.0, 7, 6, prefix, answer=2))) == 1


def test_the_prompt_that_goes_on_with_an_answer_has_its_keys() -> None:
    names = Names(4)
    earlier = names.shared_keys(Request(0.0, 6, 6, (Segment(1, 6),), answer=2))
    later = names.shared_keys(Request(0.0, 16, 6, (Segment(1, 6), Segment(2, 6), Segment(3, 4))))
    assert later[:3] == earlier
