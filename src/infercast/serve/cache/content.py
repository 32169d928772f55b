"""What the tokens of a request are, told without tokens: named pieces, one after the other.

Two tokens are the same if they lie in a piece of the same name that begins at the same place. So a prompt of 100,000
tokens is a few pieces, and where two requests part is found piece by piece.
"""

from __future__ import annotations

from infercast.serve.workload.request import Request

Piece = tuple[object, int, int]
"""A name, and the tokens from one position to another."""
Content = tuple[Piece, ...]
"""All tokens of a request, prompt and answer."""
Mark = tuple[object, ...]
"""What tells one page from others that follow the same beginning."""


def content_of(request: Request, own: object) -> Content:
    """The shared beginning of a request under its names; whatever nobody else can have is called ``own``.

    An answer has its name where others may go on with it: after a prompt that is shared as a whole.
    """
    end = request.num_input + request.num_output
    if not request.prefix:
        return ((own, 0, end),)
    pieces: list[Piece] = []
    start = 0
    for segment in request.prefix:
        pieces.append((segment.content, start, start + segment.num_tokens))
        start += segment.num_tokens
    is_shared = start == request.num_input and request.answer is not None
    pieces.append((request.answer if is_shared else own, start, end))
    return tuple(pieces)


def same_until(one: Content, here: int, other: Content, there: int, limit: int) -> int:
    """The first position before ``limit`` at which two contents differ.

    They agree up to the pieces with these numbers, in each of which the position to begin with lies.
    """
    if one is other:
        return limit
    position = max(one[here][1], other[there][1])
    while True:
        name, start, end = one[here]
        other_name, other_start, other_end = other[there]
        if start != other_start or name != other_name:
            return position
        if end != other_end:
            position = end if end < other_end else other_end
            return position if position < limit else limit
        if end >= limit:
            return limit
        position = end
        here += 1
        there += 1


def piece_at(content: Content, number: int, position: int) -> int:
    """The number of the piece that a position lies in, looked for from another one on."""
    last = len(content) - 1
    while number < last and content[number][2] <= position:
        number += 1
    return number


def mark_of(content: Content, number: int, position: int, page: int) -> Mark:
    """What tells the page at a position from others there; the position lies in the piece of this number."""
    name, start, end = content[number]
    if end - position >= page:
        return (name, start)
    mark: list[object] = [name, start, end]
    stop = position + page
    while end < stop:
        number += 1
        name, start, end = content[number]
        mark += (name, start, end if end < stop else 0)
    return tuple(mark)
