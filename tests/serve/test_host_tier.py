"""Blocks in the host's memory: what is there, what gives way, and the link that they travel."""

from __future__ import annotations

import pytest

from infercast.serve.cache.tiers import CopyQueue, HostTier, LinkSpeed, Use


def stored(tier: HostTier, keys: list[int]) -> None:
    new = tier.begin_store(keys)
    assert new is not None
    tier.end_store(new)


def test_blocks_are_found_from_the_first_on_once_they_have_arrived() -> None:
    tier = HostTier(8)
    assert tier.look_up([1, 2, 3]) == 0
    assert tier.begin_store([1, 2, 3]) == [1, 2, 3]
    assert tier.look_up([1, 2, 3]) is None
    tier.end_store([1, 2, 3])
    assert tier.look_up([1, 2, 3, 4, 5]) == 3
    assert tier.look_up([9, 1]) == 0
    assert tier.begin_store([2, 3, 4]) == [4]


def test_the_least_recently_used_gives_way_and_of_a_request_its_last_block() -> None:
    tier = HostTier(4, in_order=True)
    stored(tier, [1, 2])
    stored(tier, [3, 4])
    tier.touch([1, 2])
    stored(tier, [5, 6])
    assert [tier.look_up([key]) for key in (1, 2, 3, 4, 5, 6)] == [1, 1, 0, 0, 1, 1]
    tier.touch([1, 2])
    stored(tier, [7, 8])
    stored(tier, [9])
    assert tier.look_up([1, 2]) == 1


def test_blocks_that_are_copied_stay_and_there_may_be_no_room_then() -> None:
    tier = HostTier(2)
    stored(tier, [1, 2])
    tier.begin_load([1, 2])
    tier.begin_load([1])
    assert tier.begin_store([3]) is None
    assert tier.num_refused == 1
    tier.end_load([1, 2])
    assert tier.begin_store([3]) == [3]
    assert tier.look_up([1]) == 1
    assert tier.look_up([2]) == 0
    assert len(tier) == tier.peak == 2


def test_blocks_may_have_to_be_looked_for_twice() -> None:
    tier = HostTier(4, store_threshold=2)
    tier.look_up([1])
    assert tier.begin_store([1]) == []
    tier.look_up([1])
    assert tier.begin_store([1]) == [1]


def test_by_request_blocks_are_as_recent_as_the_last_request_with_them_that_ended() -> None:
    tier = HostTier(4, by_request=True)
    stored(tier, [1, 2])
    stored(tier, [3, 4])
    tier.touch([1, 2])
    tier.begin_load([3])
    tier.end_load([3])
    stored(tier, [5, 6])  # a copy is no use
    assert [tier.look_up([key]) for key in (1, 2, 3, 4, 5, 6)] == [1, 1, 0, 0, 1, 1]
    stored(tier, [7])
    assert [tier.look_up([key]) for key in (1, 2, 5, 6)] == [1, 0, 1, 1]
    tier.begin_load([1])
    tier.touch([5, 6])  # recency counts while a block is copied, too
    stored(tier, [8])
    assert [tier.look_up([key]) for key in (1, 5, 6, 7, 8)] == [1, 1, 1, 0, 1]


def test_by_request_blocks_may_have_to_be_offered_twice() -> None:
    tier, use = HostTier(4, store_threshold=2, by_request=True), Use()
    assert tier.look_up([1]) == tier.look_up([1]) == 0
    assert tier.begin_store([1], use) == []
    assert not use.met
    assert tier.begin_store([1, 2], use) == [1]
    assert use.met == {1}


def test_by_position_blocks_are_as_recent_as_the_first_use_of_a_request_and_its_last_ones_go_first() -> None:
    tier, first, second = HostTier(4, by_request=True, by_position=True), Use(), Use()
    for keys, use in (([0, 1], first), ([10], second), ([2], first)):  # the third is of the first request, too
        assert tier.begin_store(keys, use) == keys
        tier.end_store(keys)
    assert tier.begin_store([20], Use()) == [20]
    assert [tier.look_up([key]) for key in (0, 1, 2, 10, 20)] == [1, 1, 0, 1, None]


def test_the_order_within_a_copy_is_the_same_in_every_run_but_not_the_blocks_own() -> None:
    kept = []
    for _ in range(2):
        tier = HostTier(64)
        stored(tier, [*range(64)])
        stored(tier, [*range(100, 132)])
        kept.append([key for key in range(64) if tier.look_up([key])])
    assert kept[0] == kept[1] != [*range(32, 64)]
    assert len(kept[0]) == 32


def test_copies_follow_each_other_and_do_not_begin_before_they_are_handed_over() -> None:
    link = CopyQueue(LinkSpeed(1e9, latency=0.5, submit_seconds=0.1, submit_piece_seconds=0.01))
    free, end = link.copy(0.0, 1_000_000_000, 10)
    assert (free, end) == (pytest.approx(0.2), pytest.approx(1.7))
    free, end = link.copy(0.2, 1_000_000_000)
    assert (free, end) == (pytest.approx(0.31), pytest.approx(3.2))
    assert link.copy(4.0, 0, after=6.0)[1] == pytest.approx(6.5)
    assert link.num_copies == 3
    assert link.seconds == pytest.approx(1.7 + 1.5 + 0.5)
