"""A command explained, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from typing import Any

from infercast.engines.settings import IGNORED, NOT_MODELLED, REFUSED
from infercast.forecast.command.explain import Advice, Advised, Explained, Fix, FlagExplanation, MetricDelta, ServedLoad
from infercast.forecast.command.flags import Flag
from infercast.forecast.diagnosis.diagnose import RunDiagnosis
from infercast.report.caveats import brief_doubts
from infercast.report.deployment import fit_dict, memory_words, render_fit
from infercast.report.diagnosis import diagnosis_of, next_words, ratio_words
from infercast.report.forecast import brief_rows, cost_rows, forecast_dict, limit_table, slo_title
from infercast.report.quantities import LENGTHS, format_band
from infercast.report.terminal import (
    SCREEN,
    Facts,
    Grid,
    Paragraph,
    Printable,
    Renderers,
    Section,
    named_first,
    on_screen,
    pick,
    styled,
)
from infercast.units import format_figure, format_seconds

BEST, FEW_EFFECTS = 4, 2  # changes on one screen, and what each of them does
BRIEF = {IGNORED: "no forecast depends on it"}  # one note for all flags of a status, and where they are many:
SHORT = BRIEF | {NOT_MODELLED: "--full says which way each moves the result", REFUSED: "--full says why"}
MORE = "--full (every flag, memory, all that was tried), --no-advice (at once), --json"
_FORECAST_COLUMNS = (
    "load", "requests/s", "TTFT p50", "p99", "80 % interval", "TPOT p50", "p99", "80 % interval", "output tokens/s",
    "state",
)  # fmt: skip


_BRIEF_COLUMNS = ("load", "rate/s", "TTFT p50", "p99", "80 % of it", "TPOT p50", "p99", "80 % of it", "tokens/s")


def render_explained(explained: Explained) -> list[Printable]:
    parts: list[Printable] = [Section("The command", Facts(_about(explained)))]
    if explained.meanings:
        rows = [(f"--{each.flag.name}", each.flag.text, each.default, each.text) for each in explained.meanings]
        columns = ("flag", "value", "default", "what it means here")
        parts.append(Section("Flags that are read", Grid(columns, rows, text_columns=1, notes_at=(3,))))
    if others := _other_flags(explained.reading.flags):
        parts.append(Section("Other flags", Facts(others)))
    parts += render_fit(explained.fit)
    if explained.problem:
        parts.append(Section("It does not start", styled(explained.problem, style="bold red")))
        return [*parts, *_fixes(explained.would_fit)]
    parts.append(Section("Forecast", Grid(_FORECAST_COLUMNS, [_row(each) for each in explained.served])))
    parts += _decisions(explained)
    if explained.advised is not None:
        parts += _render_advice(explained, explained.advised)
    return parts


def brief_explained(explained: Explained) -> list[Printable]:
    """One screen: what the command does, a forecast, changes by their gain, and the command with them."""
    parts = _brief(explained, BRIEF)
    return parts if on_screen(parts) == parts else _brief(explained, SHORT)


def _brief(explained: Explained, notes: Mapping[str, str]) -> list[Printable]:
    parts: list[Printable]
    rows = [(name, LENGTHS.sub("", text)) for name, text in _about(explained) if name not in ("read from", "note")]
    if explained.meanings:
        written = (f"--{each.flag.name} {each.flag.text}".rstrip() for each in explained.meanings)
        rows.append(("flags read", ", ".join(written)))
    rows += _other_flags(explained.reading.flags, notes)
    rows += named_first("note", explained.notes)
    advised = explained.advised
    if explained.problem:
        parts = [Facts([*rows, ("memory", "it does not fit")]), Paragraph(explained.problem, SCREEN, style="bold red")]
        return [*parts, *_fixes(explained.would_fit[:BEST])]
    last = explained.served[-1]
    deployment = last.forecast.deployment
    rows.append(("memory", memory_words(deployment)))
    loads = [_row(each) for each in explained.served]
    parts = [Facts(rows), Section("Forecast", Grid(_BRIEF_COLUMNS, [each[:-1] for each in loads]))]
    told = [("state", last.forecast.state.sentence)]
    found = diagnosis_of(last.forecast, last.intervals, trials=advised is not None)
    in_brief = ("SLO", "cost", "bottleneck", "breaks first")  # rows of a forecast that an explained command has, too
    told += [row for row in brief_rows(last.forecast, last.intervals, found) if row[0] in in_brief]
    several = len(explained.served) > 1
    if advised is not None:
        best = _best_changes(advised)
        changes = Facts([_brief_advice(each, several) for each in best])
        parts.append(
            Section("Changes, by gain", changes) if changes.rows else styled("Nothing that was tried is better.")
        )
        as_it_is = "what helps changes answers or takes other GPUs" if best else "good as it is"
        told.append(("run it", explained.recommended or f"{explained.command}  ({as_it_is})"))
    doubts = brief_doubts(last.forecast.source, explained.engine.name, last.intervals, deployment.drafting)
    told += [*named_first("doubt", doubts), ("next", _next(explained, found))]
    return [*parts, Facts([*told, ("more", MORE)])]


def _fixes(fixes: Sequence[Fix]) -> list[Printable]:
    rows = [(each.label, _caution(each.answers, each.gpus)) for each in fixes]
    return [Section("It would start with one of these", Facts(rows))] if rows else []


def _next(explained: Explained, found: RunDiagnosis) -> str:
    if explained.advised is None:
        return "without --no-advice every single change is tried"
    if explained.recommended:
        return "start the command as `run it` has it"
    best = _best_changes(explained.advised)
    return next_words(found, best[0].change.words(found.forecast.system) if best else "")


def _best_changes(advised: Advised) -> list[Advice]:
    found = sorted([*advised.ranked, *advised.other_gpus], key=lambda each: -each.gain)
    return [each for each in found[:BEST] if each.gain > 0.0]


def _decisions(explained: Explained) -> list[Printable]:
    parts: list[Printable] = []
    for each in explained.served:
        if (verdict := each.forecast.verdict) is not None:
            name = "" if len(explained.served) == 1 else f", {each.name} load"
            parts.append(Section(f"{slo_title(verdict)}{name}", limit_table(verdict)))
    return [*parts, Section("Cost", Facts(cost_rows(explained.served[-1].forecast)))]


def _about(explained: Explained) -> list[tuple[str, str]]:
    rows = [
        ("read from", explained.pasted.where),
        ("model", f"{explained.reading.model} ({explained.fit.model.name})"),
        ("GPU", f"{explained.fit.layout.gpus} x {explained.fit.gpu.title} ({explained.fit.gpu.name})"),
        ("engine", explained.engine.name),
    ]
    if explained.capacity is not None:
        rows.append(("it can serve", f"about {explained.capacity:,.3g} requests/s of the length below"))
    for each in explained.served:
        name = "load" if len(explained.served) == 1 else f"{each.name} load"
        rows.append((name, each.forecast.workload.description))
    return rows + [("note", note) for note in explained.notes]


def _other_flags(flags: Iterable[Flag], notes: Mapping[str, str] = {}) -> list[tuple[str, str]]:
    """Flags that no forecast depends on, with the reason of each, or with the one that ``notes`` has for a status."""
    by_status: dict[str, list[Flag]] = {}
    for flag in flags:
        by_status.setdefault(flag.status, []).append(flag)
    rows = []
    for status in (REFUSED, NOT_MODELLED, IGNORED):
        by_note: dict[str, list[str]] = {}
        for flag in by_status.get(status, ()):
            by_note.setdefault(notes.get(status, flag.note), []).append(f"--{flag.name}")
        rows += [(status, f"{', '.join(names)}: {note}") for note, names in by_note.items()]
    return rows


def _row(served: ServedLoad) -> tuple[str, ...]:
    forecast, intervals = served.forecast, served.intervals
    cells = [served.name, f"{forecast.requests_per_second:,.3g}"]
    for values, band in ((forecast.ttft, intervals.ttft), (forecast.tpot, intervals.tpot)):
        if values is None or band is None:
            cells += ["-", "-", "-"]
        else:
            cells += [format_seconds(values.p50), format_seconds(values.p99), format_band(band)]
    return (*cells, format_figure(forecast.output_tokens_per_second), forecast.state.word)


def _render_advice(explained: Explained, advised: Advised) -> list[Printable]:
    several = len(explained.served) > 1
    parts: list[Printable] = []
    if not advised.ranked:
        parts.append(Section("Advice", styled("Nothing that was tried is better beyond chance on the same GPUs.")))
    for title, changes in (
        ("Advice, best first", advised.ranked),
        ("With other numbers of GPUs", advised.other_gpus),
        ("What gains something and loses more, or only loses", advised.worse),
    ):
        if changes:
            rows = [_advice_row(each, several) for each in changes]
            columns = ("change", "what it does", "mean gain", "")
            parts.append(Section(title, Grid(columns, rows, text_columns=2, notes_at=(3,))))
    rest = [("no effect beyond chance", ", ".join(advised.without_effect))] if advised.without_effect else []
    rest += [(f"refused: {label}", reason) for label, reason in advised.refused]
    if rest:
        parts.append(Section("Also tried", Facts(rest)))
    if explained.recommended is not None and advised.together is not None:
        text = f"{explained.recommended}\n{_effects(advised.together.real, several, most=8)}"
        parts.append(Section("The command with the advice", styled(text)))
    elif advised.ranked:
        text = "It is good as it is: what helps on the same GPUs changes answers, or costs more than it gains."
        parts.append(Section("The command with the advice", styled(text)))
    return parts


def _advice_row(advice: Advice, several: bool) -> tuple[str, ...]:
    gain = ratio_words(exp(advice.gain))
    shown_effects = 4  # of a change, the largest; JSON has all
    return advice.label, _effects(advice.real, several, shown_effects), gain, _caution(advice.answers, advice.gpus)


def _brief_advice(advice: Advice, several: bool) -> tuple[str, str]:
    label, _, gain, caution = _advice_row(advice, several)
    words = f"{gain} on average: {_effects(advice.real, several, FEW_EFFECTS)}"
    return label, f"{words} ({caution})" if caution else words


def _effects(effects: Sequence[MetricDelta], several: bool, most: int) -> str:
    """``TPOT p99 -17 %, TTFT p50 +4 %``, with the load before it where there are two."""
    factors = [1.0 + each.change for each in effects[:most]]
    changes = [f"x {factor:.1f}" if factor >= 3 else f"{100 * (factor - 1):+.0f} %" for factor in factors]
    named = [f"{each.load} {each.name}" if several else each.name for each in effects[:most]]
    return ", ".join(f"{name} {change}" for name, change in zip(named, changes, strict=True))


def _caution(answers: bool, gpus: float) -> str:
    parts = [f"{gpus:g} x as many GPUs"] if gpus != 1.0 else []
    return ", ".join([*parts, *(["changes the model's answers"] if answers else [])])


def explained_dict(explained: Explained) -> dict[str, Any]:
    meanings = {id(each.flag): each for each in explained.meanings}
    return {
        **pick(explained, "command read_from=pasted.where model=reading.model gpu=fit.gpu.name engine=engine.name"),
        "flags": [_flag_dict(each, meanings.get(id(each))) for each in explained.reading.flags],
        "environment": sorted(explained.pasted.environment), "notes": list(explained.notes),
        "memory": fit_dict(explained.fit), "problem": explained.problem or None,
        "would_fit": [{"change": each.label, "values": each.values} for each in explained.would_fit],
        "requests_per_s_at_most": explained.capacity,
        "loads": [
            {
                "load": each.name,
                "forecast": forecast_dict(each.forecast, each.intervals, trials=explained.advised is not None),
            }
            for each in explained.served
        ],
        "advice": explained.advised and _advised_dict(explained.advised), "recommended": explained.recommended,
    }  # fmt: skip


def _flag_dict(flag: Flag, meaning: FlagExplanation | None) -> dict[str, Any]:
    return {
        "status": flag.status, "flag": flag.name, "value": flag.text or None, "note": flag.note or None,
        "default": meaning and meaning.default, "means": meaning and meaning.text,
    }  # fmt: skip


def _advised_dict(advised: Advised) -> dict[str, Any]:
    return {
        "ranked": [_advice_dict(each) for each in advised.ranked],
        "other_gpus": [_advice_dict(each) for each in advised.other_gpus],
        "worse": [_advice_dict(each) for each in advised.worse], "without_effect": list(advised.without_effect),
        "refused": [{"change": label, "reason": reason} for label, reason in advised.refused],
        "applied": advised.applied, "together": advised.together and _advice_dict(advised.together),
    }  # fmt: skip


def _advice_dict(advice: Advice) -> dict[str, Any]:
    return {
        "change": advice.label, "values": advice.change.values, "gain": exp(advice.gain) - 1.0,
        "changes_answers": advice.answers, "gpus": advice.gpus,
        "effects": [pick(each, "load quantity=name change noise beyond_noise=is_real") for each in advice.effects],
    }  # fmt: skip


RENDERERS = {"Explained": Renderers(explained_dict, render_explained, rows="flags", brief=brief_explained)}
