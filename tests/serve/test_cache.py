from __future__ import annotations

from infercast.serve.cache.blocks import BlockAllocation, BlockSpan, KvShape
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.workload.request import Request, Segment

LARGE_CHUNK = 1000


def cache_of(num_blocks: int, *windows: int, caching: bool = True) -> KvCache:
    """Blocks of four tokens."""
    return KvCache(num_blocks, KvShape(4, windows or (0,)), caching=caching)


def prompt(num_input: int, *prefix: tuple[int, int]) -> Request:
    return Request(0.0, num_input, 1, tuple(Segment(content, num_tokens) for content, num_tokens in prefix))


def holding_of(cache: KvCache, index: int, request: Request) -> BlockAllocation:
    """Of a sequence that holds nothing yet."""
    return BlockAllocation(index, cache.path(request), request.num_input, cache.num_groups)


def start(
    cache: KvCache, index: int, request: Request, new_tokens: int | None = None, chunk: int = LARGE_CHUNK
) -> tuple[BlockAllocation, int] | None:
    """Admit a request, all of its tokens at once if not told otherwise; its holding and how much was cached."""
    holding = holding_of(cache, index, request)
    num_cached = cache.longest_prefix(holding, request.num_input)
    new_tokens = request.num_input - num_cached if new_tokens is None else new_tokens
    if not cache.admit(holding, num_cached, new_tokens, request.num_input, chunk):
        return None
    cache.name(holding, num_cached + new_tokens)
    return holding, num_cached


def must_start(cache: KvCache, index: int, request: Request) -> BlockAllocation:
    started = start(cache, index, request)
    assert started is not None
    return started[0]


def hit(cache: KvCache, request: Request) -> int:
    """Tokens that a newcomer would find."""
    return cache.longest_prefix(holding_of(cache, 99, request), request.num_input)


def found(holding: BlockAllocation, group: int = 0) -> list[BlockSpan]:
    """What it holds that others can find."""
    return [] if holding.spans is None else holding.spans[group]


def test_a_sequence_holds_its_tokens_rounded_up_to_blocks() -> None:
    for num_tokens, blocks in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
        cache = cache_of(10)
        must_start(cache, 0, prompt(num_tokens))
        assert 10 - cache.num_free == blocks


def test_growing_takes_a_block_only_at_its_edge() -> None:
    cache = cache_of(10)
    holding = must_start(cache, 0, prompt(3))
    assert (holding.length, cache.num_free) == (1, 9)
    assert cache.grow(holding, 4)
    assert cache.num_free == 9
    assert cache.grow(holding, 5)
    assert (holding.length, cache.num_free) == (2, 8)


def test_growing_beyond_the_cache_takes_nothing() -> None:
    cache = cache_of(3)
    holding = must_start(cache, 0, prompt(8))
    assert not cache.grow(holding, 13)
    assert (holding.length, cache.num_free) == (2, 1)


def test_free_gives_everything_back() -> None:
    cache = cache_of(10)
    holdings = [must_start(cache, index, prompt(10, (1, 8))) for index in range(3)]
    assert cache.num_free == 10 - 2 - 3  # two shared blocks, and one each with own tokens
    for holding in holdings:
        cache.free(holding)
    assert cache.num_free == 10
    assert (holdings[0].length, holdings[0].named, holdings[0].spans) == (0, 0, None)


def test_a_shared_prefix_is_held_once() -> None:
    cache = cache_of(10)
    first = must_start(cache, 0, prompt(10, (1, 8)))
    started = start(cache, 1, prompt(10, (1, 8)))
    assert started is not None
    second, num_cached = started
    assert num_cached == 8
    assert first.spans == second.spans
    assert [span.holders for span in found(first)] == [{first, second}]
    assert cache.num_free == 10 - 2 - 2  # two blocks in common, one each of their own


def test_a_shared_block_is_free_only_when_both_have_let_go() -> None:
    cache = cache_of(10)
    first, second = must_start(cache, 0, prompt(8, (1, 4))), must_start(cache, 1, prompt(8, (1, 4)))
    assert cache.num_free == 7
    cache.free(first)
    assert cache.num_free == 8
    cache.free(second)
    assert cache.num_free == 10


def test_a_hit_never_covers_all_tokens() -> None:
    # Eight tokens are cached, but the last token has to be computed to sample from it, and with it its block.
    cache = cache_of(10)
    must_start(cache, 0, prompt(8, (1, 8)))
    assert hit(cache, prompt(8, (1, 8))) == 4
    assert hit(cache, prompt(9, (1, 8))) == 8


