"""Images of requests in one engine: which of them a step encodes, within vLLM's encoder budget and encoder cache.

A prompt's tokens up to an image can be computed at any time, those of the image only once it is encoded, in the same
step or an earlier one. What the encoder computed is kept until no request needs it and another image needs the room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infercast.lazy_classes import NamedTuple
from infercast.serve.scheduler.base import Plan
from infercast.serve.step import StepEstimate
from infercast.serve.workload.request import NEVER, Image


class Encoder(NamedTuple):
    cost: Callable[[Sequence[Image]], tuple[float, float]]
    """GPU seconds of encoding these images together, and host seconds of launching that."""
    most_embeds: int = NEVER  # Tokens that a step encodes at most, and that are kept
    request_seconds: float = 0.0  # Of a request's way to the engine if it has images ...
    pixel_seconds: float = 0.0  # ... and for each pixel

    def new_cache(self) -> EncoderCache:
        return EncoderCache(self.most_embeds)

    def encode(self, images: Sequence[Image], estimate: StepEstimate) -> StepEstimate:
        """A step with these images first; the last kernel that varies between steps is the encoder."""
        seconds, launch = self.cost(images)
        return estimate._replace(
            gpu_seconds=[estimate.gpu_seconds[0] + seconds],
            varying=[*estimate.varying[:-1], [estimate.varying[-1][0] + seconds]],
            host=estimate.host.waiting(launch),
        )


class EncoderCache:
    """The images of all requests in the engine, and the budget of the step that is planned."""

    def __init__(self, size: int = NEVER) -> None:
        self.images: dict[int, tuple[Image, ...]] = {}  # Of requests that have any, by their index
        self._planned: list[tuple[int, Image]] = []  # What the step encodes, and for which request
        self._size = self._left = self._free = size  # Of the step, and of the cache
        self._users: dict[int, dict[int, int]] = {}
        """By the content of an image that is kept: requests that need it, and the last token of each for which they
        do."""
        self._unused: dict[int, int] = {}  # Tokens of those that none needs, the longest unused first
        self._pending: dict[int, list[Image]] = {}
        """By content, what is encoded if the request that was looked at is in the step; it may have one repeatedly."""

    @property
    def planned(self) -> list[Image]:
        return [image for _, image in self._planned]

    def begin(self) -> bool:
        """A step is planned; True if any request has images."""
        self._planned, self._left = [], self._size
        return bool(self.images)

    def reach(self, index: int, computed: int, new_tokens: int, ahead: int = 0) -> int:
        """Of these tokens of a request, those before the first image that has to wait; a draft reads ``ahead``."""
        self._pending, pending, end = {}, 0, computed + new_tokens + ahead
        for image in self.images.get(index, ()):
            if image.start >= end:
                break
            if image.end <= computed or self._is_kept(image, index):
                continue
            if image.content in self._pending:
                self._pending[image.content].append(image)
                continue
            needed = pending + image.num_embeds
            if needed > self._left or not self._has_room(needed):
                return max(0, min(new_tokens, image.start - computed))
            first = image.start + (image.num_embeds < image.num_tokens)  # behind the mark of its begin
            if first < end and computed < first + image.num_embeds:
                self._pending[image.content], pending = [image], needed
        return new_tokens

    def _is_kept(self, image: Image, index: int) -> bool:
        if image.content not in self._users:
            return False
        self._unused.pop(image.content, None)
        self._need(image, index)
        return True

    def _need(self, image: Image, index: int) -> None:
        users = self._users.setdefault(image.content, {})
        users[index] = max(image.end, users.get(index, 0))

    def _has_room(self, num_embeds: int) -> bool:
        """True if this many fit; what is unused leaves for them."""
        if num_embeds > self._free + sum(self._unused.values()):
            return False
        while num_embeds > self._free:
            content = next(iter(self._unused))
            self._free += self._unused.pop(content)
            del self._users[content]
        return True

    def take(self, index: int) -> None:
        """The request that was looked at last is in the step."""
        for image, *repeated in self._pending.values():
            for each in (image, *repeated):
                self._need(each, index)
            self._free -= image.num_embeds
            self._left -= image.num_embeds
            self._planned.append((index, image))
        self._pending = {}

    def take_back(self, index: int) -> None:
        """A request leaves the step that is planned."""
        self._left += sum(image.num_embeds for owner, image in self._planned if owner == index)
        self._planned = [each for each in self._planned if each[0] != index]

    def release(self, index: int, computed: int = NEVER) -> None:
        """A request no longer needs images before its ``computed`` tokens, or any."""
        for image in self.images.get(index, ()):
            users = self._users.get(image.content)
            if image.end <= computed and users and users.get(index) == image.end:
                del users[index]
                if not users:
                    self._unused[image.content] = image.num_embeds

    def encode_all(self, plan: Plan) -> None:
        """A step of prompts is planned by an engine without a budget."""
        self.begin()
        for sequence, computed, new_tokens in zip(plan.sequences, plan.computed, plan.new_tokens, strict=True):
            self.reach(sequence.index, computed, new_tokens)
            self.take(sequence.index)

    def end(self, index: int) -> None:
        self.release(index)
        self.images.pop(index, None)
