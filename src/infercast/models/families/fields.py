"""Fields of a config.json, and the halves of layers that families build from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward, FeedForward
from infercast.models.mixers.mixer import GroupedAttention, Mixer
from infercast.models.spec import PredictionPart, Stack

# No published model comes near these; a file that goes beyond them is a mistake or an attack.
LARGEST_COUNT = 2**40
MOST_LAYERS = 4096

Item = TypeVar("Item")
Answer = bool | str | Sequence[str]  # Yes or no, the flag that says which, or flags of which one may say yes
LAYER_TYPES = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
WIDTH_KEYS = ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
CHOSEN_KEYS = (
    "num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_top_k", "moe_k", "moe_topk",
    "experts_per_token", "top_k",
)  # fmt: skip


class Fields(NamedTuple):
    """The fields of one config; ``outer`` ones, around a ``text_config``, answer what the inner ones leave out."""

    values: Mapping[str, Any]
    where: str
    outer: Mapping[str, Any] | None = None

    def raw(self, *keys: str) -> Any:
        """The first of ``keys`` that is present and not null, here and then around it; None without any."""
        for values in (self.values, self.outer or {}):
            for key in keys:
                if values.get(key) is not None:
                    return values[key]
        return None

    def wrong(self, key: str, wanted: str) -> FileFormatError:
        shown = repr(self.raw(key))
        return FileFormatError(self.where, f"{key} must be {wanted}, not {shown if len(shown) < 60 else shown[:57]}")

    def positive(self, key: str, *alternatives: str, default: int | None = None) -> int:
        """A whole number above zero, required unless a default is given."""
        found = next((name for name in (key, *alternatives) if self.raw(name) is not None), None)
        if found is None:
            if default is None:
                raise FileFormatError(self.where, f"the field {key} is missing; a whole number above zero is needed")
            return default
        value = self.raw(found)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_COUNT:
            raise self.wrong(found, "a whole number above zero")
        return value

    def sizes(self, **keys: str) -> dict[str, Any]:
        """Whole numbers above zero under these keys, all of them required."""
        return {name: self.positive(key) for name, key in keys.items()}

    def count(self, key: str, *alternatives: str, default: int = 0) -> int:
        if any(self.raw(name) == 0 for name in (key, *alternatives)):
            return 0
        return self.positive(key, *alternatives, default=default)

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._checked(key, default, "true or false", lambda value: isinstance(value, bool)))

    def answer(self, said: Answer) -> bool:
        """Yes or no: as a family has it, or as the config says; ``!flag`` means its opposite."""
        if isinstance(said, bool):
            return said
        if not isinstance(said, str):
            return any(self.raw(flag) is True for flag in said)
        return not self.flag(said[1:]) if said.startswith("!") else self.flag(said)

    def fraction(self, key: str, default: float = 1.0) -> float:
        wanted = "a number above zero and at most one"
        return float(self._checked(key, default, wanted, lambda value: _is_number(value) and 0 < value <= 1))

    def word(self, key: str, default: str = "") -> str:
        return str(self._checked(key, default, "a string", lambda value: isinstance(value, str)))

    def words(self, key: str) -> list[str]:
        return list(self._checked(key, [], "a list of strings", lambda value: _is_list(value, str)))

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers (true and false count as 1 and 0), None when absent."""
        found = self._checked(key, None, "a list of whole numbers", lambda value: _is_list(value, int))
        return None if found is None else [int(item) for item in found]

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero, required unless a default is given."""
        if self.raw(key) is None and default is None:
            raise FileFormatError(self.where, f"the field {key} is missing; a number above zero is needed")
        return float(self._checked(key, default, "a number above zero", lambda value: _is_number(value) and value > 0))

    def sections(self, key: str) -> list[Fields]:
        found = self._checked(key, [], "a list of objects", lambda value: _is_list(value, dict))
        return [Fields(values, f"{self.where}, {key}[{index}]") for index, values in enumerate(found)]

    def section(self, key: str) -> Fields:
        values = self._checked(key, {}, "an object", lambda value: isinstance(value, dict))
        return Fields(values, f"{self.where}, {key}")

    def _checked(self, key: str, default: Any, wanted: str, holds: Callable[[Any], bool]) -> Any:
        value = self.raw(key)
        if value is not None and not holds(value):
            raise self.wrong(key, wanted)
        return default if value is None else value

    @property
    def layers(self) -> int:
        """``num_hidden_layers``, within reason."""
        layers = self.positive("num_hidden_layers")
        if layers > MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MOST_LAYERS}")
        return layers

    def a_layer(self, key: str, items: list[Item]) -> list[Item]:
        """One item for each layer; what comes after belongs to layers that were cut off, or to prediction layers."""
        if len(items) < self.layers:
            raise FileFormatError(self.where, f"{key} has {len(items)} items for {self.layers} layers")
        return items[: self.layers]

    def known_kinds(self, kinds: list[str], known: Iterable[str]) -> list[str]:
        """Kinds of layers, or an error that names the first one that is not modelled."""
        if unknown := sorted({*kinds} - {*known}):
            listed = ", ".join(known)
            raise UnsupportedModelError(f"{self.where}: {unknown[0]} layers are not modelled; known: {listed}")
        return kinds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


class Layer(NamedTuple):
    mixer: Mixer
    feed_forward: FeedForward
    norms: int = 2
    streams: int = 1
    residuals: int = 0
    parallel: bool = False
    input_width: int = 0


def gather(layers: Sequence[Layer]) -> tuple[tuple[Stack, ...], tuple[int, ...]]:
    """Stacks of equal layers as they first appear, and the stack of every layer; empty: they follow each other."""
    counts = Counter(layers)
    stacks = tuple(Stack(count, *layer) for layer, count in counts.items())
    numbers = {layer: number for number, layer in enumerate(counts)}
    order = tuple(numbers[layer] for layer in layers)
    return stacks, () if list(order) == sorted(order) else order


def grouped_attention(fields: Fields, *, window: int = 0, **options: bool) -> GroupedAttention:
    """Attention from the usual keys: ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``."""
    heads = fields.positive("num_attention_heads")
    if fields.raw("head_dim") is None and fields.positive("hidden_size") % heads:
        raise fields.wrong("hidden_size", f"a multiple of num_attention_heads = {heads} where head_dim is absent")
    head_dim = fields.positive("head_dim", default=max(1, fields.positive("hidden_size") // heads))
    return GroupedAttention(
        heads=heads, kv_heads=checked_kv_heads(fields, "num_key_value_heads", heads), head_dim=head_dim,
        value_dim=head_dim, rotary_dim=rotary_dim(fields, head_dim), window=useful_window(fields, window), **options,
    )  # fmt: skip


def checked_kv_heads(fields: Fields, key: str, heads: int) -> int:
    """The number under ``key`` (all ``heads`` when absent), which must divide ``heads``."""
    kv_heads = fields.positive(key, default=heads)
    if heads % kv_heads:
        raise FileFormatError(fields.where, f"{heads} attention heads cannot be shared by {key} = {kv_heads}")
    return kv_heads


def rotary_dim(fields: Fields, head_dim: int) -> int:
    if fields.raw("rotary_dim") is not None:
        if fields.positive("rotary_dim") > head_dim:
            raise fields.wrong("rotary_dim", f"at most head_dim = {head_dim}")
        return fields.positive("rotary_dim")
    rope = fields.section("rope_parameters")
    return int(head_dim * fields.fraction("partial_rotary_factor", rope.fraction("partial_rotary_factor")))


def useful_window(fields: Fields, window: int) -> int:
    """``window``, or 0 where it is no shorter than the longest context and so never cuts anything off."""
    return 0 if window >= fields.positive("max_position_embeddings", default=window + 1) else window


def listed_windows(fields: Fields) -> list[bool] | None:
    names = fields.known_kinds(fields.words("layer_types"), LAYER_TYPES)
    return [LAYER_TYPES[name] for name in fields.a_layer("layer_types", names)] if names else None


def dense_feed_forward(fields: Fields, bias: bool = False, gated: bool = True) -> DenseFeedForward:
    squared = fields.raw(*ACTIVATION_KEYS) in (None, "relu2") or gated
    return DenseFeedForward(fields.positive("intermediate_size"), gated, bias, squared)


def routed_experts(
    fields: Fields, count: str | None = None, inter: str | None = None, *alternatives: str, router_bias: Answer = False,
    **options: Any,
) -> ExpertFeedForward:  # fmt: skip
    """Experts with their number and width under these keys or the usual ones."""
    experts = fields.positive(count) if count else fields.positive(*EXPERT_KEYS)
    topk = fields.positive(*CHOSEN_KEYS)
    if topk > experts:
        raise FileFormatError(fields.where, f"num_experts_per_tok is {topk}, more than the {experts} experts there are")
    return ExpertFeedForward(
        experts=experts, topk=topk,
        inter=fields.positive(inter, *alternatives) if inter else fields.positive(*WIDTH_KEYS),
        router_bias=fields.answer(router_bias),
        grouped_choice=fields.count("n_group") > 0 or bool(fields.word("topk_method")), **options,
    )  # fmt: skip


def usual_experts(
    fields: Fields, router_bias: Answer = False, beside: str | None = None, **options: Any
) -> ExpertFeedForward:
    """Experts by the usual keys, with shared ones by width or number; ``beside``: key of a dense network's width."""
    shared_widths = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    shared = next((width for key in shared_widths if (width := fields.count(key))), 0)
    shared_counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    shared = shared or fields.count(*shared_counts) * fields.positive(
        "moe_shared_expert_intermediate_size", *WIDTH_KEYS
    )
    # The bias that balances the experts without an auxiliary loss (DeepSeek-V3 report, 2.1.2).
    bias = fields.answer(router_bias) or fields.word("topk_method") == "noaux_tc"
    # GLM-5 routes in fp32 whether its file says so or not (vLLM 0.25, models/deepseek_v2.py).
    wide = fields.word("moe_router_dtype") == "float32" or fields.word("model_type") == "glm_moe_dsa"
    options["dense_inter"] = fields.positive(beside) if beside else 0
    return routed_experts(fields, shared_inter=shared, router_bias=bias, wide_router=wide, **options)