def test_a_segment_that_ends_inside_a_block_is_found_up_to_the_block_before() -> None:
    cache = cache_of(10)
    must_start(cache, 0, prompt(20, (1, 7)))
    assert hit(cache, prompt(20, (1, 7))) == 4


def test_a_partly_computed_prompt_is_found_as_far_as_it_goes() -> None:
    cache = cache_of(10)
    start(cache, 0, prompt(16, (1, 16)), new_tokens=7)
    assert hit(cache, prompt(16, (1, 16))) == 4


def test_own_tokens_are_found_by_nobody_else() -> None:
    cache = cache_of(10)
    must_start(cache, 0, prompt(16))
    assert hit(cache, prompt(16)) == 0


def test_a_sequence_finds_its_own_tokens_again() -> None:
    # 10 tokens fill two blocks; the third is not complete.
    cache = cache_of(10)
    holding = must_start(cache, 0, prompt(10))
    cache.free(holding, done=False)
    assert cache.longest_prefix(holding, 10) == 8


def test_blocks_without_content_are_handed_out_before_cached_ones() -> None:
    # One cached block and one that is not complete; two were never used.
    cache = cache_of(4)
    cache.free(must_start(cache, 0, prompt(5, (1, 4))))
    blank = must_start(cache, 1, prompt(12))
    assert hit(cache, prompt(5, (1, 4))) == 4
    assert cache.grow(blank, 13)
    assert hit(cache, prompt(5, (1, 4))) == 0


def test_the_last_block_of_a_sequence_is_forgotten_first() -> None:
    cache = cache_of(3)
    cache.free(must_start(cache, 0, prompt(12, (1, 12))))
    assert hit(cache, prompt(13, (1, 12))) == 12
    for index, left in ((1, 8), (2, 4), (3, 0)):
        must_start(cache, index, prompt(1))
        assert hit(cache, prompt(13, (1, 12))) == left


def test_the_least_recently_used_content_is_forgotten_first() -> None:
    cache = cache_of(2)
    first, second = must_start(cache, 0, prompt(4, (1, 4))), must_start(cache, 1, prompt(4, (2, 4)))
    cache.free(second)
    cache.free(first)
    must_start(cache, 2, prompt(1))
    assert (hit(cache, prompt(5, (1, 4))), hit(cache, prompt(5, (2, 4)))) == (4, 0)


def test_using_content_again_makes_it_the_last_to_be_forgotten() -> None:
    cache = cache_of(3)
    for index in range(2):
        cache.free(must_start(cache, index, prompt(4, (index, 4))))
    cache.free(must_start(cache, 2, prompt(5, (0, 4))))  # touches content 0 and leaves one incomplete block
    must_start(cache, 3, prompt(8))  # takes that block and forgets one
    assert (hit(cache, prompt(5, (0, 4))), hit(cache, prompt(5, (1, 4)))) == (4, 0)


def test_held_content_is_never_forgotten() -> None:
    cache = cache_of(3)
    must_start(cache, 0, prompt(8, (1, 8)))
    assert start(cache, 1, prompt(8)) is None
    assert hit(cache, prompt(9, (1, 8))) == 8


def test_a_second_copy_is_found_when_the_first_is_forgotten() -> None:
    # Both prompts are exactly the prefix, so the second must compute its block again.
    cache = cache_of(4)
    first, second = must_start(cache, 0, prompt(4, (1, 4))), must_start(cache, 1, prompt(4, (1, 4)))
    assert cache.num_free == 2
    cache.free(first)
    cache.free(second)
    must_start(cache, 3, prompt(12))  # takes two blank blocks and the first copy
    assert hit(cache, prompt(5, (1, 4))) == 4
    must_start(cache, 4, prompt(4))
    assert hit(cache, prompt(5, (1, 4))) == 0


def test_the_first_of_two_copies_is_the_one_that_is_held() -> None:
    cache = cache_of(4)
    first, second = must_start(cache, 0, prompt(4, (1, 4))), must_start(cache, 1, prompt(4, (1, 4)))
    cache.free(first)
    assert cache.num_free == 3
    must_start(cache, 2, prompt(5, (1, 4)))  # the first copy, which nobody held, and a block of its own
    assert cache.num_free == 1
    cache.free(second)
    assert cache.num_free == 2


def test_admission_needs_room_for_the_whole_prompt_not_only_its_first_part() -> None:
    cache = cache_of(4)
    must_start(cache, 0, prompt(5))
    assert start(cache, 1, prompt(12), new_tokens=4) is None  # three blocks, two are free
    assert cache.num_free == 2
    assert start(cache, 1, prompt(8), new_tokens=4) is not None
    assert cache.num_free == 1


