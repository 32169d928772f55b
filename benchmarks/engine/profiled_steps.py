"""Kernels of profiled steps held against their estimates, family by family.

    python benchmarks/engine/profiled_steps.py RUNS.json.gz [RUNS.json.gz ...]

Files are of run_engine.py's format with `profiles`: `tag` (with `ctx~1100` or `8x2048` in it), `annots` of (name,
category, duration) with names that say what each step held, `n_annot`, `kernels` with `name`, `n`, `mean_us` and
`sum_us`, and `busy_us`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import FileFormatError, read_json
from infercast.forecast.kernels import estimate_shape
from infercast.lab.validate.compare import Comparison, deployment_of
from infercast.lab.validate.measured import MeasuredFile, read_measured
from infercast.predict.identity import OTHER, family_of_kernel
from infercast.serve.step import DraftShape, StepShape

GEMM = "gemm"
CONTEXT = re.compile(r"ctx~(\d+)")
PROMPT = re.compile(r"\d+x(\d+)")
LM_HEAD = "lm_head"
STEPS = {
    "vllm": (
        r"execute_context_(?P<prompts>\d+)\((?P<prompt_tokens>\d+)\)_generation_(?P<decodes>\d+)\((?P<decode_tokens>\d+)\)",
    ),
    "sglang": (
        r"step\[DECODE bs=(?P<decodes>\d+)",
        r"step\[EXTEND bs=(?P<prompts>\d+) toks=(?P<prompt_tokens>\d+)",
    ),
}  # What names of steps look like, by engine
FIRST_PIECE = 8  # Prompt tokens that the step before left unfinished: each step of a full queue leaves a few more


class ProfiledStep(NamedTuple):
    """The batch of one step."""

    prompts: int = 0
    prompt_tokens: int = 0
    decodes: int = 0
    decode_tokens: int = 0  # Tokens of the decoding sequences, including drafts; 0: one each


def profiled_step(engine: str, name: str) -> ProfiledStep | None:
    """The batch of a step, from its name in a profile; None if it is not the name of a step."""
    match = next(filter(None, (re.match(pattern, name) for pattern in STEPS[engine])), None)
    return None if match is None else ProfiledStep(**{field: int(text) for field, text in match.groupdict().items()})


@dataclass(frozen=True, slots=True)
class Profile:
    tag: str
    steps: tuple[tuple[ProfiledStep, float], ...]
    family_us: dict[str, float]
    busy_us: float

    def batch_of(self, step: ProfiledStep) -> tuple[list[int], list[int]]:
        """(new tokens, tokens in all) of each sequence, by the lengths in the tag; the queue is full."""
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


def read_profiles(path: Path, document: Mapping[str, Any], engine: str, *, has_experts: bool) -> Iterator[Profile]:
    """All profiles of a measured file."""
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


def _steps(profile: Mapping[str, Any], engine: str) -> tuple[tuple[ProfiledStep, float], ...]:
    """Kinds of steps and how often each ran; a long list is cut off in the file, its total is not."""
    listed = profile["annots"]
    host_side = "user_annotation"
    found = [profiled_step(engine, name) for name, category, _ in listed if category == host_side]
    kinds = Counter(step for step in found if step is not None)
    if not kinds:
        raise ValueError("no step is named in it")
    total = sum(kinds.values())
    if len(listed) < profile["n_annot"]:
        if len(listed) == total:
            total = profile["n_annot"] // 2  # host and GPU each say every step once
        else:  # other things are named besides steps, each of which chooses tokens once
            chooses = "ArgMaxOps"  # in the name of the kernel that picks the likeliest token of each row
            total = max((kernel["n"] for kernel in profile["kernels"] if chooses in kernel["name"]), default=total)
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


_FAMILY_OF_KERNEL = {"embedding": "norm", "expert_sum": "norm", "draft_embedding": "norm", "draft_lm_head": "gemm"}
"""The engine's compiler fuses the first ones into the norm that follows; a head that runs more than once a step is a
product like others."""


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """One profile; times in microseconds over all its steps."""

    file: str
    tag: str
    families: dict[str, Comparison]
    busy: Comparison

    @property
    def scored(self) -> dict[str, Comparison]:
        least_share = 0.01  # families that take less of a profile's time are shown but not scored
        least = least_share * self.busy.measured
        return {name: values for name, values in self.families.items() if values.measured >= least}

    @property
    def covered(self) -> float:
        """Share of the profiled time that belongs to a predicted family."""
        known = sum(values.measured for values in self.families.values() if values.predicted > 0)
        return known / self.busy.measured


def compare_profiles(files: Iterable[MeasuredFile]) -> list[ProfileComparison]:
    compared = []
    for measured in files:
        deployment = deployment_of(measured, None, None)
        document, has_experts = read_json(measured.path), deployment.model.has_experts
        profiles = read_profiles(measured.path, document, deployment.engine.family, has_experts=has_experts)
        compared += [compare_profile(measured.path.name, deployment, profile) for profile in profiles]
    return compared


def compare_profile(file: str, deployment: Deployment, profile: Profile) -> ProfileComparison:
    predicted: dict[str, float] = defaultdict(float)
    for step, count in profile.steps:
        for family, seconds in estimate_families(deployment, profile, step).items():
            predicted[family] += 1e6 * count * seconds
    names = sorted({*profile.family_us, *predicted} - {OTHER}, key=lambda name: -profile.family_us.get(name, 0.0))
    families = {
        name: Comparison(profile.family_us[name], predicted.get(name, 0.0))
        for name in names
        if name in profile.family_us
    }
    return ProfileComparison(file, profile.tag, families, Comparison(profile.busy_us, sum(predicted.values())))


def estimate_families(deployment: Deployment, profile: Profile, step: ProfiledStep) -> dict[str, float]:
    """GPU seconds of one step by family. An engine runs its head for every sequence of a step."""
    queries, keys = profile.batch_of(step)
    computed = [key - query for query, key in zip(queries, keys, strict=True)]
    seconds: dict[str, float] = defaultdict(float)
    shape, drafting = StepShape(queries, computed, len(queries)), deployment.drafting
    if drafting is not None:
        drafts = step.decodes * (drafting.width - 1)
        rows = len(queries) + drafts
        shape = DraftShape(
            queries, computed, rows, step.decodes, drafts, drafting.width, len(queries), drafting.num_drafts
        )
    for kernel in estimate_shape(deployment, shape).kernels:
        seconds[_FAMILY_OF_KERNEL.get(kernel.name, kernel.family)] += kernel.seconds
    return seconds


def summarise(profiles: Sequence[ProfileComparison]) -> dict[str, Any]:
    if not profiles:
        return {"kernel_ape_median": None, "busy_ape_median": None, "kernel_time_covered": None}
    errors = [values.ape for profile in profiles for values in profile.scored.values()]
    covered = sum(profile.covered * profile.busy.measured for profile in profiles)
    return {
        "kernel_ape_median": float(np.median(errors)) if errors else None,
        "busy_ape_median": float(np.median([profile.busy.ape for profile in profiles])),
        "kernel_time_covered": covered / sum(profile.busy.measured for profile in profiles),
    }


def percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:.1f} %"


def main(paths: list[Path]) -> None:
    profiles = compare_profiles(read_measured(path) for path in paths)
    for profile in profiles:
        print(f"\n**{profile.file}: {profile.tag}**\n")
        print("| family | measured ms | predicted ms | error |\n| --- | --: | --: | --: |")
        for name, each in {**profile.families, "all kernels": profile.busy}.items():
            if each.measured > 0:
                small = "" if name in profile.scored or each is profile.busy else " (below 1 %)"
                times = f"{each.measured / 1e3:,.2f} | {each.predicted / 1e3:,.2f} | {100 * each.error:+.1f} %"
                print(f"| {name}{small} | {times} |")
    summary = {name: percent(value) for name, value in summarise(profiles).items()}
    print(
        "\nMedian errors: families with 1 % of a profile or more {kernel_ape_median}, GPU time of a step "
        "{busy_ape_median}; {kernel_time_covered} of the profiled time is estimated".format(**summary)
    )


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
