"""Speculative decoding: the method, the number of drafts, and P(the first i drafts are all accepted)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError, require
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.serve.speculation import Speculation

if TYPE_CHECKING:
    from infercast.models.draft import Draft
    from infercast.models.spec import ModelConfig


NGRAM, NGRAM_GPU = "ngram", "ngram_gpu"
EAGLE, EAGLE_3, MTP, DRAFT_MODEL = "eagle", "eagle3", "mtp", "draft_model"
BY_HEADS = (EAGLE, EAGLE_3, MTP)  # Methods that draft from the target's hidden states
TITLES = {
    NGRAM: "n-gram lookup", NGRAM_GPU: "n-gram lookup on the GPU", EAGLE: "EAGLE", EAGLE_3: "EAGLE-3",
    MTP: "multi-token prediction", DRAFT_MODEL: "a draft model",
}  # fmt: skip


SCHEDULED = (
    "num_drafts", "num_verified", "match", "lookahead", "drops_block", "read_ahead", "slots_taken", "by_batch",
)  # fmt: skip
MATCH_SHARE = 0.5  # Default share of steps in which an n-gram lookup finds anything: between prose and code editing
FORMS = (
    "a length above 1 (2.4), a rate below 1 (0.7), rates by position (0.75,0.55,0.4), length=2.4, rate=0.7, the name "
    "of a published curve, or a line of a log with 'Per-position acceptance rate'"
)


@dataclass(frozen=True, slots=True)
class Drafting:
    method: str
    num_drafts: int  # Drafts per sequence and step; the maximum if it depends on batch size
    acceptance: Acceptance
    draft: Draft | None = None
    tensor: int = 1
    num_verified: int = 0  # Tokens a sequence verifies per step where they are a tree; 0: 1 + K
    branches: int = 1  # Branches of the tree that later passes of the drafter extend
    heads_all: bool = False  # True if the drafter's head is computed for all verified tokens, not the last accepted one
    match: float = 1.0  # Share of a sequence's steps in which a lookup finds anything
    by_batch: tuple[tuple[int, int], ...] = ()
    """(sequences, drafts): from this batch size on, this many drafts; empty: always the same."""
    v2_runner: bool = True  # True if launched by vLLM's V2 model runner: one graph per whole draft pass
    asynchronous: bool = True  # True if a step is scheduled before the last result is known
    lookahead: int = 0  # KV slots of a sequence beyond its tokens, for drafts of the next step
    drops_block: bool = False  # True if the last block of a prefix hit is recomputed
    read_ahead: int = 0  # Prompt tokens it reads beyond those a step computes, which the step must leave for it
    slots_taken: int = 0
    note: str = ""

    @property
    def width(self) -> int:
        return self.num_verified or 1 + self.num_drafts

    @property
    def passes(self) -> int:
        return self.num_drafts if self.draft is not None else 0

    @property
    def title(self) -> str:
        return TITLES[self.method]

    def speculation(self, **rules: Any) -> Speculation:
        """What a scheduler needs of it, with the rules of a release."""
        same = {name: getattr(self, name) for name in SCHEDULED}
        return Speculation(acceptance=self.acceptance.rates, **{**same, **rules})

    def capped(self, max_num_seqs: int) -> int:
        return max_num_seqs * self.width


class Acceptance(NamedTuple):
    rates: tuple[float, ...]  # P(the first i drafts are all accepted), i = 1, 2, ..., falling
    source: str = ""
    is_assumed: bool = False  # True if not specified, so that published ones stand in

    @property
    def length(self) -> float:
        """Tokens per step and sequence: the accepted ones, and one of the target's own."""
        return 1.0 + sum(self.rates)


class Curve(NamedTuple):
    """Published acceptance lengths of one model for 1, 2, ... drafts per step."""

    name: str
    model: str
    method: str
    lengths: tuple[float, ...]
    title: str
    url: str

    def rates(self, num_drafts: int) -> tuple[float, ...]:
        """What each further draft adds, at least 0; beyond the last published one by the ratio of the last two."""
        before = (1.0, *self.lengths)
        rates: list[float] = []
        for position, length in enumerate(self.lengths[:num_drafts]):
            most = rates[-1] if rates else 1.0
            rates.append(min(max(length - before[position], 0.0), most))
        while len(rates) < num_drafts:
            kept = rates[-1] / rates[-2] if len(rates) > 1 and rates[-2] else rates[0]
            rates.append(rates[-1] * kept)
        return tuple(rates)


@cache
def curves() -> dict[str, Curve]:
    data, found = read_data("acceptance.toml"), {}
    for checkpoint, facts in data["curves"].items():
        model, source = facts.get("model", checkpoint), data["sources"][facts["source"]]
        for drafting, lengths in facts.items():
            if isinstance(lengths, tuple):
                name, method = f"{checkpoint}-{drafting}", drafting.partition("-")[0]
                found[name] = Curve(name, model, method, lengths, source["title"], source["url"])
    return found


def by_length(length: float, num_drafts: int) -> tuple[float, ...]:
    """As in vLLM's synthetic mode: the whole drafts in the length are always accepted, then the fraction."""
    if not 1.0 <= length <= num_drafts + 1:
        raise InputError(
            f"an acceptance length must lie between 1 and {num_drafts + 1}, one more than the {num_drafts} drafts a "
            f"step, not {length:g}"
        )
    full = int(length - 1.0)
    return tuple([1.0] * full + [length - 1.0 - full] + [0.0] * num_drafts)[:num_drafts]


