"""What benchmark results determine and what they leave open, for people and for programs."""

from __future__ import annotations

from typing import Any

from infercast.forecast.calibration import TITLES, Calibration, Learned, doubts_of, errors_of, keys_of
from infercast.report.terminal import Facts, Grid, Printable, Renderers, Section, pick, styled
from infercast.units import MILLI, format_percent


def calibration_dict(calibration: Calibration) -> dict[str, Any]:
    known = calibration.deployment
    scales = {name: MILLI if name == "path" else 1.0 for name in calibration.factors}
    errors = [errors_of(calibration, left_out=left_out) for left_out in (False, True)]
    matched, left_out = ({name: each._asdict() for name, each in found.items()} or None for found in errors)
    return {
        "deployment": {name: getattr(known, name) for name in known.__slots__},
        "factors": {
            name: {
                **{key: value / scales[name] for key, value in zip(keys_of(name), learned, strict=True)},
                "told": learned.is_learned,
            }
            for name, learned in calibration.factors.items()
        },
        **pick(calibration, "prefix_hit_rate acceptance_length"),
        "results": [
            {
                **pick(each, "file sha256 kind load requests"),
                "assumptions": list(each.assumptions),
                "quantities": [pair._asdict() for pair in each.pairs],
                "left_out": [pair._asdict() for pair in each.left_out],
            }
            for each in calibration.results
        ],
        "doubts": doubts_of(calibration), "error_of_results": matched, "error_left_out": left_out,
    }  # fmt: skip


def render_calibration(calibration: Calibration, written: str | None = None) -> list[Printable]:
    known = calibration.deployment
    about = [
        ("deployment", f"{known.model} ({known.weights}) on {known.gpu}, {known.layout}, {known.engine}"),
        ("host", known.host),
    ]
    about += [(each.file, f"{each.kind}: {each.load}") for each in calibration.results]
    rows = [_factor_row(name, learned) for name, learned in calibration.factors.items()]
    columns = ("", "factor", "80 % interval", "before", "")
    doubts = doubts_of(calibration)
    parts = [
        *([Section("Doubts", Facts(("-", each) for each in doubts))] if doubts else []),
        Section("Calibrated with", Facts(about)), Section("What the results say", Grid(columns, rows, notes_at=(4,))),
        *_seen(calibration), *_errors(calibration),
    ]  # fmt: skip
    assumed = list(dict.fromkeys(text for each in calibration.results for text in each.assumptions))
    if assumed:
        sentences = "\n".join(f"{text[:1].upper()}{text[1:]}." for text in assumed)
        parts.append(Section("Taken for granted", styled(sentences)))
    if written is not None:
        use = f"infercast simulate {known.model} --gpu {known.gpu} --rate R --calibration {written}"
        parts.append(Section("Next", Facts([("written to", written), ("use it", use)])))
    return parts


def _factor_row(name: str, learned: Learned) -> list[str]:
    told = "" if learned.is_learned else "not determined by the results"
    if name == "path":
        value, spread, before = (each / MILLI for each in (learned.value, learned.spread, learned.before))
        ends = f"{value - 1.28 * spread:+.1f} to {value + 1.28 * spread:+.1f} ms"
        return [TITLES[name], f"{value:+.2f} ms", ends, f"-{1.28 * before:.1f} to +{1.28 * before:.1f} ms", told]
    low, high = (learned.value * learned.ends(side) for side in (-1, 1))
    widest = " to ".join(f"{learned.ends(side, before=True):.2f}" for side in (-1, 1))
    return [TITLES[name], f"{learned.value:.3f}", f"{low:.3f} to {high:.3f}", widest, told]


def _seen(calibration: Calibration) -> list[Printable]:
    rows = []
    if calibration.prefix_hit_rate is not None:
        rows.append(("prefix cache", f"{format_percent(calibration.prefix_hit_rate)} of prompt tokens found"))
    if calibration.acceptance_length is not None:
        rows.append(("speculation", f"{calibration.acceptance_length:.2f} tokens per step"))
    return [Section("Seen in the load", Facts(rows))] if rows else []


def _errors(calibration: Calibration) -> list[Printable]:
    parts: list[Printable] = []
    for left_out, title in ((True, "Error on results that were left out, one by one"), (False, "Error on the results")):
        errors = errors_of(calibration, left_out=left_out)
        if errors:
            rows = [
                [name, f"{each.results}", format_percent(each.before), format_percent(each.after)]
                for name, each in errors.items()
            ]
            parts.append(Section(title, Grid(("median over results", "results", "before", "after"), rows)))
    if len(calibration.results) == 1:
        parts.append(styled("One result only shows how well it is matched itself; give results of other loads, too."))
    return parts


RENDERERS = {"Calibration": Renderers(calibration_dict, render_calibration, rows="factors")}
