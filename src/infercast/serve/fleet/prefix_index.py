"""What a load balancer believes each engine has in its prefix cache: the prompts that it was sent, newest first.

Prompts are chains of named segments, so what is kept is a tree of them, with the engines that were sent each. Of every
engine only as many tokens are kept as its cache holds, and the end of a prompt is given up before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict

from infercast.serve.workload.request import Request


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

    def __init__(self, num_engines: int, cache_tokens: int, block_size: int) -> None:
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
            # The tokens inside a segment do not depend on how long it goes on, what follows it does.
            key = (length, segment.content)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node()
            chain.append(child)
            node, length = child, segment.num_tokens
        self._last = request, chain
        return chain

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
        for node, segment in zip(reversed(self._chain(request)), reversed(request.prefix), strict=True):
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