def by_rate(rate: float, num_drafts: int) -> tuple[float, ...]:
    """Each draft has the same acceptance rate, given that the previous one was accepted."""
    require(0.0 <= rate <= 1.0, "an acceptance rate", "lie between 0 and 1", rate)
    return tuple(rate ** (position + 1) for position in range(num_drafts))


def by_position(rates: Sequence[float], num_drafts: int) -> tuple[float, ...]:
    """One rate per draft, as vLLM logs and takes them."""
    if len(rates) != num_drafts:
        raise InputError(f"there are {len(rates)} acceptance rates for {num_drafts} drafts a step; give one for each")
    require(all(0.0 <= rate <= 1.0 for rate in rates), "acceptance rates", "lie between 0 and 1", list(rates))
    if any(after > before for before, after in pairwise(rates)):
        raise InputError(
            f"acceptance rates must not rise from one position to the next ({list(rates)}): a draft is accepted only "
            "if those before it are"
        )
    return tuple(rates)


def read_acceptance(text: str, num_drafts: int) -> Acceptance:
    text = text.strip()
    if found := re.search(r"[Pp]er-position acceptance rate:\s*([0-9.,\s]+)", text):
        rates = [_number(part) for part in found.group(1).strip(" ,").split(",")]
        return Acceptance(by_position(rates, num_drafts), "rates by position of a log")
    if found := re.search(r"(?:[Mm]ean acceptance length|accept len):\s*([0-9.]+)", text):
        return Acceptance(_from_length(_number(found.group(1)), num_drafts), "the mean length of a log")
    kind, equals, value = text.partition("=")
    if equals and kind in ("length", "rate"):
        number = _number(value)
        rates_of = by_length if kind == "length" else by_rate
        return Acceptance(rates_of(number, num_drafts), f"a given {kind}")
    if "," in text:
        return Acceptance(by_position([_number(part) for part in text.split(",")], num_drafts), "given by position")
    if text in curves():
        return published(curves()[text], num_drafts)
    if re.fullmatch(r"[0-9.]+", text):
        return _from_number(_number(text), num_drafts)
    raise UnknownNameError("acceptance", text, curves(), f"; or give {FORMS}")


def published(curve: Curve, num_drafts: int) -> Acceptance:
    return Acceptance(curve.rates(num_drafts), f"{curve.name} ({curve.title})")


def usual(model: str, method: str, num_drafts: int) -> Acceptance:
    """The default: published for the same model, else the median over all published for a method."""
    if method in (NGRAM, NGRAM_GPU):
        return Acceptance(by_rate(0.5, num_drafts), "half of what a lookup finds, a guess", is_assumed=True)
    for name, curve in curves().items():
        if curve.method == method and model.startswith(curve.model):
            return published(curves()[name], num_drafts)._replace(is_assumed=True)
    alike = [curve for curve in curves().values() if curve.method == method] or [*curves().values()]
    from statistics import median  # noqa: PLC0415 - it loads decimals and fractions

    middle = tuple(median(position) for position in zip(*[curve.rates(num_drafts) for curve in alike], strict=True))
    return Acceptance(middle, f"the middle of {len(alike)} published curves", is_assumed=True)


def _from_number(value: float, num_drafts: int) -> Acceptance:
    """A plain number: above one it can only be a length, below one only a rate."""
    if value == 1.0:
        raise InputError(
            "acceptance 1 may be a length (no draft is accepted) or a rate (all are); say length=1 or rate=1"
        )
    if value > 1.0:
        return Acceptance(by_length(value, num_drafts), "a given length")
    return Acceptance(by_rate(value, num_drafts), "a given rate")


def _from_length(length: float, num_drafts: int) -> tuple[float, ...]:
    low, high = 0.0, 1.0
    if not 1.0 <= length <= num_drafts + 1:
        return by_length(length, num_drafts)  # raises the error
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 + sum(by_rate(middle, num_drafts)) < length else (low, middle)
    return by_rate(low, num_drafts)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"acceptance {text.strip()!r} is not a number; give {FORMS}") from None


def draft_of(
    method: str, named: str | None, target: ModelConfig, quantization: str | None = None, *, dummy_weights: bool = False
) -> tuple[Draft | None, str]:
    """The drafter of a method and a model's name, and what was assumed; with dummy weights it has no own table."""
    if method in (NGRAM, NGRAM_GPU):
        return None, ""
    from infercast.models.draft import eagle_draft, model_draft, prediction_draft, usual_head  # noqa: PLC0415 - few draft
    from infercast.models.library import bundled_name  # noqa: PLC0415
    from infercast.models.read import read_model  # noqa: PLC0415

    if method == MTP:
        return prediction_draft(target), ""
    model, note = str(named), ""
    if method == DRAFT_MODEL:
        return model_draft(read_model(model, quantization=quantization), target), ""
    if os.path.exists(model) or bundled_name(model):
        draft = eagle_draft(method, model, target)
    elif model.endswith(".json") or model.startswith("."):
        raise InputError(f"draft model {model!r}: there is no such file or folder")
    else:
        draft = usual_head(method, model, target)
        note = f"{model} is not at hand: a head of one dense layer as wide as {target.name} stands for it"
    return draft.with_head_of(target) if dummy_weights else draft, note
