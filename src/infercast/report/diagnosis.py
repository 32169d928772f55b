"""What limits a run and what would change that, as rows and as plain data."""

from __future__ import annotations

from typing import Any

from infercast import units
from infercast.forecast.diagnosis.changes import ANSWERS, GPUS
from infercast.forecast.diagnosis.diagnose import Remedy, RunDiagnosis, diagnose_run
from infercast.forecast.diagnosis.growth import Binding
from infercast.forecast.diagnosis.trials import CAPACITY, Gain, value_in
from infercast.forecast.intervals import Intervals
from infercast.forecast.result import Forecast
from infercast.report.terminal import Facts, Printable, Renderers, pick

EXAMPLE = "ttft_p99<1s,tpot_p95<40ms"
POOLED = "e2e_p99<1s"
WORTH_WORDS = 0.1  # Shares and changes of other numbers from which on they are told


def diagnosis_of(forecast: Forecast, intervals: Intervals | None, *, trials: bool = True) -> RunDiagnosis:
    """Made once for a forecast and what it is held against."""
    key = f"diagnosis of {forecast.verdict and forecast.verdict.slo}{'' if trials else ' by its counts'}"
    return forecast.keep(key, lambda: diagnose_run(forecast, intervals, trials=trials))


def diagnosis_rows(found: RunDiagnosis) -> list[tuple[str, str]]:
    return [
        ("bottleneck", bottleneck_words(found)), ("change", change_words(found)), ("breaks first", breaks_words(found)),
    ]  # fmt: skip


def counted_rows(forecast: Forecast | None, then: str) -> list[tuple[str, str]]:
    """Of an answer with changes of its own: what limits the run that it stands on, by its counts, and what to do."""
    if forecast is None:
        return [("next", then)]
    bottleneck, _, breaks = diagnosis_rows(diagnosis_of(forecast, None, trials=False))
    return [bottleneck, breaks, ("next", then)]


def counted_dict(forecast: Forecast | None, then: str) -> dict[str, Any]:
    found = None if forecast is None else diagnosis_dict(diagnosis_of(forecast, None, trials=False))
    return {name: found and found[name] for name in ("bottleneck", "breaks_first")} | {"next": then}


def bottleneck_words(found: RunDiagnosis) -> str:
    """``gemm in decode steps, bound by memory bandwidth: 66.4 % of TPOT p50``, and what comes next."""
    causes = [each for each in found.causes if each.share > 0.0]
    if not causes:
        return "nothing that can be told apart"
    others = [each for each in causes[1:] if each.share >= WORTH_WORDS][:1]
    after = "".join(f"; then {each.name} ({units.format_percent(each.share)})" for each in others)
    return f"{causes[0].words(found.aim)}{after}"


def change_words(found: RunDiagnosis) -> str:
    remedy = found.remedy
    if remedy is None:
        if found.is_kept:
            return "none needed: the SLO holds"
        if found.tried is None:
            return "not looked for"
        tried = f" of {len(found.tried)} that were tried" if found.tried else ""
        late = "; the time limit left no time for others, a longer --time-limit does" if found.is_late else ""
        return f"none{tried} helps by 5 % or more{late}"
    first, *others = remedy.gains
    least = max(WORTH_WORDS, first.error)
    told = [each for each in others if abs(each.ratio - 1.0) > max(least, each.error)]
    told.sort(key=lambda each: -abs(each.gain))
    also = "".join(f", {each.aim.name} {ratio_words(each.ratio)}" for each in told[:1])
    return f"{remedy.words}: {_gain_words(found, first)}{also}; {price_words(found, remedy)}"


def _gain_words(found: RunDiagnosis, gain: Gain) -> str:
    low, high = (ratio_words(each) for each in gain.ends)
    text = f"{gain.aim.name} {ratio_words(gain.ratio)} ({low} to {high})"
    now = value_in(found.forecast, gain.aim)
    if (limit := gain.aim.limit) is not None and now is not None:
        word = "within" if now * gain.ratio < limit.seconds else "still above"
        return f"{text}: {units.format_seconds(now * gain.ratio)}, {word} its {units.format_seconds(limit.seconds)}"
    if gain.aim.quantity == CAPACITY and now is not None:
        offered = found.forecast.workload.rate or 0.0
        still = f", still less than the {offered:,.3g} that arrive" if now * gain.ratio < offered else ""
        return f"{text}: {now * gain.ratio:,.3g} requests/s{still}"
    return text


