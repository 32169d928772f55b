"""A calibration: factors learned from measured results, its file ``calibration.toml``, and its use on a deployment.

Factors of the host, API server and network hold for the machine, those of GPU times for the same GPU, engine and format
of weights, less surely where something else differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from math import exp, hypot
from pathlib import Path
from statistics import median
from typing import Any

from infercast.engines.base import Deployment, engine_named
from infercast.engines.settings import changed
from infercast.engines.speculation import read_acceptance
from infercast.engines.timer import Corrections, Factor
from infercast.errors import Fields, FileFormatError, InputError
from infercast.hardware.load import read_table
from infercast.lazy_classes import NamedTuple, dataclass, fields, replace
from infercast.predict.learned import WITHIN
from infercast.shown import ResultMixin
from infercast.units import format_percent

ELSEWHERE = 0.5  # Share of the former uncertainty that returns with another model, layout or engine: an assumption
FORM = 1
MOST = 100.0  # No factor is larger, or smaller than one over it, and no path longer in seconds
TAILS = ("p90", "p95", "p99")


class Learned(NamedTuple):
    value: float
    spread: float  # Its standard deviation (of the logarithm of a factor) after the results were seen ...
    before: float  # ... and before, when its value was 1, or 0 seconds.

    @property
    def is_learned(self) -> bool:
        """Whether the results leave little of the standard deviation before them."""
        return self.spread <= 0.7 * self.before

    def ends(self, side: int, *, before: bool = False) -> float:
        """What the upper (1) or the lower (-1) end of its 80 % interval is over its middle."""
        return exp(side * WITHIN * (self.before if before else self.spread))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    engine: str
    model: str
    gpu: str
    layout: str
    weights: str
    kv_cache: str
    api_server: bool
    host: str  # The host whose times the factor corrects

    @staticmethod
    def of(deployment: Deployment) -> Fingerprint:
        model = deployment.model
        return Fingerprint(
            engine=deployment.engine.name, model=model.name, gpu=deployment.gpu.name, layout=str(deployment.layout),
            weights=model.weights.name, kv_cache=model.cache_dtype, api_server=deployment.over_http,
            host=deployment.host.title,
        )  # fmt: skip


class Pair(NamedTuple):
    """One quantity of one result: measured, forecast without the calibration, and with it."""

    quantity: str
    measured: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Source:
    file: str
    sha256: str
    kind: str
    load: str
    requests: int
    pairs: tuple[Pair, ...] = ()
    left_out: tuple[Pair, ...] = ()  # The same with factors from the other results only; empty where there are none
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(ResultMixin):
    """Factors with their uncertainty, and where they come from."""

    deployment: Fingerprint
    host: Learned
    prefill: Learned
    decode: Learned
    path: Learned
    results: tuple[Source, ...]
    prefix_hit_rate: float | None = None  # Share of prompt tokens found in the prefix cache, where a result has it
    acceptance_length: float | None = None  # Tokens per step of speculative decoding, where a result has it
    version: str = ""  # Of infercast
    title: str = ""

    def _words(self) -> str:
        known = [name for name, learned in self.factors.items() if learned.is_learned]
        return f"of {len(self.results)} results: learned {', '.join(known) or 'nothing'}"

    @property
    def factors(self) -> dict[str, Learned]:
        return {name: getattr(self, name) for name in FACTORS}


UNLIKELY, FAR_OFF = 1.5, 0.25  # Widths of what is likely, and an error, beyond which results are of something else
FACTORS = tuple(each.name for each in fields(Calibration) if each.name in ("host", "prefill", "decode", "path"))
TITLES = {
    "host": "host time", "prefill": "GPU time of steps with prompts", "decode": "GPU time of decode steps",
    "path": "API server and network",
}  # fmt: skip


def with_acceptance(deployment: Deployment, length: float) -> Deployment:
    """The deployment with this acceptance length, as far as its drafts allow; a given acceptance stays."""
    drafting = deployment.drafting
    if drafting is None or not drafting.acceptance.is_assumed:
        return deployment
    within = min(max(length, 1.0), drafting.num_drafts + 1.0)
    accepted = read_acceptance(f"length={within:.6g}", drafting.num_drafts)
    known = replace(drafting, acceptance=accepted._replace(source="measured results"))
    return replace(deployment, settings=changed(deployment.settings, drafting=known))


def carried(calibration: Calibration, asked: Fingerprint) -> Corrections:
    known = calibration.deployment
    if not asked.host.startswith(known.host):  # a what-if says behind it how many times as fast
        raise InputError(
            f"calibration {calibration.title or 'given'} is on top of the host times of {known.host!r}, not of "
            f"{asked.host!r}; leave --host out, or give the one it was made with"
        )
    same_engine = engine_named(asked.engine).family == engine_named(known.engine).family
    same_gpu = asked.gpu == known.gpu
    same_steps = same_gpu and same_engine and asked.weights == known.weights
    other_model = (asked.model, asked.layout, asked.kv_cache, asked.engine) != (
        known.model, known.layout, known.kv_cache, known.engine,
    )  # fmt: skip
    # Another GPU is taken to be in another machine.
    of_host = 1.0 if not same_gpu else 0.0 if same_engine else ELSEWHERE
    of_gpu = ELSEWHERE if other_model else 0.0
    return Corrections(
        host=_less_sure(calibration.host, of_host),
        prompts=_less_sure(calibration.prefill, of_gpu) if same_steps else None,
        decodes=_less_sure(calibration.decode, of_gpu) if same_steps else None,
        path=_less_sure(calibration.path, of_host) if asked.api_server == known.api_server else None,
        title=calibration.title,
        notes=tuple(_notes(known, asked, same_steps=same_steps)),
    )


def _less_sure(learned: Learned, share: float) -> Factor:
    return Factor(
        learned.value, min(hypot(learned.spread, share * learned.before), max(learned.before, learned.spread))
    )


def _notes(known: Fingerprint, asked: Fingerprint, *, same_steps: bool) -> list[str]:
    names = {
        "gpu": "GPU", "engine": "engine", "model": "model", "weights": "weights", "layout": "layout",
        "kv_cache": "KV cache", "api_server": "API server",
    }  # fmt: skip
    other = [
        f"{title} {getattr(known, name)} (asked: {getattr(asked, name)})"
        for name, title in names.items()
        if getattr(known, name) != getattr(asked, name)
    ]
    if not other:
        return []
    held = "host and GPU factors are used, less surely" if same_steps else "host factors alone are used"
    network = "" if known.api_server == asked.api_server else ", and nothing of API server and network"
    return [f"The calibration is of another deployment, with {', '.join(other)}: {held}{network}."]


def calibrated(deployment: Deployment, calibration: Path | str | Calibration) -> Deployment:
    if not isinstance(calibration, Calibration):
        calibration = read_calibration(Path(calibration))
    if calibration.acceptance_length is not None:
        deployment = with_acceptance(deployment, calibration.acceptance_length)
    corrections = carried(calibration, Fingerprint.of(deployment))
    return replace(deployment, host=corrections.corrected(deployment.host), corrections=corrections)


def keys_of(name: str) -> tuple[str, str, str]:
    """Names in files and JSON of a factor's value and its spreads after and before the results."""
    return ("extra_ms", "spread_ms", "spread_before_ms") if name == "path" else ("factor", "spread", "spread_before")


