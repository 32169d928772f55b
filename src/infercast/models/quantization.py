"""How a checkpoint's weights are stored: ``quantization_config``, schemes of several tools, and module names.

``global_quant_config`` has ``weight`` and ``input_tensors`` (null where weights alone are quantised), each with a
``dtype``; fp4 is OCP's MXFP4, 32 values to a scale. ``layer_quant_config`` of single layers is not read.

Checkpoints name what they quantise, or leave alone, as exact names, as shell patterns and as regular expressions.
A part counts as covered when the names cover more than half of its modules: coarse, and right for what is published.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError, UnsupportedModelError
from infercast.models.families import Fields, Layer
from infercast.models.layout import WeightFormat, unquantised

FORMATS = {
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8": "fp8", "fp4": "mxfp4", "mxfp4": "mxfp4", "int8": "int8",
    "int4": "int4", "uint4": "int4",
}  # fmt: skip
"""Our names of its formats."""


class Scheme(NamedTuple):
    """One way to quantise: the format of the weights, and that of what they are multiplied with ("" : base)."""

    weights: str
    activations: str = ""
    experts_only: bool = False
    int4_scale_bytes: float = 2 / 128


# These say that a checkpoint is quantised, and its config.json says how.
AS_STORED = ("compressed-tensors", "modelopt_mixed", "quark", "quark_mxfp4", "torchao", "auto-round", "inc")
FAMILY_OF = {"fp8_block": "fp8"}


@cache
def schemes(names: str = "schemes") -> dict[str, Scheme]:
    """All there are by name; ``overrides``: by vLLM's names; ``modelopt``: by those of NVIDIA's tool."""
    tables = read_data("quantization.toml")
    known = {name: Scheme(**values) for name, values in tables["schemes"].items()}
    return known if names == "schemes" else {name: known[meant] for name, meant in tables[names].items()}


def nearest() -> dict[str, tuple[str, str]]:
    """Formats that are not modelled: the one that is taken in their place, and how they differ from it."""
    return {name: (meant, how) for name, (meant, how) in read_data("quantization.toml")["nearest"].items()}


# Where a layer's modules sit in a checkpoint: plain, inside two kinds of vision models, and in Nemotron-H.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "backbone.")
ATTENTION_HOMES = ("self_attn.", "mixer.")  # What attention is called in a layer; in Nemotron-H every half of a layer
# A regular expression comes from an untrusted file. With few repetitions, none of them around a group, matching a
# module's short name cannot take long.
LONGEST_EXPRESSION = 200


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
    exact: frozenset[str]  # Names from ``layers.`` on; a name covers everything below it
    words: frozenset[str]  # Bare names such as ``lm_head`` or ``self_attn``, wherever they stand in a path
    starts: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, names: Iterable[str]) -> ModuleNames:
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
        pieces = module.split(".")
        if not self.words.isdisjoint(pieces) or module.startswith(self.starts):
            return True
        if self.exact and any(".".join(pieces[:length]) in self.exact for length in range(2, len(pieces) + 1)):
            return True
        return any(expression.match(prefix + module) for expression in self.expressions for prefix in PREFIXES)

    def cover_part(self, modules: Sequence[tuple[str, ...]]) -> bool:
        if not (self.exact or self.words or self.starts or self.expressions):
            return False
        covered = sum(any(self.cover(name) for name in names) for names in modules)
        return 2 * covered > len(modules)

    def cover_head(self) -> bool:
        return any(word.split(".")[-1] == "lm_head" for word in self.words)


def _safe_expression(text: str) -> list[re.Pattern[str]]:
    harmless = len(text) <= LONGEST_EXPRESSION and not re.search(r"\)[*+{?]", text)
    most_repetitions = 4
    if not harmless or len(re.findall(r"[*+{]", text)) > most_repetitions:
        return []
    try:
        return [re.compile(text)]
    except re.error:
        return []


def _format(settings: Fields, name: str) -> str:
    if name and name not in FORMATS:
        raise UnsupportedModelError(
            f"{settings.where}: quark's dtype {name!r} is not modelled; known: {', '.join(FORMATS)}"
        )
    return FORMATS.get(name, "")


BASE_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "bf16", "float": "bf16"}
"""A float32 checkpoint is served in bf16, as vLLM's ``auto`` does."""
HEAD_MODULES = ("mtp", "model.mtp", "re:.*mtp", "*mtp")  # How names of modules begin that predict further tokens
IGNORE_KEYS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude")


