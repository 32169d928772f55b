"""What bounds a step, and which of an engine's rules hold when one is planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int = 0
    """At most this many tokens of one prompt a step; 0: no such limit."""
    chunked_prefill: bool = True
    prompts_first: bool = False
    """Steps of prompts alone as long as one waits that fits, decoding stands still meanwhile (vLLM before V1)."""
    waits_for_tokens: bool = False
    """A sequence is in one step at a time: its next token is planned when the last one is known."""
    steps_between_tokens: int = 1
    """A sequence that samples in a step samples again so many steps later, others in between (pipelines)."""
    spares_lone_prompts: bool = False
    """The threshold does not hold for a request that is alone in the engine."""
    settles: bool = False
    """What steps under way still use is not given up: windows move on by processed tokens, which a request that starts
    has to have room for, and who gave way comes back when its last step is done."""
