"""How often an engine looks for new requests: after every step, or after so many steps of decoding."""

from __future__ import annotations


class Looks:
    """Counts steps of decoding since the last look; after a step with prompts, and when it idles, an engine looks."""

    __slots__ = ("_every", "_steps")

    def __init__(self, every: int = 1) -> None:
        self._every, self._steps = every, every

    @property
    def is_always(self) -> bool:
        """Whether it looks after every step."""
        return self._every <= 1

    @property
    def steps_left(self) -> int:
        """Steps of decoding until the next look, one at least."""
        return max(1, self._every - self._steps)

    def is_due(self) -> bool:
        """Whether now is the time; if it is, counting starts again."""
        if self._steps < self._every:
            return False
        self._steps = 0
        return True

    def decoded(self, steps: int) -> None:
        """So many steps of decoding were launched."""
        self._steps += steps

    def hurry(self) -> None:
        """Look next time."""
        self._steps = self._every