def base_dtype(fields: Fields) -> str:
    """The format of what is not quantised; bf16 where the file does not say."""
    name = str(fields.raw("torch_dtype", "dtype") or "bfloat16").removeprefix("torch.")
    try:
        return BASE_DTYPES[name]
    except KeyError:
        raise fields.wrong("torch_dtype", f"one of {', '.join(BASE_DTYPES)}") from None


def read_format(fields: Fields, layers: Sequence[Layer]) -> tuple[WeightFormat, str]:
    """The weight format and the KV-cache format (``auto`` or ``fp8``) that a checkpoint asks for."""
    base = base_dtype(fields)
    settings = _settings(fields)
    if settings is None:
        return _assemble(base, {}, None), "auto"
    kv_dtype = "fp8" if _fp8_cache(settings) else "auto"
    ignored = ModuleNames.parse(name for key in IGNORE_KEYS for name in _name_list(settings.raw(key)))
    found = _schemes(settings)
    if (own := _expert_scheme(fields, settings)) is not None:
        # What is ignored is left out of the experts' own format alone.
        found = [(own, None), (_named(settings, settings.word("quant_method").lower()), None)]
        ignored = ModuleNames.parse(())
    modules = part_modules(layers)
    parts: dict[str, Scheme] = {}
    head: Scheme | None = None
    for scheme, names in found:
        for part, part_names in modules.items():
            wanted = not scheme.experts_only or part == "experts"
            covered = names is None or names.cover_part(part_names)
            if part_names and part not in parts and wanted and covered and not ignored.cover_part(part_names):
                parts[part] = scheme
        if head is None and names is not None and names.cover_head() and not ignored.cover_head():
            head = scheme
    return _assemble(base, parts, head), kv_dtype


def leaves_heads_alone(fields: Fields) -> bool:
    """Whether a quantised checkpoint keeps the heads that predict further tokens in the base format."""
    settings = _settings(fields)
    if settings is None:
        return False
    ignored = [name for key in IGNORE_KEYS for name in _name_list(settings.raw(key))]
    listed = settings.section("quantized_layers").values
    named = any(name.startswith(HEAD_MODULES) for name in listed)
    return any(name.startswith(HEAD_MODULES) for name in ignored) or (bool(listed) and not named)


def override_format(name: str, weights: WeightFormat, layers: Sequence[Layer]) -> WeightFormat:
    """``weights`` quantised while loading: every linear layer but router and head (mxfp4: experts alone)."""
    if name in AS_STORED:
        if weights.name != weights.base:
            return weights
        raise UnsupportedModelError(
            f"quantization {name!r} names a way to store weights, and this checkpoint is not quantised; give the "
            "config.json of one that is, or a format such as fp8, int4 or nvfp4"
        )
    overrides = schemes("overrides") | {each: schemes()[meant] for each, (meant, _) in nearest().items()}
    if where := read_data("quantization.toml")["elsewhere"].get(name):
        raise UnsupportedModelError(f"quantization {name!r} is for {where}; use a format of GPUs such as fp8 or int4")
    if name not in overrides:
        raise UnknownNameError("quantization", name, [*overrides, *AS_STORED, "none"])
    if weights.name != weights.base:
        stored = overrides[name].weights
        if FAMILY_OF.get(weights.name, weights.name) == FAMILY_OF.get(stored, stored):
            return weights
        raise UnsupportedModelError(
            f"quantization {name!r} does not apply: the checkpoint is already quantised to {weights.name}; "
            "leave the option out, or start from the unquantised checkpoint"
        )
    return _uniform(weights.base, layers, overrides[name])


