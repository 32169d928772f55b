"""Profiled steps of an engine: which kernels ran, how long, and what each step held."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infercast.engines.measured import ProfiledStep
from infercast.engines.registry import AnyEngine
from infercast.errors import FileFormatError
from infercast.validate.kernel_names import GEMM, family_of_kernel

CONTEXT = re.compile(r"ctx~(\d+)")
PROMPT = re.compile(r"\d+x(\d+)")
CHOOSES = "ArgMaxOps"
"""In the name of the kernel that picks the likeliest token of each row."""
HOST_SIDE = "user_annotation"
LM_HEAD = "lm_head"
FIRST_PIECE = 8
"""Tokens of the prompt that the step before left unfinished: each step of a full queue leaves a few more."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Some steps in a row, and all kernels they ran."""

    tag: str
    steps: tuple[tuple[ProfiledStep, float], ...]
    """Each kind of step, and how often it ran."""
    family_us: dict[str, float]
    busy_us: float

    def batch_of(self, step: ProfiledStep) -> tuple[list[int], list[int]]:
        """(new tokens, tokens in all) of each sequence of a step.

        A file does not say how long sequences are, but its tag does: ``ctx~1100`` for decoding, ``8x2048`` for prompts.
        Prompts come from a full queue: the first piece ends one, whole ones follow, the last piece begins one.
        """
        context, length = CONTEXT.search(self.tag), PROMPT.search(self.tag)
        prompt = int(length.group(1)) if length else max(1, step.prompt_tokens // max(step.prompts, 1))
        decoding = int(context.group(1)) if context else prompt + 1
        each = max(1, step.decode_tokens // max(step.decodes, 1))
        queries, keys = [each] * step.decodes, [decoding + each - 1] * step.decodes
        left = step.prompt_tokens
        for number in range(step.prompts):
            first = number == 0 and step.prompts > 1 and step.prompt_tokens % prompt
            # No piece is longer than a prompt, so the first one may have to be more than a few tokens.
            least = max(FIRST_PIECE, step.prompt_tokens - (step.prompts - 1) * prompt)
            piece = min(left, least if first else prompt)
            if number == step.prompts - 1:
                piece = left
            if piece > 0:
                queries.append(piece)
                keys.append(prompt if first else piece)
            left -= piece
        return queries, keys


def read_profiles(
    path: Path, document: Mapping[str, Any], engine: AnyEngine, *, has_experts: bool
) -> Iterator[Profile]:
    """All profiles of a measured file; the engine knows how it names its steps."""
    for position, profile in enumerate(document.get("profiles", ())):
        where = f"profiles[{position}]"
        try:
            steps = _steps(profile, engine)
            yield Profile(
                tag=str(profile["tag"]),
                steps=steps,
                family_us=_families(profile["kernels"], sum(count for _, count in steps), has_experts),
                busy_us=float(profile["busy_us"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise FileFormatError(path, f"{where} cannot be read: {type(problem).__name__} {problem}") from None


def _steps(profile: Mapping[str, Any], engine: AnyEngine) -> tuple[tuple[ProfiledStep, float], ...]:
    """Kinds of steps and how often each ran; a long list is cut off in the file, its total is not."""
    listed = profile["annots"]
    found = [engine.profiled_step(name) for name, category, _ in listed if category == HOST_SIDE]
    kinds = Counter(step for step in found if step is not None)
    if not kinds:
        raise ValueError("no step is named in it")
    total = sum(kinds.values())
    if len(listed) < profile["n_annot"]:
        if len(listed) == total:
            total = profile["n_annot"] // 2  # host and GPU each say every step once
        else:  # other things are named beside steps, each of which chooses tokens once
            total = max((kernel["n"] for kernel in profile["kernels"] if CHOOSES in kernel["name"]), default=total)
    return tuple((kind, count * total / sum(kinds.values())) for kind, count in sorted(kinds.items(), key=str))


def _families(kernels: Any, steps: float, has_experts: bool) -> dict[str, float]:
    """Microseconds of each family. The head is the longest product that runs once a step."""
    microseconds: dict[str, float] = defaultdict(float)
    once: list[tuple[float, int, float]] = []
    for kernel in kernels:
        family = family_of_kernel(kernel["name"], has_experts=has_experts)
        if family == GEMM and kernel["n"] <= steps * 1.01 and "splitK" not in kernel["name"]:
            once.append((kernel["mean_us"], kernel["n"], kernel["sum_us"]))
        else:
            microseconds[family] += kernel["sum_us"]
    heads = 0.0
    for _, count, total in sorted(once, reverse=True):
        family = LM_HEAD if heads + count <= steps * 1.01 else GEMM
        heads += count if family == LM_HEAD else 0
        microseconds[family] += total
    return dict(microseconds)
