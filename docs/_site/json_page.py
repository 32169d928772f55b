"""The reference of what ``--json`` prints: keys, types and examples of real answers, with what each key means.

Quick commands are run when the site is built. Answers of slow ones are recorded in ``json_keys.toml``, which
``python docs/_site/json_page.py`` writes again.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from infercast.cli.app import make_app
from infercast.report import quantities
from infercast.report.quantities import LATENCIES, LINK_PARTS, RESULTS, Quantity

HERE = Path(__file__).parent
RECORDED = HERE / "json_keys.toml"
MEANINGS = HERE / "json_meanings.toml"
INTRODUCTION = """# Reference: JSON

What `--json` prints, key by key. The page is generated: the commands below were run, and every key of their answers
is listed with its type and an example. Keys keep their names and meanings within a minor release; new ones may be
added. Endings name units: `_ms` milliseconds, `_s` and `_seconds` seconds, `_us` microseconds, `_bytes` bytes,
`_per_s` per second, `usd_` dollars. A share is between 0 and 1. `null` means that the number does not exist for
this run, such as a cost without a known price. `[]` stands for the members of a list, `*` for names that differ
from answer to answer. An error is one JSON document as well ([exit codes and
output](command-line.md#exit-codes-and-output)).
"""
LOAD = ("--rate", "8", "-n", "30", "--input-len", "200", "--output-len", "10", "--predictor", "roofline")
SMALL = "qwen2.5-0.5b"
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 2}'
QUICK = {
    "simulate": (SMALL, "--gpu", "l4", *LOAD, "--slo", "ttft_p99<1s"),
    "disaggregate": (SMALL, "--prefill-gpu", "l4", "--decode-gpu", "a10", *LOAD),
    "sweep": (SMALL, "--gpu", "l4", "--rates", "4,8", "-n", "30", "--predictor", "roofline"),
    "energy": (SMALL, "--gpu", "l4", *LOAD, "--power-limits", "50,72"),
    "memory": (SMALL, "--gpu", "l4"),
    "partition": (SMALL, "--gpu", "l4", "-pp", "2"),
    "kernels": (SMALL, "--gpu", "l4", "--decode", "4", "--context", "500"),
    "estimate": ("gemm", "--m", "1", "--n", "64", "--k", "64", "--gpu", "l4"),
    "gpus": ("l4",),
    "models": (SMALL,),
    "hosts": (),
    "simulate with --breakdown": (SMALL, "--gpu", "l4", *LOAD, "--breakdown"),
    "simulate with --what-if": (SMALL, "--gpu", "l4", *LOAD, "--what-if", "dram_bandwidth=1.5x"),
    "simulate with sessions": (SMALL, "--gpu", "l4", *LOAD, "--turns", "2", "--kv-offloading-size", "1"),
    "simulate with drafts": (SMALL, "--gpu", "l4", *LOAD, "--speculative-config", DRAFTS, "--acceptance", "0.5"),
    "speculate": (SMALL, "--gpu", "l4", "--concurrencies", "1,2", "-n", "4", "--output-len", "8",
                  "--speculative-config", DRAFTS),
    "variants": ("--gpu", "l4", "--layers", "2,4", "--hidden", "256", "--heads", "4", "--kv-heads", "2",
                 "--inter", "512"),
    "tune": ("qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", "16"),
}  # fmt: skip
SLOW = {
    "plan": (SMALL, "--gpu", "l4", "--rate", "4", "--slo", "ttft_p99<2s"),
    "capacity": (SMALL, "--gpu", "l4", "--rate", "4", "--day-profile", "flat", "--slo", "ttft_p99<2s"),
    "layouts": (SMALL, "--gpu", "l4", "--rate", "8", "-n", "30"),
    "diagnose": (SMALL, "--gpu", "l4"),
    "explain-command": ("vllm serve Qwen/Qwen2.5-0.5B", "--gpu", "l4"),
}
BY_NAME = {
    *("kernels", "by_kernel", "families_ms", "families_us", "mean_ms", "slowest_mean_ms", "parts_ms", "excluded"),
    *("decode_gpu_shares", "interval_rests_on", "error_of_results", "error_left_out"),
}
"""Objects keyed by names of kernels, families or parts, not by fields."""


class Key(NamedTuple):
    """A key of an answer."""

    path: str
    kind: str
    example: str


def page() -> str:
    """A section for each command."""
    meanings = {**of_quantities(), **tomllib.loads(MEANINGS.read_text(encoding="utf-8"))}
    recorded = tomllib.loads(RECORDED.read_text(encoding="utf-8"))
    parts = [INTRODUCTION]
    answers = {name: keys_of(answer(name.split()[0], *words)) for name, words in QUICK.items()}
    answers |= {name: folded([Key(*each) for each in recorded[name]["keys"]]) for name in SLOW}
    for name, keys in answers.items():
        words = {**QUICK, **SLOW}[name]
        parts += [f"## {name}\n", f"```\ninfercast {name.split()[0]} {' '.join(map(quoted, words))} --json\n```\n"]
        parts += ["| key | type | example | meaning |", "| --- | --- | --- | --- |"]
        parts += [f"| `{key.path}` | {key.kind} | {key.example} | {meaning_of(key.path, meanings)} |" for key in keys]
        parts.append("")
    return "\n".join(parts)


def folded(keys: list[Key]) -> list[Key]:
    """Keys that hold a whole forecast, with the keys of `simulate`, as one."""
    found: dict[str, Key] = {}
    for key in keys:
        before, dot, _ = key.path.partition(".forecast.")
        shown = Key(f"{before}.forecast", "object", "") if dot else key
        found.setdefault(shown.path, shown)
    return list(found.values())


def quoted(word: str) -> str:
    """A word as a shell needs it."""
    return shlex.quote(word) if '"' in word else f'"{word}"' if " " in word or "<" in word else word


def answer(name: str, *words: str) -> Any:
    """What a command prints with ``--json``."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        make_app(name)([name, *words, "--json"])
    return json.loads(printed.getvalue())


def keys_of(value: Any, path: str = "") -> list[Key]:
    """Every key below a value, once, in the order of the answer."""
    found: dict[str, Key] = {}
    for each in _walk(value, path):
        if each.path not in found or found[each.path].kind == "null":
            found[each.path] = each
    return list(found.values())


def _walk(value: Any, path: str) -> list[Key]:
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return [key for each in value for key in _walk(each, f"{path}[]")]
    if isinstance(value, dict) and value:
        dot = "." if path else ""
        names = path.rsplit(".", 1)[-1] in BY_NAME
        return [key for name, each in value.items() for key in _walk(each, f"{path}{dot}{'*' if names else name}")]
    return [Key(path, kind_of(value), example_of(value))]


def kind_of(value: Any) -> str:
    """The type of a value in the words of JSON."""
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "object"}
    return kinds[type(value)]


def example_of(value: Any) -> str:
    """A value that fits a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        value = float(f"{value:.4g}")
    words = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
    return f"`{words}`" if len(words) <= 48 else f"`{words[:45]}...`"


def of_quantities() -> dict[str, str]:
    """Meanings of the numbers that every forecast has, in the words of tables and pages."""
    found: dict[str, str] = {}
    for rows in vars(quantities).values():
        if isinstance(rows, tuple) and rows and isinstance(rows[0], Quantity):
            found |= {each.key: each.label for each in rows}
    found |= {f"{each.key}_interval": f"80 % interval: {each.label}" for each in RESULTS}
    for each in (*LATENCIES, *LINK_PARTS):
        found |= {
            f"{each.name}_ms": each.title.strip(),
            f"{each.name}_ms_interval": f"80 % interval: {each.title.strip()}",
        }
    return found


def meaning_of(path: str, meanings: dict[str, str]) -> str:
    """What a key means: by its whole path, by its own name in its list or alone, or by what holds it."""
    parts = path.replace("[]", "").split(".")
    for name in (path, path.replace("[]", ""), ".".join(path.split(".")[-2:]), parts[-1]):
        if name in meanings:
            return meanings[name]
    if len(parts) > 1 and parts[-2] in meanings:
        return f"{meanings[parts[-2]]}: {parts[-1].replace('_', ' ')}" if parts[-1] != "*" else meanings[parts[-2]]
    return ""


def record() -> None:
    """Run the slow commands and write down their keys."""
    lines = ["# Keys of answers that take long to make; written by docs/_site/json_page.py.", ""]
    for name, words in SLOW.items():
        keys = ",\n".join(f"    {json.dumps(list(key))}" for key in keys_of(answer(name, *words)))
        lines += [f"[{name}]", f"keys = [\n{keys},\n]", ""]
    RECORDED.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(record())
