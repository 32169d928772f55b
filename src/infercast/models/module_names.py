"""Which parts of a model a checkpoint's list of module names covers.

Checkpoints name what they quantise, or leave alone, as exact names, as shell patterns and as regular expressions.
A part counts as covered when the names cover more than half of its modules: coarse, and right for what is published.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infercast.models.families import Layer

# Where a layer's modules sit in a checkpoint: plain, inside two kinds of vision models, and in Nemotron-H.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "backbone.")
ATTENTION_HOMES = ("self_attn.", "mixer.")
"""What attention is called in a layer; Nemotron-H calls every half of a layer so."""
# A regular expression comes from an untrusted file. With few repetitions, none of them around a group, matching a
# module's short name cannot take long.
LONGEST_EXPRESSION = 200
MOST_REPETITIONS = 4
REPEATED_GROUP = re.compile(r"\)[*+{?]")
REPETITION = re.compile(r"[*+{]")


def part_modules(layers: Sequence[Layer]) -> dict[str, list[tuple[str, ...]]]:
    """Modules of each part, in all layers; a module is a tuple of the names that different families give it."""
    parts: dict[str, list[tuple[str, ...]]] = {"attention": [], "recurrent": [], "feed_forward": [], "experts": []}
    for index, layer in enumerate(layers):
        here = f"layers.{index}."
        parts[layer.mixer.part] += [
            tuple(here + name.replace(ATTENTION_HOMES[0], home) for home in ATTENTION_HOMES)
            for name in layer.mixer.modules
        ]
        for part, modules in layer.feed_forward.modules.items():
            parts[part] += [tuple(here + name for name in names) for names in modules]
    return parts


class ModuleNames(NamedTuple):
    """A checkpoint's list of module names, ready to be asked."""

    exact: frozenset[str]
    """Names from ``layers.`` on; a name covers everything below it."""
    words: frozenset[str]
    """Bare names such as ``lm_head`` or ``self_attn``, wherever they stand in a path."""
    starts: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, names: Iterable[str]) -> ModuleNames:
        """The list as it stands in a checkpoint."""
        exact: set[str] = set()
        words: set[str] = set()
        starts: list[str] = []
        expressions: list[re.Pattern[str]] = []
        for name in names:
            tail = name[name.index("layers.") :] if "layers." in name else name
            if name.startswith("re:"):
                expressions += _safe_expression(name[3:])
            elif not set(tail) & set("*?["):
                (exact if tail.startswith("layers.") else words).add(tail)
            elif tail.startswith("layers.") and tail.endswith("*") and not set(tail[:-1]) & set("*?["):
                starts.append(tail[:-1])
            else:
                # A name covers what is below it, so a pattern does too.
                expressions += [re.compile(fnmatch.translate(f"*{pattern}")) for pattern in (tail, f"{tail}.*")]
        return cls(frozenset(exact), frozenset(words), tuple(starts), tuple(expressions))

    def cover(self, module: str) -> bool:
        """Whether ``module``, a name from ``layers.`` on, is in the list."""
        pieces = module.split(".")
        if not self.words.isdisjoint(pieces) or module.startswith(self.starts):
            return True
        if self.exact and any(".".join(pieces[:length]) in self.exact for length in range(2, len(pieces) + 1)):
            return True
        return any(expression.match(prefix + module) for expression in self.expressions for prefix in PREFIXES)

    def cover_part(self, modules: Sequence[tuple[str, ...]]) -> bool:
        """Whether more than half of a part's modules are in the list."""
        if not (self.exact or self.words or self.starts or self.expressions):
            return False
        covered = sum(any(self.cover(name) for name in names) for names in modules)
        return 2 * covered > len(modules)

    def cover_head(self) -> bool:
        """Whether ``lm_head`` is named outright."""
        return any(word.split(".")[-1] == "lm_head" for word in self.words)


def _safe_expression(text: str) -> list[re.Pattern[str]]:
    harmless = len(text) <= LONGEST_EXPRESSION and not REPEATED_GROUP.search(text)
    if not harmless or len(REPETITION.findall(text)) > MOST_REPETITIONS:
        return []
    try:
        return [re.compile(text)]
    except re.error:
        return []
