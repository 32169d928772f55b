"""What one GPU of a layout holds of a model."""

from __future__ import annotations

from infercast.models.layout import ParallelLayout
from infercast.models.parameters import attention_vectors, feed_forward_vectors
from infercast.models.spec import ExpertFeedForward, LatentAttention, ModelConfig, Stack
from infercast.models.stages import stage_config

Multiples = tuple[int, int]
"""What kernels pad the hidden size and the width of experts to."""
UNPADDED: Multiples = (1, 1)
WHOLE_SHARED_EXPERTS = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
)  # fmt: skip
"""Where GPUs compute shared experts whole, for a share of the tokens each, once experts are spread over copies."""


def rank_weight_bytes(config: ModelConfig, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
    """Weights of the GPU that holds most of them."""
    return max(stage_weight_bytes(config, layout, stage, multiples) for stage in range(layout.pipeline))


def stage_weight_bytes(
    config: ModelConfig, layout: ParallelLayout, stage: int, multiples: Multiples = UNPADDED
) -> float:
    """Weights of each GPU in one stage of a pipeline (stage 0 without one).

    Matrices are split over the tensor group, routed experts over the GPUs that share them; norms and routers, scarce
    key-value heads and the projections down to a latent are on every GPU. The first stage has the embedding, the last
    one the head (a tied head is the embedding once more), and every stage the encoder of images.
    """
    weights = config.weights
    table = config.vocabulary * config.hidden / layout.tensor
    is_last = stage == layout.pipeline - 1
    total = table * weights.stored_bytes(weights.base) if stage == 0 else 0.0
    if is_last and not (config.tied_embedding and stage == 0):
        total += table * weights.stored_bytes(weights.base if config.tied_embedding else weights.head)
    values: float = config.hidden if is_last else 0
    if config.vision:
        values += config.vision.split / layout.tensor + config.vision.whole
    total += values * weights.stored_bytes(weights.base)
    for stack in stage_config(config, layout.pipeline, stage).stacks:
        total += stack.layers * _layer_bytes(config, stack, layout, multiples)
    return total


def _layer_bytes(config: ModelConfig, stack: Stack, layout: ParallelLayout, multiples: Multiples) -> float:
    """One layer on one GPU."""
    weights, hidden, spec = config.weights, config.hidden, stack.feed_forward
    vectors = stack.norms * hidden + attention_vectors(stack, hidden) + feed_forward_vectors(stack, hidden)
    total = _attention_bytes(config, stack, layout) + vectors * weights.stored_bytes(weights.base)
    if not isinstance(spec, ExpertFeedForward):
        matrices = 3 if spec.gated else 2
        return total + matrices * hidden * spec.inter / layout.tensor * weights.stored_bytes(weights.feed_forward)
    whole = layout.experts and layout.data > 1 and config.architecture in WHOLE_SHARED_EXPERTS
    beside = 3 * hidden * (spec.shared_inter / (1 if whole else layout.tensor) + spec.dense_inter / layout.tensor)
    experts, biases = _expert_values(config, spec, layout, multiples)
    return (
        total
        + beside * weights.stored_bytes(weights.feed_forward)
        + experts * weights.stored_bytes(weights.experts)
        + biases * weights.stored_bytes(weights.base)
    )


def _expert_values(
    config: ModelConfig, spec: ExpertFeedForward, layout: ParallelLayout, multiples: Multiples
) -> tuple[float, float]:
    """Values of a layer's routed experts on one GPU, as their kernels pad them, and of their biases."""
    hidden = _rounded(config.hidden, multiples[0])
    inter = _rounded(layout.share_expert_width(spec.inter), multiples[1])
    local = spec.experts / layout.expert_gpus
    return 3 * hidden * inter * local, (2 * inter + hidden) * local if spec.expert_bias else 0.0


def _attention_bytes(config: ModelConfig, stack: Stack, layout: ParallelLayout) -> float:
    """The matrices of a layer's attention on one GPU."""
    attention, weights, hidden = stack.attention, config.weights, config.hidden
    heads = attention.heads / layout.tensor
    if not isinstance(attention, LatentAttention):
        # An engine keeps keys that serve as values twice, as if values had a projection of their own.
        key_values = layout.share_kv_heads(attention.kv_heads) * (attention.head_dim + attention.value_dim)
        values = hidden * (heads * (attention.head_dim + attention.value_dim) + key_values)
        return values * weights.stored_bytes(weights.attention)
    query_dim = heads * (attention.nope_dim + attention.rope_dim)
    rank = attention.q_lora_rank
    queries = rank * (hidden + query_dim) if rank else hidden * query_dim
    expansion = attention.kv_lora_rank * heads * (attention.nope_dim + attention.value_dim)
    output = heads * attention.value_dim * hidden
    values = queries + hidden * attention.latent_dim + expansion + output
    # Decoding multiplies with the expansion in the base format, so beside a quantised one there is a wide copy.
    copied = 0.0 if weights.attention == weights.base else expansion * weights.stored_bytes(weights.base)
    return values * weights.stored_bytes(weights.attention) + copied


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
