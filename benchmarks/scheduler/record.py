"""Write down what vLLM's real scheduler decides, so that ours can be held against it where there is no vLLM.

    python benchmarks/scheduler/record.py OUT.json.gz [--about drafts] --vllm 0.25=DIR --vllm 0.32=DIR   (or wheels)

A few small workloads of each mode, half of them with preemption; ``--about``: of modes with a file of their own. One
process can import one vLLM, so each version is a process of its own. tests/serve/test_decisions.py replays the files.
"""

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import client_cases
import drafting_cases
import flag_cases
import pair_cases
import scheduling_cases
import vllm_tree as tree
from our_scheduler import Script, turns
from scheduling_cases import Case, is_run

COUNT, LONGEST, FIRST_SEED, MOST_SEEDS = 20, 150, 1_000_000, 400
COUNT_DRAFTS, LONGEST_DRAFTS = 4, 60
APART = {
    "traffic": ("aborts", "stops", "heads", "watermark", "unreserved", "storms", "duplicates", "sessions"),
    "offload": ("offload",),
    "drafts": ("drafts",),
    "priority": ("priority",),
    "lora": ("lora",),
}
"""Modes that have a file of their own, the first that has a word of theirs."""
CACHES = ("chunks", "sizes", "states-export", "drafts-states")
"""Before all of these, the modes of ``--about caches``: caches of kinds that fewer models have."""


def record(version: str, about: str) -> list[dict[str, Any]]:
    """Small cases of modes with the script of their steps: those of a file of their own, or all others."""
    from offload_engines import real_offloading  # noqa: PLC0415 - the same
    from vllm_scheduler import Real  # noqa: PLC0415 - imports vLLM, which `vllm_tree.use` has to have prepared

    found = []
    modes = {
        mode: cases for cases in (scheduling_cases, drafting_cases, pair_cases, flag_cases) for mode in cases.MODES
    }
    plain = [mode for mode, cases in modes.items() if cases in (scheduling_cases, drafting_cases)]
    others = {
        "pairs": [*pair_cases.MODES],
        "flags": [*flag_cases.MODES],
        "newest": [*modes],
        "groups": ["drafts-groups"],
        "clients": [*client_cases.MODES],
    }
    modes |= dict.fromkeys(client_cases.MODES, client_cases)
    chosen = others.get(about) or [mode for mode in plain if file_of(mode) == about]
    for mode in (mode for mode in chosen if is_run(mode, version)):
        cases = modes[mode]
        drafts = (cases is drafting_cases and about != "groups") or about in ("pairs", "newest")
        count, longest = (COUNT_DRAFTS, LONGEST_DRAFTS) if drafts else (COUNT, LONGEST)
        kept = {True: 0, False: 0}
        seed = FIRST_SEED
        while sum(kept.values()) < count and seed < FIRST_SEED + MOST_SEEDS:
            case = cases.draw(version, mode, seed)
            seed += 1
            try:
                steps, preempts = script_of(case, real_offloading(case) if case.tier_blocks else Real(case))
            except Exception:
                continue  # vLLM itself fails
            if len(steps) <= longest and kept[preempts] < count // 2:
                kept[preempts] += 1
                found.append({"case": case.as_dict(), "steps": steps})
    return found


def file_of(mode: str) -> str:
    """Which of the files a mode is in."""
    if mode in CACHES:
        return "caches"
    return next((name for name, words in APART.items() if any(word in mode for word in words)), "")


def script_of(case: Case, engine: Any) -> tuple[list[str], bool]:
    """The steps as text, and whether anybody gave way."""
    script, preempts = Script(), False
    for (decision,) in turns(case, engine):
        script.add(decision)
        preempts |= bool(decision[1])
        if len(script.lines) > LONGEST:
            break
    return script.lines, preempts


def main() -> None:
    """Record all versions, or, as a child, one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vllm", action="append", default=[], metavar="VERSION=DIR")
    parser.add_argument(
        "--about",
        default="",
        choices=["", "caches", "pairs", "flags", "newest", "groups", "clients", *APART],
        help="modes with a file of their own; default: the others",
    )
    parser.add_argument("--only", choices=[*tree.WHEELS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folders = {version: Path(folder) for version, folder in (each.split("=", 1) for each in arguments.vllm)}
    if arguments.only:
        tree.use(tree.find(arguments.only, folders.get(arguments.only)))
        arguments.out.write_text(json.dumps(record(arguments.only, arguments.about)), encoding="utf-8")
        return
    found = []
    for version in folders or tree.WHEELS:
        part = arguments.out.with_suffix(f".{version}")
        subprocess.run([sys.executable, __file__, str(part), "--only", version, *sys.argv[2:]], check=True)
        found += json.loads(part.read_text(encoding="utf-8"))
        part.unlink()
    text = json.dumps(found, separators=(",", ":")).encode()
    arguments.out.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{len(found)} workloads, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
