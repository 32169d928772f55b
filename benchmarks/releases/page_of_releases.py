"""Write benchmarks/results/releases.md: what is known of each release of the engines, and how far off forecasts are.

    python benchmarks/releases/page_of_releases.py [--out FILE]

Everything is read from data: rules and flags (src/infercast/data/engines), decisions of the engines' own schedulers
(tests/serve, compared.json), measured runs (src/infercast/data/runs, simulated again: a minute) and published ones
(benchmarks/scoreboard/results.json).
"""

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scoreboard"))

from groups import errors_of
from new_release import COMPARED, TITLES
from record import read_record

from infercast.bundled import DATA, read_data
from infercast.engines.base import engine_named
from infercast.lab.validate.compare import Validation, validate
from infercast.lab.validate.measured import read_measured

Own = tuple[str, int, Validation]
"""GPU, files and errors of a release's measured runs."""
ROOT = Path(__file__).parents[2]
FIRST_RECORDED = "0.5.16"
"""The release of SGLang whose decisions are in a file without a version in its name."""
HEAD = """# Releases of vLLM and SGLang: what is known of each

Written by `benchmarks/releases/page_of_releases.py` from the data that forecasts use.

- *Own scheduler*: random workloads in which the release's own scheduler decided as ours does, of all that were
  compared. Those replayed are in the tests; the others are as `benchmarks/releases/new_release.py --keep` last counted
  them. [All comparisons](schedulers.md).
- *Off by*: medians of TTFT p50 / TPOT p50 / throughput, of our own runs ([vLLM](vllm.md), [SGLang](sglang.md)), in
  which fits had a part, and of published ones, whose settings are partly assumed ([scoreboard](scoreboard.md)).
- *As* another release: its rules or times stand in, and intervals are wider.

How far off the times of a release without runs are is not known.
"""


def short(version: str) -> str:
    """0.33.0 as 0.33; later numbers stay: 0.11.1, 0.5.16."""
    return re.sub(r"^(\d+\.\d+)\.0$", r"\1", version)


def order(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version))


def recorded(folder: Path = ROOT / "tests" / "serve") -> Counter[tuple[str, str]]:
    """Workloads of each engine and release whose decisions the tests replay, all of them equal."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("*decisions.json*")):
        content = path.read_bytes()
        cases = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        if path.name.startswith("sglang"):
            named = re.match(r"sglang_(\d[\d_]*\d)_", path.name)
            found["sglang", named[1].replace("_", ".") if named else FIRST_RECORDED] += len(cases)
        else:
            found.update(("vllm", short(each.get("case", each)["version"])) for each in cases)
    return found


def compared(path: Path = COMPARED) -> dict[tuple[str, str], tuple[int, int]]:
    """Equal workloads, of all that `new_release.py --keep` ran."""
    record = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        (engine, short(version)): tuple(map(sum, zip(*found["modes"].values(), strict=True)))  # type: ignore[misc]
        for engine, releases in record.items()
        for version, found in releases.items()
    }


def measured(folder: Path = DATA / "runs") -> dict[tuple[str, str], Own]:
    """Measured runs of each release, simulated again; their folders are named GPU-ENGINE-VERSION."""
    found = {}
    for below in sorted(each for each in folder.iterdir() if each.is_dir()):
        gpu, engine, version = below.name.rsplit("-", 2)
        files = [read_measured(path) for path in sorted(below.glob("*.json.gz"))]
        found[engine, short(version)] = gpu.upper(), len(files), validate(files)
    return found


def percents(errors: Iterable[float | None]) -> str:
    return " / ".join("-" if each is None else f"{100 * each:.1f}" for each in errors) + " %"


def own_cell(found: Own | None) -> str:
    if found is None:
        return ""
    errors = found[2]
    blocks = max((each.ape for _, each in errors.kv_blocks if each is not None), default=0.0)
    cell = percents(errors.median_ape(each) for each in ("ttft_p50", "tpot_p50", "output_tokens_per_second"))
    return f"{cell}; KV blocks {100 * blocks:.1f} at most"


def rules_cell(engine: str, version: str, decided: str) -> str:
    """The release's own scheduler, its sources, or the release whose rules stand in."""
    data = read_data(f"engines/{engine}/releases.toml")
    releases = data["releases"]
    if version in releases:
        since = [each["since"] for each in data["facts"]] if "facts" in data else data["rules"].values()
        came = f", new rules: {number}" if (number := sum(each == version for each in since)) else ""
        return f"{f'own scheduler, {decided}; ' if decided else ''}sources read{came}"
    if order(version) > order(releases[-1]):
        return f"as {releases[-1]}; flags read"
    facts = ", ".join(engine_named(engine).known_before(order(version.partition(".post")[0])))
    return f"as {releases[0]}" + (f", with its {facts}" if facts else "")


def times_cell(engine: str, version: str, found: Own | None) -> str:
    costs = read_data(f"engines/{engine}/releases.toml")["measured"]
    seen = "" if found is None else f"{len(found[2].runs)} runs of {found[1]} engines, {found[0]}"
    return f"measured: {seen}" if version == costs else f"as {costs}{seen and f'; measured: {seen}'}"


def published_cell(runs: list[dict[str, Any]]) -> tuple[str, str]:
    if not runs:
        return "", ""
    errors = [errors_of(runs, each) for each in ("ttft", "tpot", "throughput")]
    return str(len(runs)), percents(each.median if each else None for each in errors)


def decisions_cell(replayed: int, counted: tuple[int, int] | None) -> str:
    parts = [f"{replayed:,} of {replayed:,} replayed"] if replayed else []
    if counted is not None:
        parts.append(f"{counted[0]:,} of {counted[1]:,} drawn")
    return " and ".join(parts)


def known(engine: str, runs: Iterable[dict[str, Any]], folders: Iterable[tuple[str, str]]) -> list[str]:
    """Every release that anything is known of, the newest first."""
    found = {
        short(each)
        for each in json.loads((DATA / "engines" / engine / "arguments.json").read_text("utf-8"))["releases"]
    }
    found |= {*read_data(f"engines/{engine}/releases.toml")["releases"]}
    found |= {short(run["version"]) for run in runs if run["engine"] == engine and run["version"]}
    found |= {version for family, version in folders if family == engine}
    return sorted(found, key=order, reverse=True)


def rows_of(engine: str, runs: list[dict[str, Any]], own: dict[tuple[str, str], Own]) -> list[list[str]]:
    replayed, counted = recorded(), compared()
    rows = []
    for version in known(engine, runs, own):
        found = own.get((engine, version))
        decided = decisions_cell(replayed[engine, version], counted.get((engine, version)))
        published = published_cell([run for run in runs if (run["engine"], short(run["version"])) == (engine, version)])
        cells = [version, rules_cell(engine, version, decided), times_cell(engine, version, found)]
        rows.append([*cells, own_cell(found), *published])
    return rows


def page(runs: list[dict[str, Any]], own: dict[tuple[str, str], Own]) -> str:
    head = ["release", "rules known by", "times known by", "own runs off by", "published runs", "off by"]
    parts = [HEAD]
    for engine, title in TITLES.items():
        lines = [" | ".join(row) for row in [head, ["---"] * len(head), *rows_of(engine, runs, own)]]
        parts += [f"## {title}\n", f"The default is {engine_named(engine).name}.\n"]
        parts += [*(f"| {line} |" for line in lines), ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "releases.md")
    asked = parser.parse_args()
    runs = list(read_record(ROOT / "benchmarks" / "scoreboard" / "results.json")["runs"].values())
    asked.out.write_text(page(runs, measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
