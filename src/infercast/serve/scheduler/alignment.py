"""Where a step of a prompt ends, so that the states of recurrent layers can be found again.

A state stands for all tokens before it, so only one that was left where a block of tokens ends can serve another one.
Steps of prompts are cut there: after the last whole block, and where the prompt parts from another one whose tokens are
cached and whose state is not. Some kernels leave a state before the end of a step, too, which then need not be cut.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.serve.cache.shape import Ends


class Prompt(NamedTuple):
    """What is left to compute of a sequence."""

    computed: int
    num_input: int
    known: int
    """Tokens of the prompt and of the answer that are known."""
    parts_at: int = 0
    """Where it parts from the other prompt; 0: nowhere."""

    @property
    def end(self) -> int:
        """Where it decodes, or computes its last known token."""
        return max(self.num_input, self.known - 1)


def whole_blocks(prompt: Prompt, new_tokens: int, ends: Ends) -> int:
    """A step has whole blocks, up to the last one of the prompt that is of use; the rest comes with the next."""
    if prompt.computed >= prompt.end:
        return new_tokens
    size = ends.size
    last, reached = max(0, prompt.known // size - ends.drops) * size, prompt.computed + new_tokens
    if reached < last:
        new_tokens = new_tokens // size * size
    elif prompt.computed < last < reached:
        new_tokens = last - prompt.computed
    common = prompt.parts_at - prompt.computed
    return common // size * size if size <= common < new_tokens else new_tokens


def opened_blocks(prompt: Prompt, new_tokens: int, ends: Ends, most: int, *, last_apart: bool = True) -> int:
    """The same where a block larger than the ``most`` tokens of a step is computed in several, and, with
    ``last_apart``, the last token of a prompt is in a step after its last block.
    """
    if prompt.computed >= prompt.end:
        return new_tokens
    size, start, end = ends.size, prompt.computed, prompt.computed + new_tokens
    if end < prompt.end:
        aligned = end // size * size
        end = aligned if aligned > start or size <= most else end
    stops = []
    if start + new_tokens < prompt.end or not ends.is_left(start, start + new_tokens, ends.last(prompt.end)):
        stops.append(ends.last(prompt.known) if last_apart else (prompt.known // size - ends.drops) * size)
    if start % size:
        stops.append((start // size + 1) * size)
    if start < prompt.parts_at < end:
        stops.append(start + (prompt.parts_at - start) // size * size)
    end = min([stop for stop in stops if start < stop < end], default=end)
    return max(end - start, 0)
