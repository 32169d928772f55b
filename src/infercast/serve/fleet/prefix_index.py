"""What a load balancer believes each engine has in its prefix cache: the prompts that it was sent, newest first.

Prompts are chains of named segments, so what is kept is a tree of them, with the engines that were sent each. Of every
engine only as many tokens are kept as its cache holds, and the end of a prompt is given up before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict

from infercast.serve.workload.request import Request, Segment


class _Node:
    """One segment after one history."""

    __slots__ = ("children", "holders")

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], _Node] = {}
        """What follows, by how long the segment is and by content."""
        self.holders: dict[int, int] = {}
        """The engines that were sent it, with the tokens of it that they have."""


class PrefixIndex:
    """Beginnings of prompts, and which engines have them."""

    def __init__(self, num_engines: int, cache_tokens: int, block_size: int, *, answers: bool = False) -> None:
        """``answers``: what an engine has answered can be found on it, too, where it has a name."""
        self._answers = answers
        self._cache_tokens, self._block_size = cache_tokens, block_size
        self._root = _Node()
        # Of each engine its nodes and (numbers) what requests have to themselves, least recently used first.
        self._used: list[OrderedDict[_Node | int, int]] = [OrderedDict() for _ in range(num_engines)]
        self._num_tokens = [0] * num_engines
        self._last: tuple[Request | None, list[_Node]] = (None, [])

    def _chain(self, request: Request) -> list[_Node]:
        """The nodes of a prompt's beginning, made where there are none; most are asked for twice in a row."""
        if request is self._last[0]:
            return self._last[1]
        chain, node, length = [], self._root, 0
        for segment in request.prefix:
            node = self._after(node, length, segment.content)
            chain.append(node)
            length = segment.num_tokens
        self._last = request, chain
        return chain

    def _after(self, node: _Node, length: int, content: int) -> _Node:
        """What follows a segment; the tokens inside one do not depend on how long it goes on, what follows it does."""
        child = node.children.get((length, content))
        if child is None:
            child = node.children[length, content] = _Node()
        return child

    def cached_tokens(self, request: Request) -> dict[int, int]:
        """Engines that have the beginning of a prompt, and how many tokens of it: whole blocks, never all of it."""
        found: dict[int, int] = {}
        chain = self._chain(request)
        before, complete = 0, [*chain[0].holders] if chain else []
        for segment, node in zip(request.prefix, chain, strict=True):
            holders, tokens = node.holders, segment.num_tokens
            holding = [engine for engine in complete if engine in holders]
            complete = [engine for engine in holding if holders[engine] >= tokens]
            for engine in holding:
                if holders[engine] < tokens:
                    found[engine] = before + holders[engine]
            if not complete:
                break
            before += tokens
            for engine in complete:
                found[engine] = before
        most = request.num_input - 1
        return {engine: min(tokens, most) // self._block_size * self._block_size for engine, tokens in found.items()}

    def add(self, engine: int, number: int, request: Request) -> None:
        """An engine is sent a prompt."""
        own = request.num_input - sum([segment.num_tokens for segment in request.prefix])
        if own > 0:
            self._use(engine, number, own)
        chain, prefix = self._chain(request), request.prefix
        if self._answers and request.answer is not None and not own and prefix:
            chain = [*chain, self._after(chain[-1], prefix[-1].num_tokens, request.answer)]
            prefix = (*prefix, Segment(request.answer, request.num_output))
        for node, segment in zip(reversed(chain), reversed(prefix), strict=True):
            node.holders[engine] = tokens = max(node.holders.get(engine, 0), segment.num_tokens)
            self._use(engine, node, tokens)
        self._forget(engine)

    def _use(self, engine: int, entry: _Node | int, num_tokens: int) -> None:
        used = self._used[engine]
        self._num_tokens[engine] += num_tokens - used.get(entry, 0)
        used[entry] = num_tokens
        used.move_to_end(entry)

    def _forget(self, engine: int) -> None:
        """Give up what was used longest ago, until the rest fits in the cache."""
        used = self._used[engine]
        while self._num_tokens[engine] > self._cache_tokens and used:
            entry, num_tokens = used.popitem(last=False)
            self._num_tokens[engine] -= num_tokens
            if not isinstance(entry, int):
                del entry.holders[engine]
