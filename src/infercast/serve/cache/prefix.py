"""Names for the content of KV blocks, so that equal beginnings of prompts are recognised.

An engine hashes tokens block by block, each hash chained to the one before. Here content has no tokens, only names:
a block's key is (chain, position), where the chain stands for everything in the prompt up to the end of that block.
Two requests have a key in common exactly if all their content up to there is the same.
"""

from __future__ import annotations

from infercast.serve.workload.request import Request, Segment

BlockKey = tuple[int, int]
"""(chain, position). Chains of shared content are negative; a request's own content has its index as chain."""


class PrefixNames:
    """Hands out chains; one instance serves one cache."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chains: dict[tuple[int, int, int], int] = {}

    def shared_keys(self, request: Request) -> list[BlockKey]:
        """Keys of the blocks that lie wholly in the request's shared beginning, its answer too if that has a name."""
        keys: list[BlockKey] = []
        before = end = 0
        segments = request.prefix
        if request.answer is not None and sum([segment.num_tokens for segment in segments]) == request.num_input:
            segments = (*segments, Segment(request.answer, request.num_output))
        for segment in segments:
            # Blocks inside a segment do not depend on how long it goes on, what follows it does.
            inside = self._chain(before, segment.content, 0)
            before = self._chain(inside, segment.content, segment.num_tokens)
            end += segment.num_tokens
            # A block belongs to the segment that holds its last token.
            keys.extend((inside, position) for position in range(len(keys), end // self._block_size))
        return keys

    def _chain(self, before: int, content: int, num_tokens: int) -> int:
        """A number for one more piece of content after ``before``: equal histories, equal numbers."""
        return self._chains.setdefault((before, content, num_tokens), -len(self._chains) - 1)