def test_admission_counts_cached_blocks_that_nobody_holds_as_taken() -> None:
    # The prefix is cached in the two free blocks: to use them is to take them, so no third one is left.
    cache = cache_of(3)
    cache.free(must_start(cache, 0, prompt(8, (1, 8))))
    must_start(cache, 1, prompt(4))
    assert hit(cache, prompt(12, (1, 8))) == 8
    assert start(cache, 2, prompt(12, (1, 8))) is None
    assert cache.num_free == 2


def test_admission_needs_no_room_for_blocks_that_others_hold() -> None:
    cache = cache_of(3)
    must_start(cache, 0, prompt(8, (1, 8)))
    assert start(cache, 1, prompt(12, (1, 8))) is not None
    assert cache.num_free == 0


def test_without_caching_nothing_is_found() -> None:
    cache = cache_of(10, caching=False)
    holding = must_start(cache, 0, prompt(9, (1, 8)))
    assert hit(cache, prompt(9, (1, 8))) == 0
    cache.free(holding)
    assert (cache.num_free, cache.longest_prefix(holding, 9)) == (10, 0)


def test_every_group_has_blocks_of_its_own() -> None:
    cache = cache_of(10, 0, 0)
    holding = must_start(cache, 0, prompt(5))
    assert cache.num_free == 6
    assert (holding.length, holding.first) == (2, [0, 0])


def test_a_window_lets_go_of_the_blocks_before_it() -> None:
    # Token 8 looks at tokens 4 to 8, with a window of 5; block 0 ends at token 3.
    cache = cache_of(10, 5)
    holding = must_start(cache, 0, prompt(8))
    cache.slide(holding, 8)
    assert cache.grow(holding, 9)
    assert (holding.first, holding.length) == ([1], 3)
    assert cache.num_free == 8


def test_a_window_keeps_a_block_that_it_still_touches() -> None:
    # With a window of 6, token 8 looks at token 3, the last one of block 0.
    cache = cache_of(10, 6)
    holding = must_start(cache, 0, prompt(8))
    cache.slide(holding, 8)
    assert cache.grow(holding, 9)
    assert holding.first == [0]


def test_a_window_never_holds_more_than_its_bound() -> None:
    # Chunks of 3 with a window of 6: at most 5 + 3 tokens, two blocks, and one more for an edge inside a block.
    cache = cache_of(10, 6)
    bound = cache.shape.most_blocks(100, 3)
    assert bound == 3
    started = start(cache, 0, prompt(100), new_tokens=3, chunk=3)
    assert started is not None
    holding, held = started[0], []
    for computed in range(3, 99, 3):
        cache.slide(holding, computed)
        assert cache.grow(holding, computed + 3)
        held.append(10 - cache.num_free)
    assert max(held) == bound


def test_admission_asks_for_no_more_than_a_window_ever_holds() -> None:
    # 100 tokens are 25 blocks, but chunks of 3 in a window of 6 never hold more than 3.
    assert start(cache_of(3, 6), 0, prompt(100), new_tokens=3, chunk=3) is not None
    assert start(cache_of(2, 6), 0, prompt(100), new_tokens=3, chunk=3) is None


def test_a_window_finds_a_prefix_whose_beginning_is_forgotten() -> None:
    # Token 16 looks at tokens 12 to 16: block 3 is enough, and the blocks before it have been let go and forgotten.
    cache = cache_of(4, 5)
    cache.free(must_start(cache, 0, prompt(16, (1, 16))))
    assert hit(cache, prompt(17, (1, 16))) == 16
    holding = must_start(cache, 1, prompt(17, (1, 16)))
    assert holding.first == [3]
    assert cache.num_free == 2


def test_a_window_without_its_last_block_falls_back_to_a_shorter_prefix() -> None:
    # Freed last block first, so that block 3 is forgotten first; then block 2 ends the longest prefix.
    cache = cache_of(4, 5)
    cache.free(must_start(cache, 0, prompt(16, (1, 16))))
    must_start(cache, 1, prompt(1))
    assert hit(cache, prompt(17, (1, 16))) == 12


def test_groups_must_agree_on_a_prefix() -> None:
    # Eight blocks: four of full attention, four of the window. The window's block 3 is forgotten first of its group,
    # but full attention's went before it: the groups are freed one after the other.
    cache = cache_of(8, 0, 5)
    cache.free(must_start(cache, 0, prompt(16, (1, 16))))
    assert hit(cache, prompt(17, (1, 16))) == 16
    must_start(cache, 1, prompt(1))  # one block a group: full attention loses blocks 3 and 2
    assert hit(cache, prompt(17, (1, 16))) == 8