def sparse_layers(fields: Fields) -> list[bool]:
    """Whether each layer has experts: as a list says, or every n-th between the first and the last such one."""
    if kinds := fields.words("mlp_layer_types"):
        return [kind == "sparse" for kind in fields.a_layer("mlp_layer_types", kinds)]
    if isinstance(fields.raw("moe_layer_freq"), list):
        return [bool(here) for here in fields.a_layer("moe_layer_freq", fields.numbers("moe_layer_freq") or [])]
    period = fields.positive("moe_layer_freq", "expert_layer_period", default=1)
    offset = fields.count("expert_layer_offset")
    step_keys = ("decoder_sparse_step", "moe_layer_interval")
    step, dense = fields.positive(*step_keys, default=1), {*(fields.numbers("mlp_only_layers") or [])}
    first_keys = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    first, last = fields.count(*first_keys), fields.count("moe_layer_end_index", default=fields.layers - 1)
    return [
        first <= index <= last and index % period == offset and (index + 1) % step == 0 and index not in dense
        for index in range(fields.layers)
    ]


def expert_networks(fields: Fields, experts: ExpertFeedForward | None = None, **options: Any) -> list[FeedForward]:
    """Experts in the layers that have them, a dense network in the others."""
    sparse, chosen = experts or usual_experts(fields, **options), sparse_layers(fields)
    dense = None if all(chosen) else dense_feed_forward(fields)
    return [dense if dense and not here else sparse for here in chosen]


COUNT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""``num_mtp_modules`` is not one of them: MiniMax-M2 counts modules there without published weights."""
PREDICTION = "heads that predict further tokens take memory with speculative decoding only"

HeadLayers = Callable[[Fields, Sequence[Layer]], Sequence[Layer]]


def last_layer(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """DeepSeek, GLM, Qwen and most others: one layer like the model's last."""
    return layers[-1:]


def read_prediction(
    fields: Fields, layers: Sequence[Layer], head: HeadLayers, heads: int = 0, own_table: bool = False
) -> PredictionPart | None:
    """The heads that a config counts, or ``heads`` where it does not; None without any."""
    count = fields.count(*COUNT_KEYS, default=heads)
    return PredictionPart(count, gather(head(fields, layers))[0], own_table=own_table) if count else None