def write_calibration(calibration: Calibration) -> str:
    lines = [
        "# What measured results say of this deployment beyond infercast's estimates. Give it to any command that",
        "# simulates: --calibration FILE. A factor of 1.1 says that times are 1.1 times as long as estimated;",
        "# spread is the standard deviation of its logarithm, spread_before the same without the results.",
        f"form = {FORM}",
        f"infercast = {_text(calibration.version)}",
        "",
        "[deployment]",
    ]
    known = calibration.deployment
    lines += [f"{each.name} = {_text(getattr(known, each.name))}" for each in fields(known)]
    for name, learned in calibration.factors.items():
        scale = 1e3 if name == "path" else 1.0
        note = "" if learned.is_learned else "  # not determined by the results"
        value, spread, before = keys_of(name)
        lines += ["", f"[{name}]  # {TITLES[name]}", f"{value} = {scale * learned.value:.6g}{note}"]
        lines += [f"{spread} = {scale * learned.spread:.4g}", f"{before} = {scale * learned.before:.4g}"]
    seen = {name: getattr(calibration, name) for name in ("prefix_hit_rate", "acceptance_length")}
    if any(value is not None for value in seen.values()):
        lines += ["", "[seen]  # of the load that was measured"]
        lines += [f"{name} = {value:.6g}" for name, value in seen.items() if value is not None]
    for source in calibration.results:
        lines += ["", *_source(source)]
    return "\n".join(lines) + "\n"


def _source(source: Source) -> list[str]:
    words = [f"{name} = {_text(getattr(source, name))}" for name in ("file", "sha256", "kind", "load", "requests")]
    lines = ["[[results]]", *words]
    if source.assumptions:
        lines.append(f"assumptions = [{', '.join(map(_text, source.assumptions))}]")
    for name, pairs in (("quantities", source.pairs), ("left_out", source.left_out)):
        if pairs:
            lines.append(f"{name} = [  # measured, forecast before, forecast after")
            lines += [
                f"    [{_text(each.quantity)}, {each.measured:.6g}, {each.before:.6g}, {each.after:.6g}],"
                for each in pairs
            ]
            lines.append("]")
    return lines


def _text(value: str | bool | int) -> str:
    """As TOML writes it, which is as JSON does."""
    return json.dumps(value, ensure_ascii=True)


