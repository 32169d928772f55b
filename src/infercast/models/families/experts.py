"""Routed experts as families publish them: how many and how wide, and which layers have them."""

from __future__ import annotations

from infercast.errors import FileFormatError
from infercast.models.families.fields import Answer, Fields
from infercast.models.families.layers import dense_feed_forward
from infercast.models.feed_forward import ExpertFeedForward, FeedForward

CHOSEN_KEYS = ("num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_top_k", "moe_k")


def routed_experts(
    fields: Fields,
    count: str,
    inter: str,
    *alternatives: str,
    shared_inter: int = 0,
    shared_gate: bool = False,
    router_bias: Answer = False,
    expert_bias: bool = False,
    dense_inter: int = 0,
    wide_router: bool = False,
    gated: bool = True,
    latent: int = 0,
) -> ExpertFeedForward:
    """Experts whose number and width are under these keys, of which ``num_experts_per_tok`` serve a token."""
    experts, topk = fields.positive(count), fields.positive(*CHOSEN_KEYS)
    if topk > experts:
        raise FileFormatError(fields.where, f"num_experts_per_tok is {topk}, more than the {experts} experts there are")
    return ExpertFeedForward(
        experts=experts,
        topk=topk,
        inter=fields.positive(inter, *alternatives),
        shared_inter=shared_inter,
        shared_gate=shared_gate,
        router_bias=fields.answer(router_bias),
        expert_bias=expert_bias,
        dense_inter=dense_inter,
        wide_router=wide_router,
        gated=gated,
        latent=latent,
        grouped_choice=fields.count("n_group") > 0 or bool(fields.word("topk_method")),
    )


def experts_everywhere(
    fields: Fields, shared: str = "", router_bias: Answer = False, expert_bias: bool = False
) -> list[FeedForward]:
    """Mixtral, MiniMax and gpt-oss: the same experts in every layer."""
    experts = routed_experts(
        fields,
        "num_local_experts",
        "intermediate_size",
        shared_inter=fields.count(shared) if shared else 0,
        router_bias=router_bias,
        expert_bias=expert_bias,
    )
    return [experts] * fields.layers


def deepseek_experts(fields: Fields) -> ExpertFeedForward:
    """DeepSeek and those after it: shared experts as wide as the routed ones."""
    shared = fields.positive("moe_intermediate_size") * fields.count("n_shared_experts")
    # The bias that balances the experts without an auxiliary loss (DeepSeek-V3 report, 2.1.2).
    bias = fields.word("topk_method") == "noaux_tc"
    # GLM-5 routes in fp32 whether its file says so or not (vLLM 0.25, models/deepseek_v2.py).
    wide = fields.word("moe_router_dtype") == "float32" or fields.word("model_type") == "glm_moe_dsa"
    keys = ("n_routed_experts", "moe_intermediate_size")
    return routed_experts(fields, *keys, shared_inter=shared, router_bias=bias, wide_router=wide)


def after_dense_layers(fields: Fields) -> list[FeedForward]:
    """DeepSeek and GLM: the first layers dense, then experts in every ``moe_layer_freq``-th layer."""
    dense, sparse = dense_feed_forward(fields), deepseek_experts(fields)
    first, frequency = fields.count("first_k_dense_replace"), fields.positive("moe_layer_freq", default=1)
    return [sparse if index >= first and index % frequency == 0 else dense for index in range(fields.layers)]


def qwen_experts(fields: Fields, *, shared_inter: int = 0, shared_gate: bool = False) -> list[FeedForward]:
    """Qwen: in every ``decoder_sparse_step``-th layer that is not listed in ``mlp_only_layers``."""
    keys = ("num_experts", "moe_intermediate_size")
    sparse = routed_experts(fields, *keys, shared_inter=shared_inter, shared_gate=shared_gate)
    step = fields.positive("decoder_sparse_step", default=1)
    listed = set(fields.numbers("mlp_only_layers") or [])
    is_sparse = [index not in listed and (index + 1) % step == 0 for index in range(fields.layers)]
    dense = None if all(is_sparse) else dense_feed_forward(fields)
    return [dense if dense and not here else sparse for here in is_sparse]


def qwen2_experts(fields: Fields) -> list[FeedForward]:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside them."""
    return qwen_experts(fields, shared_inter=fields.positive("shared_expert_intermediate_size"), shared_gate=True)


def ernie_experts(fields: Fields) -> list[FeedForward]:
    """ERNIE 4.5: between two layers, with shared experts as wide as the routed ones and a bias on the choice."""
    shared = fields.positive("moe_intermediate_size") * fields.count("moe_num_shared_experts")
    keys = ("moe_num_experts", "moe_intermediate_size")
    sparse, dense = routed_experts(fields, *keys, shared_inter=shared, router_bias=True), dense_feed_forward(fields)
    first, last = fields.count("moe_layer_start_index"), fields.count("moe_layer_end_index", default=fields.layers - 1)
    step = fields.positive("moe_layer_interval", default=1)
    return [sparse if first <= layer <= last and (layer + 1) % step == 0 else dense for layer in range(fields.layers)]