def _uniform(base: str, layers: Sequence[Layer], scheme: Scheme) -> WeightFormat:
    has_experts = any(layer.feed_forward.experts for layer in layers)
    if scheme.experts_only and not has_experts:
        raise UnsupportedModelError(f"quantization {scheme.weights!r} applies to experts, and this model has none")
    mixing = sorted({layer.mixer.part for layer in layers})
    parts = [] if scheme.experts_only else [*mixing, "feed_forward"]
    return _assemble(base, dict.fromkeys([*parts, "experts"] if has_experts else parts, scheme), None)


def _assemble(base: str, parts: dict[str, Scheme], head: Scheme | None) -> WeightFormat:
    plain = unquantised(base)
    if not parts:
        return plain
    stored: dict[str, Any] = {part: scheme.weights for part, scheme in parts.items()}
    multiplied: dict[str, Any] = {f"activation_{part}": scheme.activations or base for part, scheme in parts.items()}
    # Named after what holds most of the weights.
    name = next(stored[part] for part in ("experts", "feed_forward", "attention", "recurrent") if part in stored)
    scales = next((scheme.int4_scale_bytes for scheme in parts.values() if scheme.weights == "int4"), 2 / 128)
    head_format = head.weights if head else base
    return replace(plain, **stored, **multiplied, head=head_format, name=name, int4_scale_bytes=scales)


def _settings(fields: Fields) -> Fields | None:
    """The quantisation settings, wherever the publisher put them; None without any."""
    for key in ("quantization_config", "compression_config", "quantization"):
        if fields.raw(key) is not None:
            section = fields.section(key)
            # modelopt's own hf_quant_config.json has one more level.
            section = section.section("quantization") if section.raw("quantization") is not None else section
            return section if section.values else None
    return None


def _expert_scheme(fields: Fields, settings: Fields) -> Scheme | None:
    """The format of routed experts where it is named apart from all others (DeepSeek-V4)."""
    if algorithm := settings.word("moe_quant_algo"):
        return _modelopt(settings, algorithm)._replace(experts_only=True)
    return schemes()["mxfp4"] if fields.word("expert_dtype") == "fp4" else None


def _schemes(settings: Fields) -> list[tuple[Scheme, ModuleNames | None]]:
    """Schemes with the modules each applies to (None: to all), the first that fits counts."""
    algorithm = settings.word("quant_algo")
    if algorithm == "MIXED_PRECISION":
        return _mixed(settings)
    if algorithm:
        return [(_modelopt(settings, algorithm), None)]
    method = settings.word("quant_method").lower()
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4") or (not method and settings.raw("config_groups")):
        return _groups(settings)
    return [(_named(settings, method), None)]


def _named(settings: Fields, method: str) -> Scheme:
    if method in ("fp8", "fbgemm_fp8"):
        block = settings.numbers("weight_block_size")
        if block is not None and (len(block) != 2 or min(block) < 1):
            raise settings.wrong("weight_block_size", "two whole numbers above zero")
        return schemes()["fp8_block" if block else "fp8"]
    if method == "quark":
        whole = settings.section("global_quant_config")
        inputs = whole.section("input_tensors").word("dtype") if whole.raw("input_tensors") is not None else ""
        stored, multiplied = (_format(settings, name) for name in (whole.section("weight").word("dtype"), inputs))
        narrow = ("int4",)  # What inputs are never multiplied in
        return Scheme(stored, "" if multiplied in narrow else multiplied)
    if method == "mxfp4":
        return schemes()["mxfp4"]
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round"):
        bits = settings.positive("bits", "w_bit", default=4)
        if bits in (4, 8):
            return _int4("int4", settings, zero_point=settings.flag("zero_point")) if bits == 4 else Scheme("int8")
        raise settings.wrong("bits", "4 or 8")
    raise UnsupportedModelError(
        f"{settings.where}: quant_method {method!r} is not modelled; known: fp8, fbgemm_fp8, mxfp4, awq, gptq, "
        "auto-round, compressed-tensors, modelopt, quark"
    )


