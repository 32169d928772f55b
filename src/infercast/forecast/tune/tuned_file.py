"""The file of launch configurations for an engine: what to change, and the default where nothing better is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.errors import InputError
from infercast.forecast.tune.advice import Tuning, tune_shape
from infercast.forecast.tune.trial import Trial

TunedFile = dict[str, dict[str, int]]
"""A configuration by number of tokens, in the words of its file."""


def untried_file(tuning: Tuning) -> TunedFile:
    """What is recommended by forecast alone.

    An engine takes the nearest number of tokens it finds, so numbers nobody asked for are ranked as well.
    """
    if tuning.needs_trial:
        raise InputError(f"--out needs --try here: {tuning.needs_trial}")
    asked = {shape.tokens: shape for shape in tuning.shapes}
    written = {}
    for tokens in sorted({*asked, *tuning.launches.file_tokens(tuning.op.num_local, tuning.op.dtype)}):
        shape = asked.get(tokens) or tune_shape(replace(tuning.op, tokens=tokens), tuning.gpu, 1, tuning.launches)
        written[str(tokens)] = tuning.recommended(shape).configuration.as_file()
    return written


def tried_file(tuning: Tuning, trials: Sequence[Trial]) -> TunedFile:
    """What was measured best, and the default at numbers of tokens that were not tried.

    Where the engine brings a file of its own its contents are not known here, and only what was tried is written.
    """
    op, launches = tuning.op, tuning.launches
    others = () if tuning.has_file else launches.file_tokens(op.num_local, op.dtype)
    chosen = {tokens: launches.rule_of_thumb(tokens, op.num_local, op.dtype) for tokens in others}
    chosen |= {trial.shape.tokens: trial.recommended.configuration for trial in trials}
    return {str(tokens): chosen[tokens].as_file() for tokens in sorted(chosen)}
