"""The learned predictor: which model estimates an operator on a GPU, on what basis, and on changed or limited chips."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from math import expm1
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import DATA, read_data
from infercast.errors import UnknownNameError
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.gpu import has_at_least, has_inline_ecc, ratio_bounds, without_ecc
from infercast.hardware.load import by_kernels, is_modelled
from infercast.ops import Attention, Gemm, MoE, Op
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict import identity
from infercast.predict.board_power import power_limits
from infercast.predict.estimate import SOURCES, Estimate, fuse_prefill_decode, join, padded_seconds
from infercast.predict.families import families_of, family_of, split_batch
from infercast.predict.families.family import Family, stated_interval
from infercast.predict.fitted import POOLED, Artifact, Entry, Forest, load_artifact, silent_forest
from infercast.predict.kernels import (
    SIBLING_WIDENING,
    Correction,
    KernelModel,
    ModelChoice,
    borrowed,
    is_same_die,
    trust_in,
)
from infercast.predict.roofline import PUBLISHED, Adjusted, Floor, Predictor, Roofline, Typical


class Bound(NamedTuple):
    """Kernels of an architecture that take at most a share of what they take on a GPU with less of everything."""

    engine: str
    kernels: str
    of: tuple[str, ...]  # Families, family/format, or what a profile calls the tables of a kernel
    gpu: str
    share: float
    why: str


class Slower(NamedTuple):
    """Families that are slower on a newer architecture than on an older one, as measured."""

    kernels: tuple[str, ...]
    than: tuple[str, ...]
    families: tuple[str, ...]
    up_to: float
    why: str

    def speaks_of(self, gpu: Gpu, other: Gpu, family: str) -> bool:
        """Whether it says why the first is slower than the second."""
        return gpu.kernels in self.kernels and other.kernels in self.than and family in self.families


class Ordering(NamedTuple):
    bounds: tuple[Bound, ...]
    slower: tuple[Slower, ...]

    def lesser(self, op: Op, gpu: Gpu, table: str) -> tuple[Gpu, float] | None:
        """A GPU and a share of its time that bounds this operator's on ``gpu`` from above, if there is one."""
        for bound in self.bounds:
            if bound.kernels == gpu.kernels:
                family, other = family_of(op).name, load_gpu(bound.gpu)
                names = {family, f"{family}/{op.compute_dtype}", table}
                if not names.isdisjoint(bound.of) and has_at_least(gpu, other):
                    return other, bound.share
        return None

    def notes(self, gpus: Sequence[Gpu]) -> Iterator[str]:
        """For a comparison of these GPUs: what is known to be out of order, and what was put in order."""
        for bound in self.bounds:
            names = [gpu.name for gpu in gpus if gpu.kernels == bound.kernels]
            if names:
                most = f"estimated at most at {bound.share:g} of {bound.gpu}"
                yield f"{_listed(bound.of)} on {', '.join(names)} are {most}: {bound.why}."
        for each in self.slower:
            pairs = [(a, b) for a in gpus for b in gpus if any(each.speaks_of(a, b, name) for name in each.families)]
            pairs = [(a, b) for a, b in pairs if a is not b and has_at_least(a, b)]
            if pairs:
                newer, older = (dict.fromkeys(gpu.name for gpu in side) for side in zip(*pairs, strict=True))
                compared = f"{', '.join(newer)} than on {', '.join(older)}"
                yield f"{_listed(each.families)} may be slower on {compared}: {each.why}."


def at_most(own: Estimate, seconds: Quantity) -> Estimate:
    """The same, brought down to ``seconds`` where that is less. Its interval moves along, but still holds the first."""
    ratio = np.minimum(1.0, seconds / own.seconds)
    if np.ndim(own.seconds) == 0:
        ratio = float(ratio)
    high: Any = np.where(ratio < 1.0, np.maximum(own.high * ratio, own.seconds), own.high)
    return replace(own.scaled(ratio), high=high if np.ndim(high) else float(high))


@lru_cache
def ordering(engine: str = identity.DEFAULT_ENGINE) -> Ordering:
    values = read_data(f"engines/{identity.DEFAULT_ENGINE}/ordering.toml")
    bounds = (Bound(**each) for each in values["at_most"])
    return Ordering(
        tuple(each for each in bounds if each.engine == engine), tuple(Slower(**each) for each in values["slower"])
    )


