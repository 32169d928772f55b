"""What a load balancer believes each engine has in its prefix cache: the prompts that it was sent, newest first.

Prompts are chains of named segments, so what is kept is a tree of them, with the engines that were sent each. Of every
engine only as many tokens are kept as its cache holds, and the end of a prompt is given up before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict

from infercast.serve.workload.request import Request, Segment


class PrefixIndex:
    """Beginnings of prompts, and which engines have them."""

    def __init__(self, num_engines: int, cache_tokens: int, block_size: int) -> None:
        self._cache_tokens, self._block_size = cache_tokens, block_size
        self._nodes: dict[tuple[int, int, int], int] = {}
        # Of each node the engines that were sent it, with the tokens of it that they have.
        self._holders: dict[int, dict[int, int]] = {}
        # Of each engine its nodes and (negative) what requests have to themselves, least recently used first.
        self._used: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(num_engines)]
        self._num_tokens = [0] * num_engines

    def cached_tokens(self, request: Request) -> dict[int, int]:
        """Engines that have the beginning of a prompt, and how many tokens of it: whole blocks, never all of it."""
        found: dict[int, int] = {}
        before = node = 0
        complete: set[int] | None = None
        for segment in request.prefix:
            node = self._nodes.get((node, segment.content, 0), 0)
            holders = self._holders.get(node)
            if not holders:
                break
            holding = [engine for engine in (holders if complete is None else complete) if engine in holders]
            for engine in holding:
                found[engine] = before + min(holders[engine], segment.num_tokens)
            complete = {engine for engine in holding if holders[engine] >= segment.num_tokens}
            before += segment.num_tokens
            node = self._nodes.get((node, segment.content, segment.num_tokens), 0)
            if not complete or not node:
                break
        most = request.num_input - 1
        return {engine: min(tokens, most) // self._block_size * self._block_size for engine, tokens in found.items()}

    def add(self, engine: int, number: int, request: Request) -> None:
        """An engine is sent a prompt."""
        own = request.num_input - sum(segment.num_tokens for segment in request.prefix)
        if own > 0:
            self._use(engine, -number - 1, own)
        for node, segment in reversed(self._chain(request.prefix)):
            held = self._holders.setdefault(node, {})
            held[engine] = max(held.get(engine, 0), segment.num_tokens)
            self._use(engine, node, held[engine])
        self._forget(engine)

    def _chain(self, prefix: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
        """The nodes of a beginning, made where there are none."""
        chain, before = [], 0
        for segment in prefix:
            # The tokens inside a segment do not depend on how long it goes on, what follows it does.
            inside = self._node(before, segment.content, 0)
            chain.append((inside, segment))
            before = self._node(inside, segment.content, segment.num_tokens)
        return chain

    def _node(self, before: int, content: int, num_tokens: int) -> int:
        return self._nodes.setdefault((before, content, num_tokens), len(self._nodes) + 1)

    def _use(self, engine: int, node: int, num_tokens: int) -> None:
        used = self._used[engine]
        self._num_tokens[engine] += num_tokens - used.get(node, 0)
        used[node] = num_tokens
        used.move_to_end(node)

    def _forget(self, engine: int) -> None:
        """Give up what was used longest ago, until the rest fits in the cache."""
        used = self._used[engine]
        while self._num_tokens[engine] > self._cache_tokens and used:
            node, num_tokens = used.popitem(last=False)
            self._num_tokens[engine] -= num_tokens
            if node > 0:
                del self._holders[node][engine]
