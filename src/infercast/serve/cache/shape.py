"""The KV cache as a scheduler sees it: groups of layers, how many tokens a block of each holds, and their windows."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

STATE_WINDOW = 2
"""A state stands for all tokens before it: the next token looks at the block that ends, or is under way, before it."""


class Ends(NamedTuple):
    """Where states are left that can be found again: at the ends of blocks of ``size`` tokens."""

    size: int
    drops: bool = False
    """The last block of what attention finds is computed again, so the state before it is the one of use."""
    exports: bool = False
    """A step that ends a prompt leaves the last state of use, too, and need not end there."""

    def last(self, num_tokens: int) -> int:
        """Where the last state lies that the same tokens, sent again, can begin with; 0: nowhere."""
        size = self.size
        return max(0, num_tokens // size * size - size) if self.drops else (num_tokens - 1) // size * size

    def is_left(self, start: int, end: int, place: int) -> bool:
        """Whether a step from one token to another leaves the state at a place between them."""
        return self.exports and start % self.size == 0 and start + self.size <= place < end


class StateRules(NamedTuple):
    """How an engine goes about aligned states."""

    exports: bool = False
    """Kernels leave one before the end of a step: see `Ends`."""
    renews: bool = False
    """The last state of use of a prompt counts as new in every step that its sequence computes with it."""
    drop: bool = True
    """Where attention drops the last block of what it finds, groups of states are taken to do so ..."""
    past_attention: bool = False
    """... and a state is looked for a block further, from which a sequence then goes on."""


class Reach(NamedTuple):
    """Tokens that a step computes of a sequence, drafts among them."""

    start: int
    end: int
    prompt_end: int
    """Where its prompt ends, or what it had of its answer before it gave way."""


class KvShape(NamedTuple):
    """Blocks of ``block_size`` tokens; ``windows`` has one entry a group of layers, 0 for full attention."""

    block_size: int = 16
    """The least tokens in a block of any group."""
    windows: tuple[int, ...] = (0,)
    block_sizes: tuple[int, ...] = ()
    """Tokens in a block of each group, where groups differ: narrow layers put more tokens into equal blocks."""
    chunked: bool = False
    """Windows are chunks (Llama 4): a token looks back to the start of its own, and no further."""
    state_blocks: int = 0
    """Blocks that every sequence holds whatever its length: states of recurrent layers that cannot be found again."""
    states: tuple[int, ...] = ()
    """Groups whose blocks are states, each as it is where the block ends; their window is `STATE_WINDOW`."""
    aligned: bool = False
    """A step leaves one state, which can be found again if it ends with a block; or each of its blocks has one."""
    rules: StateRules = StateRules()
    retained: int = 0
    """Tokens before a window that are kept with it: several prediction heads look back as much further."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens in a block of each group."""
        return self.block_sizes or (self.block_size,) * len(self.windows)

    @property
    def num_tables(self) -> int:
        """Block tables of a sequence: one a group of layers, those with states among them."""
        return len(self.windows) + self.state_blocks

    @property
    def num_state_groups(self) -> int:
        """Groups of recurrent layers: at the least, blocks that a running sequence has of their states."""
        return self.state_blocks + len(self.states)

    @property
    def of_tokens(self) -> KvShape:
        """The groups that keep something of every token, without those of states."""
        kept = [number for number in range(len(self.windows)) if number not in self.states]
        return self._replace(
            windows=tuple(self.windows[number] for number in kept),
            block_sizes=tuple(self.block_sizes[number] for number in kept) if self.block_sizes else (),
            state_blocks=0,
            states=(),
            aligned=False,
        )

    @property
    def common_size(self) -> int:
        """Tokens that fill whole blocks in every group: what a cached prefix is a multiple of."""
        return lcm(self.block_size, *self.sizes)

    @property
    def even(self) -> KvShape:
        """The same cache; where all groups have blocks of one size, that is said once."""
        return self if len({*self.block_sizes}) != 1 else self._replace(block_size=self.sizes[0], block_sizes=())

    @property
    def of_one_size(self) -> KvShape:
        """About the same cache with blocks of one size: a group whose blocks hold half as many tokens counts as two.

        A window shorter than such a block (those of DeepSeek-V4) is as many blocks as a decoding sequence has of it.
        """
        if not self.block_sizes:
            return self
        size = self.common_size
        short = [number for number, window in enumerate(self.windows) if 0 < window < size > self.sizes[number]]
        kept = [number for number in range(len(self.windows)) if number not in short or number in self.states]
        groups = [number for number in kept for _ in range(size // self.sizes[number])]
        return self._replace(
            block_size=size,
            windows=tuple(self.windows[number] for number in groups),
            block_sizes=(),
            states=tuple(place for place, number in enumerate(groups) if number in self.states),
            state_blocks=self.state_blocks + sum(self._most(number, size, 1) for number in short if number not in kept),
        )

    def group(self, number: int) -> KvShape:
        """One group alone."""
        states = (0,) if number in self.states else ()
        return self._replace(
            block_size=self.sizes[number],
            windows=(self.windows[number],),
            block_sizes=(),
            states=states,
            state_blocks=0,
        )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of the least size for that many tokens."""
        return -(-num_tokens // self.block_size)

    def first_in_window(self, group: int, computed: int) -> int:
        """The first block that the token after ``computed`` ones still looks at."""
        window = self.windows[group]
        if not window:
            return 0
        first = computed // window * window if self.chunked else max(0, computed - window + 1 - self._before(group))
        return first // (self.block_sizes[group] if self.block_sizes else self.block_size)

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Blocks that a sequence of ``num_tokens`` holds at its largest, computed at most ``chunk`` tokens a step."""
        return self.state_blocks + sum(self._most(number, num_tokens, chunk) for number in range(len(self.windows)))

    def _most(self, group: int, num_tokens: int, chunk: int) -> int:
        window, size = self.windows[group], self.sizes[group]
        whole = -(-num_tokens // size)
        if group in self.states:
            return min(whole, 2 + self.rules.exports) if self.aligned else whole
        if not window:
            return whole
        if self.chunked:
            return min(whole, -(-(window + chunk) // size))
        # A window seldom starts at a block's edge, so it can touch one block more than its length says.
        return min(whole, -(-(window - 1 + self.retained + chunk) // size) + 1)

    def _before(self, group: int) -> int:
        return 0 if group in self.states else self.retained