@lru_cache
def _words() -> dict[str, dict[str, str]]:
    """Kinds of kernels, and how well they are known (``statuses``, the best first), in words."""
    found: dict[str, dict[str, str]] = json.loads((DATA / "known_kernels.json").read_text(encoding="utf-8"))
    return found


def _listed(names: Sequence[str]) -> str:
    first, *others = (_words()["kinds"].get(name, name) for name in names)
    return ", ".join((first.capitalize(), *others))


BEYOND = 2.5
"""How much wider an interval is for shapes that no sweep has: of experts of 44 to 328 columns, no multiple of 16, 23 of
28 lie in it (11 as it was), of aligned ones below 256 columns 29 of 30."""


class ModelSelector:
    def __init__(
        self, artifact: Artifact, profile: identity.KernelProfile, *, tier: str | None, as_tabled: bool
    ) -> None:
        """``tier`` keeps better ones from being used; ``as_tabled`` leaves out what no table has."""
        self._artifact, self._profile, self._tier, self._as_tabled = artifact, profile, tier, as_tabled
        self._choices: dict[tuple[object, ...], tuple[Gpu, ModelChoice | None]] = {}

    def choose(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> ModelChoice | None:
        """The best model for this kind of operator on this GPU; None where no measured kernel is like it."""
        family = family_of(op)
        if not family.is_measured(op, gpu):
            return None
        variants = variants or family.variants(op, gpu, self._profile)
        engines = family.tables(op, gpu, self._profile)
        key = (id(gpu), family.name, variants, engines, beyond := family.is_beyond(op))
        if key not in self._choices:
            found = next(self._candidates(family.name, gpu, variants, engines), None)
            if found is not None and beyond and (found.entry.engine == identity.SWEEP or not family.is_swept(op)):
                entry = found.entry
                found = found._replace(entry=entry._replace(low=BEYOND * entry.low, high=BEYOND * entry.high))
            if len(self._choices) >= 4096:
                self._choices.clear()
            self._choices[key] = gpu, found  # the GPU is held, so that no other one takes its id
        return self._choices[key][1]

    def learner(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> Forest | None:
        """What was learned of such kernels, on other chips where physics alone is believed; None: nothing."""
        choice = self.choose(op, gpu, variants)
        if choice is None or choice.entry.rows:
            return None if choice is None else choice.forest
        family, variant = family_of(op), choice.entry.variant
        engines = (each for each in family.tables(op, gpu, self._profile) if each != identity.SWEEP)
        names = [each for each in (variant, identity.any_kernel(family.name, variant)) if each]
        pooled = (self._artifact.find(family.name, POOLED, *each) for each in product(engines, names))
        return next((forest for _, forest in filter(None, pooled)), choice.forest)

    def _candidates(
        self, family: str, gpu: Gpu, variants: tuple[str, ...], engines: tuple[str, ...]
    ) -> Iterator[ModelChoice]:
        others = tuple(dict.fromkeys(filter(None, (identity.any_kernel(family, each) for each in variants if each))))
        known = {entry.variant for entry in self._artifact.entries if entry.family == family}
        tabled = [engine for engine in engines if engine != identity.SWEEP][:1]
        if known.isdisjoint((*variants, *others)):  # no GPU has one: none needs to be looked at
            yield from self._stated(family, gpu, tabled, variants)
            return
        # One protocol of measuring at a time: a sweep of a sibling comes before the GPU's own rows in published tables,
        # so that chips of one die are compared by one kind of measurement and differ by what physics says.
        swept = (identity.SWEEP,) if identity.SWEEP in engines and not self._as_tabled else ()
        for protocol in (swept, tuple(engine for engine in engines if engine != identity.SWEEP)):
            for tier, names in self.known(gpu, family):
                if tier == "unseen" and protocol != swept:
                    yield from self._stated(family, gpu, tabled, variants)
                for engine, variant, name in product(protocol, variants, names):
                    if tier == "unseen" and not self._is_borrowed(family, engine, variants[0], variant):
                        continue
                    if tier == "sibling" and self._profile.stands_alone(gpu.kernels, family, variant):
                        continue
                    found = self._artifact.find(family, name, engine, variant)
                    if found is None:
                        continue
                    if tier == "sibling":
                        yield borrowed(gpu, load_gpu(name), *found)
                    else:
                        yield ModelChoice(tier, found[0].on(gpu.kernels), found[1])
        for engine, variant in product((each for each in engines if each != identity.SWEEP), others):
            # What was learned of other kernels is half believed, within a wider interval.
            if found := self._artifact.find(family, POOLED, engine, variant):
                yield ModelChoice("unseen", *found)

    @staticmethod
    def _stated(family: str, gpu: Gpu, engines: Sequence[str], variants: Sequence[str]) -> Iterator[ModelChoice]:
        """Physics alone, where its constants are of these kernels on this architecture."""
        for engine, variant in product(engines, variants[:1]):
            if interval := stated_interval(family, variant, gpu.kernels):
                entry = Entry(family, POOLED, engine, variant, 0, 0.0, 0.0, *interval, _mean_miss(interval))
                yield ModelChoice("unseen", entry, silent_forest())

    def _is_borrowed(self, family: str, engine: str, asked: str, variant: str) -> bool:
        """Whether a model is of the kernel that is asked for; each engine writes its own for Triton."""
        own = engine in (self._profile.engine, identity.SWEEP) or not self._profile.engine
        return identity.is_same_kernel(family, asked, variant) and (
            own or not identity.is_written_by_engine(family, variant)
        )

    def known(self, gpu: Gpu, family: str = "") -> Iterator[tuple[str, list[str]]]:
        """(tier, GPUs to borrow from), best and nearest first; kernels that a compiler writes are alike everywhere."""
        if self._tier is None:
            yield "measured", [gpu.name]
        if self._tier in (None, "sibling"):
            measured = sorted({entry.gpu for entry in self._artifact.entries} - {POOLED, gpu.name})
            same = by_kernels(self._profile.generations, gpu)
            everywhere = family in self._profile.everywhere
            relatives = [each for each in map(load_gpu, measured) if everywhere or each.kernels in same]
            relatives.sort(key=lambda other: abs(np.log(other.dram_bandwidth / gpu.dram_bandwidth)))
            yield "sibling", [other.name for other in relatives]
        yield "unseen", [POOLED]


def _in_bits(op: Any) -> tuple[Any, Any, float] | None:
    """For weights of which no kernel was measured, those of 4 and of 16 bits, and how far they are between the two, by
    their bytes; longer if they are unpacked slowly.
    """
    if getattr(op, "weight_dtype", None) not in ("int3", "int5", "int6"):
        return None
    bits, few, many = (bytes_of(each) for each in (op.weight_dtype, "int4", op.dtype))
    return replace(op, weight_dtype="int4"), replace(op, weight_dtype=op.dtype), (bits - few) / (many - few)


class Learned:
    """Estimates operators with an artefact, falling back to what is typical where it has nothing to say. Tiers, best
    first: *measured* (the GPU's own rows), *sibling* (a GPU of the same architecture), *unseen* (a model of several
    GPUs, for an unmeasured one). A kernel without any model is estimated by its physics alone and says so.
    """

    is_cheap = False
    is_bound = False

    def __init__(
        self, artifact: Artifact, profile: identity.KernelProfile, *, tier: str | None = None, as_tabled: bool = False,
        alone: bool = False, corrections: Mapping[tuple[str, str], Correction] | None = None,
    ) -> None:  # fmt: skip
        """``tier`` keeps better ones from being used: ``unseen`` takes a GPU as if it had never been measured.
        ``as_tabled`` takes kernels under the conditions of the tables they were learned from, ``alone`` with cold
        operands but no other kernels around. ``corrections`` are what anchor points taught of the GPU they came from.
        """
        self._artifact = artifact
        self.content = (
            ""  # What it rests on beside the files of this package, where those say all; empty: more than that
        )
        self._tier, self._as_tabled, self._is_alone = tier, as_tabled, alone
        self._alone: Learned | None = self if alone or as_tabled else None
        self._corrections = corrections or {}
        self._profile = profile
        self._fallback = Typical()
        self._chooser = ModelSelector(artifact, profile, tier=tier, as_tabled=as_tabled)
        self.choose, self.learner = self._chooser.choose, self._chooser.learner
        self._kinds: dict[object, tuple[Gpu, KernelModel]] = {}
        self._ordering = ordering(profile.engine or identity.DEFAULT_ENGINE)
        self._bounded = {bound.kernels for bound in self._ordering.bounds}
        self._lessers: dict[object, tuple[Gpu, tuple[Gpu, float] | None]] = {}

    def describe(self, gpu: Gpu) -> str:
        """What its estimates on this GPU rest on, in words."""
        if not is_modelled(gpu):
            return self._fallback.describe(gpu)
        measured = {entry.gpu for entry in self._artifact.entries}
        for tier, names in self._chooser.known(gpu):
            found = [name for name in names if name in measured]
            if found and tier == "measured":
                return "physics times an efficiency learned from measured kernels of this GPU"
            if found and tier == "sibling":
                return self._unmeasured(f"borrowed from its sibling {found[0]}", gpu)
        return self._unmeasured(f"learned from {', '.join(sorted(measured - {POOLED}))}", gpu)

    def _unmeasured(self, origin: str, gpu: Gpu) -> str:
        """With how well its kernels are known from other chips."""
        known = in_short(known_kernels(gpu, self._artifact, self._profile))
        return f"physics times an efficiency {origin}; this GPU was not measured ({known})"

    @property
    def alone(self) -> Learned:
        """The same of kernels that run by themselves."""
        if self._alone is None:
            self._alone = Learned(
                self._artifact, self._profile, tier=self._tier, alone=True, corrections=self._corrections
            )
        return self._alone

    def estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times. ``variants`` names the kernel, if known."""
        if (ends := _in_bits(op)) is not None:
            seconds, bound = self.seconds(op, gpu), self.estimate(ends[0], gpu, variants).bound
            return Estimate(seconds, 0.85 * seconds, 1.8 * seconds, "physics", bound)
        own, lesser = self._estimate(op, gpu, variants), self._lesser(op, gpu)
        return own if lesser is None else at_most(own, self._estimate(op, lesser[0], variants).seconds * lesser[1])

    def _estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Estimate:
        if not is_modelled(gpu):
            return self._fallback.estimate(op, gpu)
        first, *second = [
            self._kernels(half, gpu, size, variants).estimate(half, size) for half, size in self._sized(op)
        ]
        return join(first, second[0], padded_seconds(split_batch(op)[1], gpu)) if second else first

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if (ends := _in_bits(op)) is not None:
            few, many, share = ends
            known = self.seconds(few, gpu)
            return known + share * (self.seconds(many, gpu) - known)
        own, lesser = self._seconds(op, gpu), self._lesser(op, gpu)
        return own if lesser is None else np.minimum(own, self._seconds(op, lesser[0]) * lesser[1])

    def _seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if not is_modelled(gpu):
            return self._fallback.seconds(op, gpu)
        first, *second = [self._kernels(half, gpu, size).seconds(half, size) for half, size in self._sized(op)]
        seconds: Quantity = (
            fuse_prefill_decode(first, second[0], padded=padded_seconds(split_batch(op)[1], gpu)) if second else first
        )
        return seconds

    def _lesser(self, op: Op, gpu: Gpu) -> tuple[Gpu, float] | None:
        """A GPU and a share of its time that bounds this one's; None for most, and where it has a sweep of its own."""
        if gpu.kernels not in self._bounded or self._as_tabled:
            return None
        key = (id(gpu), op.family, getattr(op, "dtype", ""), getattr(op, "kernel", ""))
        if key not in self._lessers:
            choice, family = self.choose(op, gpu), family_of(op)
            lesser = self._ordering.lesser(op, gpu, family.table(op, gpu, self._profile) if family.table else "")
            own = choice is not None and choice.entry.engine == identity.SWEEP and choice.known is None
            self._lessers[key] = gpu, None if own else lesser  # as in `choose`
        return self._lessers[key][1]

    def model_of(self, op: Op, gpu: Gpu) -> KernelModel | None:
        """What estimates kernels like a single one; None where others have a say: anchors, or a GPU that bounds it."""
        if not is_modelled(gpu) or self._corrections or self._lesser(op, gpu) is not None:
            return None
        return self._kernels(op, gpu, families_of(op)[0].size_of_one(op))

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe, and the learned factor on their soft maximum."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            parts = {"prompts": self.explain(prompts, gpu), "decodes": self.explain(decodes, gpu)}
            return {f"{half} {name}": value for half, terms in parts.items() for name, value in terms.items()}
        if not is_modelled(gpu):
            return self._fallback.explain(op, gpu)
        family = family_of(op)
        return self._made(family, op, gpu, None).explain(op, family.sizes(op))

    def _sized(self, op: Op) -> list[tuple[Op, Any]]:
        """An operator or its two halves, each with what a step decides of it: in plain floats if it is one kernel."""
        family = families_of(op)[0]
        size = None if self._corrections else family.size_of_one(op)
        if size is not None:
            return [(op, size)]
        prompts, decodes = family.split(op)
        return [(op, family.sizes(op))] if decodes is None else [*self._sized(prompts), *self._sized(decodes)]

    def _kernels(self, op: Op, gpu: Gpu, size: Any, variants: tuple[str, ...] | None = None) -> KernelModel:
        family = family_of(op, size)
        key = (id(gpu), family.name, *family.kind(op), variants)
        if key not in self._kinds:
            if len(self._kinds) >= 4096:
                self._kinds.clear()
                self._lessers.clear()
            self._kinds[key] = gpu, self._made(family, op, gpu, variants)  # as in `choose`
        return self._kinds[key][1]

    def _correction(self, family: Family, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Correction | None:
        """What anchor points taught of this kernel, whichever model stands for it."""
        named = variants or family.variants(op, gpu, self._profile)
        return next((found for each in named if (found := self._corrections.get((family.name, each)))), None)

    def _made(self, family: Family, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> KernelModel:
        choice = self.choose(op, gpu, variants)
        known = choice.known if choice is not None and family.is_chip_bound else None
        if choice is not None and known is not None and has_inline_ecc(known) > has_inline_ecc(gpu):
            gpu = without_ecc(gpu)
            choice = choice._replace(bounds=ratio_bounds(gpu, known))
        correction = self._correction(family, op, gpu, variants) if self._corrections else None
        first = (variants or family.variants(op, gpu, self._profile) or ("",))[0]
        conditions: dict[str, Any] = {"engine": not self._as_tabled, "alone": self._is_alone}
        return KernelModel(family, op, gpu, choice, **conditions, correction=correction, first=first)


# What estimates on a GPU rest on, family by family: own rows, a kernel known from other chips, a new one, or a bound.
#
# The error to be expected is the one on rows, GPUs or kernels that were hidden from the model in question.

LEFT_OUT, NEW = 0.11, 0.17
"""What a kernel that one other chip has, and a new one, are off by at least: what attention on A100, L40S and H200
showed with each left out (known 9 to 12 %, new 12 to 17 %; docs/predict.md)."""
WITHIN = 1.2816  # Standard deviations from the middle to either end of an 80 % interval; the mean miss is 0.8 of one
ANNOUNCED = 0.3  # Of a GPU that is announced only and will run other kernels than those that stand for them: a guess


class KnownKernel(NamedTuple):
    kind: str  # What it computes, in which format
    kernel: str  # Its name where it has one, else empty
    status: str  # One of the ``statuses`` in `_words`
    chips: tuple[str, ...]  # GPUs with the rows that the estimate rests on
    error: float  # Mean absolute error of latency to be expected, as a share

    @property
    def words(self) -> str:
        return _words()["statuses"][self.status]


def known_kernels(gpu: Gpu, artifact: Artifact, profile: identity.KernelProfile) -> list[KnownKernel]:
    predictor = Learned(artifact, profile)
    return [_known(kind, op, gpu, predictor, artifact, profile) for kind, op in _kinds(gpu)]


def _kinds(gpu: Gpu) -> Iterator[tuple[str, Op]]:
    for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
        if gpu.supports(tensor_rate_of(dtype)):
            yield f"products, {dtype}", Gemm(1024, 4096, 4096, dtype)
    one, long = np.array([[1]]), np.array([[1024]])
    stored = ("bf16", "fp8") if gpu.supports("fp8") else ("bf16",)
    for kv_dtype in stored:
        yield f"attention over prompts, {kv_dtype} cache", Attention(long, long, 32, 8, 128, 128, kv_dtype=kv_dtype)
    for kv_dtype in stored:
        yield f"decoding, {kv_dtype} cache", Attention(one, long, 32, 8, 128, 128, kv_dtype=kv_dtype)
    narrow = (("bf16", "int4"), ("nvfp4", "nvfp4"))
    for dtype, weight in (*((each, each) for each in ("bf16", "fp8", "fp8_block")), *narrow):
        if gpu.supports(tensor_rate_of(dtype)):
            yield f"experts, {weight}", MoE(256, 2048, 768, 128, 8, dtype=dtype, weight_dtype=weight)


def _known(
    kind: str, op: Op, gpu: Gpu, predictor: Learned, artifact: Artifact, profile: identity.KernelProfile
) -> KnownKernel:
    family = family_of(op)
    kernel = identity.kernel_of(op, gpu, profile.engine) or family.variants(op, gpu, profile)[0].partition("/")[2]
    known = KnownKernel(kind, kernel, "physics", (), _mean_miss(family.interval))
    if is_modelled(gpu):
        known = _of_chosen(known, predictor.choose(op, gpu), gpu, artifact)
        return known._replace(status="announced", error=ANNOUNCED) if gpu.announced else known
    # Physics does not know its kernels: what published rows and runs leave, if there are any.
    typical = Typical()
    source, reached = typical.source_of(op, gpu), typical.reached(op, gpu)
    typical_error = 0.5  # Of GPUs without measured kernels: about what typical efficiencies miss other vendors' by
    return known._replace(
        status=source, error=_mean_miss((reached.low, reached.high)) if source == PUBLISHED else typical_error
    )


def _mean_miss(interval: tuple[float, float]) -> float:
    """Mean error of estimates with this 80 % interval of logarithms."""
    low, high = interval
    return 0.8 * expm1((high - low) / 2.0 / WITHIN)


def _of_chosen(known: KnownKernel, choice: ModelChoice | None, gpu: Gpu, artifact: Artifact) -> KnownKernel:
    if choice is None:
        return known
    error = choice.entry.held_out_error
    if choice.tier == "measured":
        return known._replace(status="measured", chips=(gpu.name,), error=error)
    stands_for_another = choice.entry.variant.endswith("/triton") and known.kernel not in ("triton", "")
    chips = _chips(choice, artifact) if choice.known is None else (choice.known.name,)
    if choice.known is not None and not stands_for_another:
        error = SIBLING_WIDENING * error
        error = error if choice.known.kernels == gpu.kernels else max(error, LEFT_OUT)
        return known._replace(status="sibling", chips=chips, error=error)
    if choice.is_new_kernel or stands_for_another:
        return known._replace(status="new", chips=chips, error=max(error, NEW))
    return known._replace(status="known", chips=chips, error=error if len(chips) > 1 else max(error, LEFT_OUT))


def _chips(choice: ModelChoice, artifact: Artifact) -> tuple[str, ...]:
    entry, is_new = choice.entry, choice.is_new_kernel
    prefix = entry.variant.rpartition("/")[0]
    own = (each for each in artifact.entries if (each.family, each.engine) == (entry.family, entry.engine))
    same = (each for each in own if each.variant == entry.variant or (is_new and each.variant.startswith(prefix)))
    return tuple(sorted({each.gpu for each in same} - {POOLED}))


def in_short(kernels: list[KnownKernel]) -> str:
    """One sentence of how many are known how well; empty where all were measured on the GPU itself."""
    parts = []
    for words in dict.fromkeys(_words()["statuses"].values()):
        errors = [each.error for each in kernels if each.words == words]
        if errors and words != "measured":
            few = " to ".join(dict.fromkeys(f"{100 * error:.0f}" for error in (min(errors), max(errors))))
            parts.append(f"{words}: {len(errors)} of {len(kernels)} kinds, expected error {few} %")
    return "; ".join(parts)


PREDICTORS = ("learned", "roofline")


@lru_cache
def default_artifact() -> Artifact:
    return load_artifact(DATA / "fitted/kernels.npz")


@cache
def _learned(engine: str) -> Learned:
    """One for all, which knows what it has estimated."""
    found = Learned(default_artifact(), identity.kernel_profile(engine))
    found.content = engine
    return found


def make_predictor(name: str = "learned", engine: str = identity.DEFAULT_ENGINE) -> Predictor:
    """A predictor by name, or a learned one from an artefact's path, of the kernels that an engine chooses."""
    if name == "roofline":
        return Roofline()
    if name == "learned":
        return _learned(engine)
    if name.endswith(".npz"):
        return Learned(load_artifact(Path(name)), identity.kernel_profile(engine))
    raise UnknownNameError("predictor", name, PREDICTORS, hint=", or the path of an artefact (.npz)")


RATES = (
    "sms", "boost_clock", "fma_flops", "special_rate", "dram_bandwidth", "l2_bandwidth",
    "nvlink_bandwidth", "pcie_bandwidth", "network_bandwidth",
)  # fmt: skip


class Changed(Adjusted):
    """As a sibling is estimated, with the unchanged chip as the sibling: its kernels and efficiency, other physics."""

    def __init__(self, predictor: Predictor, real: Gpu) -> None:
        super().__init__(predictor)
        self._real = real

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(self._real)}, times what physics says of the changes"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        known = self._predictor.estimate(op, self._real)
        if self.is_cheap or not is_modelled(gpu):
            return self._predictor.estimate(op, gpu)
        seconds: Any = self.seconds(op, gpu)
        if np.ndim(known.seconds) == 0:
            seconds = float(np.ravel(seconds)[0])
        low, high = (seconds * (end / known.seconds) ** SIBLING_WIDENING for end in (known.low, known.high))
        source = max(known.source, "sibling", key=SOURCES.index)
        bound = self._predictor.estimate(op, gpu).bound
        return replace(known, seconds=seconds, low=low, high=high, source=source, bound=bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if self.is_cheap or not is_modelled(gpu):
            return self._predictor.seconds(op, gpu)
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(
                fuse_prefill_decode(
                    self.seconds(prompts, gpu), self.seconds(decodes, gpu), padded=padded_seconds(decodes, gpu)
                )
            )
        family = family_of(op)
        here, there = (family.physics(op, chip, engine=True).seconds for chip in (gpu, self._real))
        ratio = np.clip((here / there) ** self._trust(op, gpu), *_bounds(gpu, self._real))
        seconds = np.ravel(self._predictor.seconds(op, self._real)) * ratio
        return np.asarray(Floor(op, gpu)(op, family.sizes(op), seconds))

    def _trust(self, op: Op, gpu: Gpu) -> float:
        """How far physics is believed, by what the real chip's estimate rests on."""
        choice = self._predictor.choose(op, self._real) if isinstance(self._predictor, Learned) else None
        return 1.0 if choice is None else trust_in(choice.entry, same_die=is_same_die(gpu, self._real))


def _bounds(gpu: Gpu, real: Gpu) -> tuple[float, float]:
    """No kernel gains or loses more than the resources that grew and shrank most; a larger cache may do more."""
    if gpu.l2_bytes != real.l2_bytes:
        return 0.0, np.inf
    rates = [getattr(gpu, name) / getattr(real, name) for name in RATES if getattr(real, name) > 0]
    rates += [rate / real.tensor_flops[dtype] for dtype, rate in gpu.tensor_flops.items() if dtype in real.tensor_flops]
    return 1.0 / max(1.0, *rates), 1.0 / min(1.0, *rates)


class PowerLimited(Adjusted):
    """All kernels longer by one factor: the board's limit is below what reading memory draws."""

    def __init__(self, predictor: Predictor, slower: float) -> None:
        super().__init__(predictor)
        self._slower = slower

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(gpu)}, {self._slower:.2f} times as long under the power limit"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        found = self._predictor.estimate(op, gpu).scaled(self._slower)
        return replace(found, source=max(found.source, "sibling", key=SOURCES.index))

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        return self._slower * self._predictor.seconds(op, gpu)


def power_limited(predictor: Predictor, gpu: Gpu) -> Predictor:
    """The same predictor for a GPU that an operator holds back (`hardware.limited`), itself for one that runs free."""
    if gpu.clock_limit and gpu.unlimited is not None:
        predictor = Changed(predictor, gpu.unlimited)
    slower = power_limits(gpu).always
    return PowerLimited(predictor, 1.0 + slower) if slower else predictor