def ratio_words(ratio: float) -> str:
    return f"x {ratio:.3g}" if ratio >= 3.0 else f"{100.0 * (ratio - 1.0):+.1f} %"


def price_words(found: RunDiagnosis, remedy: Remedy) -> str:
    before = found.forecast.gpus
    if remedy.change.cost == GPUS:
        dollars = "" if remedy.per_hour is None else f", {units.format_dollars(remedy.per_hour)} per hour"
        return f"{units.format_gpus(remedy.gpus)} in place of {before:,}{dollars}"
    return "same GPUs; check its answers" if remedy.change.cost == ANSWERS else "same GPUs"


def breaks_words(found: RunDiagnosis) -> str:
    """``max_num_seqs at 39 requests/s (2.9 % in use), KV cache at 39``."""
    useless = {each.kind for each in found.causes if each.tried and each.share <= 0.0}
    shown = 3  # Limits that break first
    parts = [_binding_words(each, useless) for each in found.breaks[:shown]]
    return ", then ".join(parts) if parts else "nothing that grows with the load"


def _binding_words(each: Binding, useless: set[str]) -> str:
    number = f"{each.load:,.0f}" if each.load >= 100 or each.unit == "clients" else f"{each.load:.3g}"
    more = "; more would not help" if each.kind in useless else ""
    return f"{each.name} at {number} {each.unit} ({units.format_percent(each.share)} in use{more})"


def serving_words(forecast: Forecast) -> str:
    most_in_refusal = 3  # Changes of each price that are tried before a refusal
    found = diagnose_run(forecast, most=most_in_refusal)
    if found.remedy is None or found.aim.quantity != CAPACITY:
        return ""
    most = (value_in(found.forecast, found.aim) or 0.0) * found.remedy.gains[0].ratio
    return f"take {found.remedy.words} (about {most:.3g} requests/s), "


def next_words(found: RunDiagnosis, change: str | None = None) -> str:
    """The one thing to do next; ``change``: options that an answer advises by a search of its own, if any do."""
    if change is None and found.remedy is not None:
        change = found.remedy.words
    if change:
        return f"{change} in this command shows the change in full"
    if found.is_kept:
        return "`infercast plan` finds the cheapest GPUs that keep this SLO"
    if found.forecast.verdict is None:
        example = POOLED if found.forecast.deployment.model.pools else EXAMPLE
        return f'--slo "{example}" says whether users get what they need, and what to change'
    return "`infercast plan` finds GPUs that keep this SLO"


def diagnosis_dict(found: RunDiagnosis) -> dict[str, Any]:
    remedy = found.remedy
    gain = None if remedy is None else remedy.gains[0]
    return {
        "of": found.aim.name, "bottleneck": bottleneck_words(found),
        "causes": [pick(each, "kind name share tried", bound_by="detail") for each in found.causes],
        "change": change_words(found), "options": None if remedy is None else remedy.words,
        "before": None if gain is None else value_in(found.forecast, gain.aim),
        "ratio": None if gain is None else gain.ratio, "ratio_interval": None if gain is None else list(gain.ends),
        "gpus": None if remedy is None else remedy.gpus, "usd_per_hour": None if remedy is None else remedy.per_hour,
        "breaks_first": [pick(each, "name load unit", used="share") for each in found.breaks],
        "simulations": found.simulations, "next": next_words(found),
    }  # fmt: skip


def render_diagnosis(found: RunDiagnosis) -> list[Printable]:
    return [Facts([*diagnosis_rows(found), ("next", next_words(found))])]


RENDERERS = {"RunDiagnosis": Renderers(diagnosis_dict, render_diagnosis, rows="causes")}