def test_a_windows_hit_does_not_make_up_for_what_full_attention_needs() -> None:
    # Another sequence holds the cached 16 of 28 tokens. For a whole prompt full attention needs 7 - 4 = 3 blocks more;
    # a window never holds more than 3 in chunks of 4, has found 4 and asks for none. The next chunk alone needs 2.
    for num_free, admitted in ((3, True), (2, False)):
        cache = cache_of(8 + num_free, 0, 5)
        must_start(cache, 0, prompt(16, (1, 16)))
        assert cache.num_free == num_free
        assert (start(cache, 1, prompt(28, (1, 16)), new_tokens=4, chunk=4) is not None) is admitted


def test_a_retained_window_serves_before_the_multiple_of_the_interval_is_reached() -> None:
    """Of a window of 35 tokens, blocks 3 to 5 are kept for the prompt and 5 to 7 for token 128: vLLM 0.32 finds 7."""
    cache = KvCache(100, KvShape(16, (35, 105)), sparse_windows=True, retained_every=64)
    talk = Request(0.0, 97, 16, (Segment(1, 97),), answer=2)
    holding = holding_of(cache, 0, talk)
    holding.num_output = talk.num_output
    cache.longest_prefix(holding, talk.num_input)
    assert cache.admit(holding, 0, 97, 97, LARGE_CHUNK)
    assert cache.grow(holding, 112)
    cache.name(holding, 112)
    assert hit(cache, prompt(200, (1, 97), (2, 16), (3, 87))) == 112


def test_the_block_to_drop_is_looked_for_in_what_two_prompts_share() -> None:
    """Two blocks are the same, and the second of them is computed again, as vLLM does it for EAGLE."""
    for windows in ((37,), (3, 9), (0,)):
        cache = KvCache(100, KvShape(4, windows), drops_last=True)
        must_start(cache, 0, prompt(16, (2, 16)))
        assert hit(cache, prompt(13, (2, 8))) == 4


def places(holding: BlockAllocation) -> list[tuple[int, int, int]]:
    """Where each of its findable spans begins and ends, and how many hold it."""
    return [(span.start, span.end, len(span.holders)) for span in found(holding)]


def test_a_span_is_cut_where_a_prompt_parts() -> None:
    cache = cache_of(20)
    first = must_start(cache, 0, prompt(17, (1, 16)))
    assert places(first) == [(0, 4, 1)]
    second = must_start(cache, 1, prompt(17, (1, 8)))
    assert (places(first), places(second)) == ([(0, 2, 2), (2, 4, 1)], [(0, 2, 2)])
    cache.free(first)
    assert (places(second), cache.num_free) == ([(0, 2, 1)], 20 - 5)
    assert hit(cache, prompt(17, (1, 16))) == 16


def test_a_span_is_cut_where_a_window_moves_on() -> None:
    # Two sequences hold blocks 0 to 3; the window of one leaves the first two behind.
    cache = cache_of(20, 6)
    first = must_start(cache, 0, prompt(16, (1, 16)))
    second = holding_of(cache, 1, prompt(17, (1, 16)))
    assert cache.admit(second, cache.longest_prefix(second, 17), 1, 17, LARGE_CHUNK)
    assert (places(second), second.first) == ([(2, 4, 2)], [2])
    cache.slide(first, 13)
    assert (places(first), first.first) == ([(2, 4, 2)], [2])
    assert cache.num_free == 20 - 3


def test_a_span_grows_as_long_as_nobody_else_has_it() -> None:
    cache = cache_of(20)
    first = holding_of(cache, 0, prompt(20, (1, 20)))
    assert cache.admit(first, 0, 8, 20, LARGE_CHUNK)
    cache.name(first, 8)
    assert cache.grow(first, 16)
    cache.name(first, 12)
    assert places(first) == [(0, 3, 1)]
    must_start(cache, 1, prompt(13, (1, 12)))
    cache.name(first, 16)
    assert places(first) == [(0, 3, 2), (3, 4, 1)]


def test_what_waits_to_be_found_is_cut_and_overwritten_from_its_end() -> None:
    cache = cache_of(6)
    cache.free(must_start(cache, 0, prompt(16, (1, 16))))
    middle = holding_of(cache, 1, prompt(9, (1, 8)))
    assert cache.admit(middle, cache.longest_prefix(middle, 9), 1, 9, LARGE_CHUNK)
    assert cache.num_free == 3  # blocks 2 and 3 of the first, and one that was never used
    must_start(cache, 2, prompt(5))
    assert hit(cache, prompt(17, (1, 16))) == 12