def read_calibration(path: Path) -> Calibration:
    values = read_table(path, path)
    if values.get("form") != FORM:
        raise FileFormatError(path, f"is not a calibration of form {FORM}; `infercast calibrate` writes one")
    for name in ("deployment", *FACTORS):
        if not isinstance(values.get(name), dict):
            raise FileFormatError(path, f"[{name}] is missing; `infercast calibrate` writes it")
    known, seen, results = values["deployment"], values.get("seen", {}), values.get("results", [])
    if not (isinstance(seen, dict) and isinstance(results, list) and all(isinstance(each, dict) for each in results)):
        raise FileFormatError(path, "[seen] must be a table and [[results]] tables")
    for each in fields(Fingerprint):
        kind, wanted = (bool, "true or false") if each.name == "api_server" else (str, "text")
        if not isinstance(known.get(each.name), kind):
            raise FileFormatError(path, f"deployment.{each.name} must be {wanted}, not {known.get(each.name)!r}")
    learned: dict[str, Any] = {name: _learned(Fields(path, values[name], name), name) for name in FACTORS}
    for name, ends in (("prefix_hit_rate", (0.0, 1.0)), ("acceptance_length", (1.0, MOST))):
        if name in seen:
            learned[name] = Fields(path, seen, "seen").needed(name, *ends)
    return Calibration(
        deployment=Fingerprint(**{each.name: known[each.name] for each in fields(Fingerprint)}), **learned,
        results=tuple(_read_source(path, each) for each in results), version=str(values.get("infercast", "")),
        title=path.name,
    )  # fmt: skip


def _learned(table: Fields, name: str) -> Learned:
    least, most, scale = (-1e3 * MOST, 1e3 * MOST, 1e3) if name == "path" else (1 / MOST, MOST, 1.0)
    value, *spreads = keys_of(name)
    return Learned(
        table.needed(value, least, most) / scale, *(table.needed(each, 0.0, most) / scale for each in spreads)
    )


def _read_source(path: Path, table: dict[str, Any]) -> Source:
    """A source changes nothing, so only its form is checked."""
    requests = table.get("requests", 0)
    return Source(
        **{name: str(table.get(name, "")) for name in ("file", "sha256", "kind", "load")},
        requests=requests if isinstance(requests, int) else 0, pairs=_pairs(path, table.get("quantities", [])),
        left_out=_pairs(path, table.get("left_out", [])), assumptions=tuple(map(str, table.get("assumptions", []))),
    )  # fmt: skip


def _pairs(path: Path, rows: Any) -> tuple[Pair, ...]:
    try:
        pairs = tuple(Pair(str(name), *(float(value) for value in values)) for name, *values in rows)
    except (TypeError, ValueError):
        raise FileFormatError(path, "results.quantities must be rows of a name and three numbers") from None
    if not all(math.isfinite(value) for pair in pairs for value in pair[1:]):
        raise FileFormatError(path, "results.quantities must be finite numbers")
    return pairs


class Errors(NamedTuple):
    """Medians over results of absolute errors, as shares of what was measured."""

    results: int
    before: float
    after: float


def errors_of(calibration: Calibration, *, left_out: bool = False) -> dict[str, Errors]:
    """By latency, of its middle and of its tail; of what was ``left_out``, where something was."""
    kinds: dict[str, list[Pair]] = {}
    for source in calibration.results:
        for pair in source.left_out if left_out else source.pairs:
            kinds.setdefault(_kind(pair.quantity), []).append(pair)
    return {kind: _summed_up(pairs) for kind, pairs in kinds.items()}


def median_errors(calibration: Calibration, *, left_out: bool = False) -> Errors | None:
    """The same of the middles of TTFT and TPOT together; None where there is none."""
    pairs = [
        pair
        for source in calibration.results
        for pair in (source.left_out if left_out else source.pairs)
        if pair.quantity.startswith(("ttft", "tpot")) and not pair.quantity.endswith(TAILS)
    ]
    return _summed_up(pairs) if pairs else None


def doubts_of(calibration: Calibration) -> list[str]:
    """Why the results may be of another deployment than the one that was named."""
    found = []
    for name, learned in calibration.factors.items():
        low, high = (learned.ends(side, before=True) for side in (-1, 1))
        if name != "path" and not low**UNLIKELY <= learned.value <= high**UNLIKELY:
            found.append(
                f"the factor of {TITLES[name]} is {learned.value:.2f}, far beyond the {low:.2f} to {high:.2f} that are "
                "likely: are the results of this model, format, GPU and release?"
            )
    errors, left_out = (median_errors(calibration, left_out=each) for each in (False, True))
    if errors is not None and errors.after > FAR_OFF:
        found.append(f"forecasts with these factors are still {format_percent(errors.after)} off the results")
    if left_out is not None and left_out.after > left_out.before:
        found.append("on what was left out forecasts are worse with the factors: the results do not fit together")
    return found


def _kind(quantity: str) -> str:
    latency, _, statistic = quantity.partition("_")
    titles = {"itl": "time between tokens", "e2e": "end to end", "output": "throughput"}
    title = latency.upper() if latency in ("ttft", "tpot") else titles.get(latency, latency)
    return f"{title} {statistic}" if statistic in (*TAILS, "p50", "mean") else title


def _summed_up(pairs: Iterable[Pair]) -> Errors:
    found = list(pairs)
    before, after = (
        median(abs(getattr(pair, name) / pair.measured - 1) for pair in found) for name in ("before", "after")
    )
    return Errors(len(found), before, after)