def _modelopt(settings: Fields, algorithm: str) -> Scheme:
    known = schemes("modelopt")
    if algorithm not in known:
        raise UnsupportedModelError(
            f"{settings.where}: quant_algo {algorithm!r} is not modelled; known: {', '.join(known)}, MIXED_PRECISION"
        )
    return known[algorithm]


def _mixed(settings: Fields) -> list[tuple[Scheme, ModuleNames | None]]:
    """Mixed precision of modelopt: an algorithm for each module by name."""
    listed = settings.section("quantized_layers")
    names: dict[str, list[str]] = {}
    for module in listed.values:
        names.setdefault(listed.section(module).word("quant_algo"), []).append(module)
    names.pop("", None)
    return [(_modelopt(settings, algorithm), ModuleNames.parse(modules)) for algorithm, modules in names.items()]


def _groups(settings: Fields) -> list[tuple[Scheme, ModuleNames | None]]:
    """compressed-tensors: groups of target modules with a scheme each."""
    groups = settings.section("config_groups")
    found: list[tuple[Scheme, ModuleNames | None]] = []
    for key in groups.values:
        group = groups.section(key)
        if group.raw("weights") is None:
            continue
        targets = _name_list(group.raw("targets"))
        everything = not targets or "Linear" in targets
        found.append((_group_scheme(group), None if everything else ModuleNames.parse(targets)))
    # Groups with a target of their own come before one that takes all that is left.
    return sorted(found, key=lambda pair: pair[1] is None)


def _group_scheme(group: Fields) -> Scheme:
    weights, inputs = group.section("weights"), group.section("input_activations")
    bits, kind = weights.positive("num_bits"), weights.word("type", "int")
    quantised_inputs = group.raw("input_activations") is not None
    if (kind, bits) == ("float", 8):
        name = "fp8_block" if weights.word("strategy") == "block" else "fp8"
        return Scheme(name, name if quantised_inputs else "")
    if (kind, bits) == ("float", 4):
        name = "mxfp4" if weights.count("group_size", default=16) == 32 else "nvfp4"
        return Scheme(name, name if quantised_inputs else "")
    if (kind, bits) == ("int", 8):
        return Scheme("int8", "int8" if quantised_inputs else "")
    if (kind, bits) == ("int", 4):
        eight_bit_float = quantised_inputs and inputs.word("type") == "float" and inputs.raw("num_bits") == 8
        return _int4("int4_fp8" if eight_bit_float else "int4", weights, zero_point=not weights.flag("symmetric", True))
    raise UnsupportedModelError(f"{weights.where}: {bits}-bit {kind} weights are not modelled; known: 4 and 8 bits")


def _int4(name: str, settings: Fields, *, zero_point: bool) -> Scheme:
    """With the checkpoint's own groups: a bf16 scale for each, and 4 bits more where zero is not in the middle."""
    group = settings.raw("group_size", "q_group_size")
    if group is None:
        group = 128
    if isinstance(group, bool) or not isinstance(group, int) or (group < 1 and group != -1):
        raise settings.wrong("group_size", "a whole number above zero, or -1 for one group a column")
    return schemes()[name]._replace(int4_scale_bytes=0.0 if group == -1 else (2.5 if zero_point else 2) / group)


def _fp8_cache(settings: Fields) -> bool:
    scheme = settings.raw("kv_cache_scheme", "kv_cache_quant_algo")
    if isinstance(scheme, dict):
        return scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    return isinstance(scheme, str) and scheme.upper().startswith("FP8")


def _name_list(value: Any) -> list[str]:
    """A list of module names; anything else in its place names nothing."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
