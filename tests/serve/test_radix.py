"""A tree of named content against tokens one by one, and the cache around it by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.radix_cache import (
    Content,
    Lease,
    Node,
    RadixCache,
    RadixTree,
    content_of,
    mark_of,
    piece_at,
    same_until,
)
from infercast.serve.workload.request import Request, Segment

segments = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), max_size=4)
requests = st.builds(
    lambda parts, own, output, answer: Request(
        0.0, sum(n for _, n in parts) + own + (not parts and not own), output, tuple(map(Segment._make, parts)), answer
    ),
    segments,
    st.integers(0, 5),
    st.integers(1, 6),
    st.sampled_from([None, 0, 1]),
)


def tokens(content: Content) -> list[object]:
    """Every token by itself."""
    return [(name, start, place) for name, start, end in content for place in range(start, end)]


def common(one: list[object], other: list[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@given(requests, requests)
def test_where_two_contents_part(one: Request, other: Request) -> None:
    contents = content_of(one, "one"), content_of(other, "other")
    limit = min(contents[0][-1][2], contents[1][-1][2])
    assert same_until(contents[0], 0, contents[1], 0, limit) == common(*map(tokens, contents))


@given(requests, requests, st.integers(1, 4))
def test_pages_have_the_same_mark_if_they_have_the_same_tokens(one: Request, other: Request, page: int) -> None:
    contents = content_of(one, "one"), content_of(other, "other")
    for position in range(0, min(contents[0][-1][2], contents[1][-1][2]) - page + 1, page):
        marks = [mark_of(content, piece_at(content, 0, position), position, page) for content in contents]
        same = tokens(contents[0])[position : position + page] == tokens(contents[1])[position : position + page]
        assert (marks[0] == marks[1]) == same


@given(st.lists(requests, min_size=1, max_size=12), st.integers(1, 4))
def test_a_walk_finds_the_longest_beginning_in_whole_pages(asked: list[Request], page: int) -> None:
    tree, known = RadixTree(page), list[list[object]]()
    for number, request in enumerate(asked):
        content = content_of(request, number)
        end = content[-1][2] // page
        met = tree.walk(content, end)
        longest = max([common(each, tokens(content)) // page for each in known], default=0)
        assert met[0].end == min(longest, end)
        if met[0].end < end:
            tree.add(met, content, end)
        known.append(tokens(content)[: end * page])
    for node in nodes(tree):
        assert node.parent is not None
        assert node.parent.end == node.start < node.end


def nodes(tree: RadixTree) -> list[Node]:
    found, open_ = [], [*tree.root.children.values()]
    while open_:
        found.append(open_.pop())
        open_ += found[-1].children.values()
    return found


def cache_of(num_blocks: int, page: int = 1) -> RadixCache:
    return RadixCache(num_blocks, KvShape(page))


def computed(cache: RadixCache, lease: Lease, num_tokens: int) -> Lease:
    """A sequence that holds what it found and has pages for so many tokens."""
    cache.hold(lease)
    pages = -(-num_tokens // cache.page)
    cache.make_room((pages - lease.num_pages) * cache.page)
    cache.take(pages - lease.num_pages)
    lease.num_pages = pages
    return lease


def lease_of(cache: RadixCache, request: Request, own: object) -> Lease:
    return cache.lease(content_of(request, own))


def shared(num_input: int, num_output: int, *prefix: tuple[int, int], answer: int | None = None) -> Request:
    return Request(0.0, num_input, num_output, tuple(Segment(*part) for part in prefix), answer)


def test_prompts_are_found_once_they_are_kept_and_never_whole() -> None:
    cache = cache_of(100)
    first, second = (lease_of(cache, shared(10, 5, (7, 10)), own) for own in "ab")
    assert cache.match(first, 9) == 0
    computed(cache, first, 10)
    assert cache.match(second, 9) == 0  # both are computed if they come together
    cache.keep(first, 10)
    assert cache.match(second, 9) == 9
    assert (cache.num_held, cache.num_blank) == (10, 90)


def test_a_second_copy_is_freed_when_it_is_kept() -> None:
    cache = cache_of(100)
    leases = [lease_of(cache, shared(10, 5, (7, 8)), own) for own in "ab"]
    for lease in leases:
        cache.match(lease, 9)
        computed(cache, lease, 10)
    assert cache.num_held == 20
    cache.keep(leases[0], 10)
    assert cache.num_held == 20
    cache.keep(leases[1], 10)
    assert cache.num_held == 12  # eight in common, two of each
    for lease in leases:
        cache.drop(lease)
    assert (cache.num_held, cache.num_evictable) == (0, 12)


def test_answers_are_found_by_whoever_goes_on_with_them() -> None:
    cache = cache_of(100)
    lease = computed(cache, lease_of(cache, shared(6, 4, (1, 6), answer=2), "a"), 6)
    cache.keep(lease, 6)
    cache.take(3)
    lease.num_pages = 9
    cache.finish(lease, 9)
    again = lease_of(cache, shared(14, 4, (1, 6), (2, 4), (3, 4)), "b")
    assert cache.match(again, 13) == 9
    assert cache.num_evictable == 9


def test_pages_that_are_not_full_are_not_kept() -> None:
    cache = cache_of(10, page=4)
    lease = computed(cache, lease_of(cache, shared(10, 4, (1, 10)), "a"), 10)
    assert cache.num_held == 3
    cache.keep(lease, 10)
    other = lease_of(cache, shared(10, 4, (1, 10)), "b")
    assert cache.match(other, 9) == 8
    cache.finish(lease, 11)
    assert (cache.num_evictable, cache.num_blank) == (2, 8)


def test_whole_leaves_are_forgotten_and_those_met_last_stay() -> None:
    cache = cache_of(30)
    for own, size in (("a", 10), ("b", 10)):
        lease = computed(cache, lease_of(cache, shared(size + 5, 1, (1, 5)), own), size + 5)
        cache.finish(lease, size + 5)
    assert (cache.num_evictable, cache.num_blank) == (25, 5)
    cache.match(lease_of(cache, shared(15, 1, (1, 5)), "c"), 14)  # meets the five that both have in common
    cache.make_room(6)
    assert (cache.num_evictable, cache.num_blank) == (15, 15)  # all ten of the first
    cache.make_room(16)
    assert (cache.num_evictable, cache.num_blank) == (0, 30)  # sixteen are asked for, though one is missing


def test_what_a_running_sequence_uses_is_not_forgotten() -> None:
    cache = cache_of(20)
    lease = computed(cache, lease_of(cache, shared(10, 4, (1, 10)), "a"), 10)
    cache.finish(lease, 10)
    again = lease_of(cache, shared(12, 4, (1, 10)), "b")
    assert cache.match(again, 11) == 10
    computed(cache, again, 12)
    cache.make_room(20)
    assert (cache.num_held, cache.num_blank, cache.num_evictable) == (12, 8, 0)
    cache.drop(again)
    assert (cache.num_held, cache.num_blank, cache.num_evictable) == (0, 10, 10)


def test_without_caching_nothing_stays() -> None:
    cache = RadixCache(20, KvShape(1), caching=False)
    lease = computed(cache, lease_of(cache, shared(10, 4, (1, 10)), "a"), 10)
    cache.keep(lease, 10)
    cache.finish(lease, 10)
    assert cache.num_blank == 20
    assert cache.match(lease_of(cache, shared(10, 4, (1, 10)), "b"), 9) == 0
