"""What SGLang's own functions choose for a GPU, a model and flags."""

from types import SimpleNamespace as Namespace
from typing import Any

import torch
from sglang.srt import runtime_context, utils
from sglang.srt.configs import model_config as configs
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from sglang.srt.model_executor import pool_configurator
from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.model_executor.runner import base_cuda_graph_runner as graphs
from sglang.srt.server_args import ServerArgs
from sglang_scheduler import with_defaults

NAMES = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode"}
"""Flags that have another name inside SGLang."""
KIMI = {"num_hidden_layers": 27, "hidden_size": 1152}
"""Of Kimi-K2.5's encoder, which SGLang's own class of its config has, whatever the file says."""
utils.is_cuda = lambda: True  # graphs of prompts are of another kind elsewhere
pool_configurator.mambaish_config = lambda _: None


def theirs(
    memory: float, name: str, config: dict[str, Any], tensor: int, data: int, flags: dict[str, Any], tokens: int
) -> list[Any]:
    """Chunk, static share, sizes of graphs, bytes of a token, and requests at once where so many tokens fit."""
    model = _model(config)
    given = {NAMES.get(key, key): value for key, value in flags.items()}
    arguments = with_defaults(
        model_path=name, tp_size=tensor, dp_size=data, enable_dp_attention=data > 1, device="cuda", **given
    )
    values = {"_resolved_overrides": [], "get_model_config": lambda: model}
    for key, value in values.items():
        object.__setattr__(arguments, key, value)
    _on_nvidia(arguments, memory)
    group = tensor // data
    decode, prefill = arguments.cuda_graph_config.decode, arguments.cuda_graph_config.prefill
    with runtime_context.get_parallel().override(attn_tp_size=group, attn_cp_size=1):
        running = _running(arguments, model, tokens, data)
        pool = Namespace(server_args=arguments, req_to_token_pool=Namespace(size=running))
        replayed = [] if decode.backend == Backend.DISABLED else graphs.get_batch_sizes_to_capture(pool)[0]
        recorded = [] if prefill.backend == Backend.DISABLED else prefill.bs
        cell = _cell(arguments, model)
    sizes = [f"{len(each)}:{sum(each)}" for each in (replayed, recorded)]
    return [arguments.chunked_prefill_size, round(arguments.mem_fraction_static, 6), *sizes, cell, running]


def _on_nvidia(arguments: ServerArgs, memory: float) -> None:
    """The steps of `ServerArgs` that set what is asked here, in its order."""
    arguments._handle_cuda_graph_config()
    arguments._handle_gpu_memory_settings(memory)
    arguments._handle_data_parallelism()


def _running(arguments: ServerArgs, model: Namespace, tokens: int, data: int) -> int:
    sizes = Namespace(
        model_config=model, server_args=arguments, ps=Namespace(attn_dp_size=data), mambaish_config=None
    )  # fmt: skip
    return int(KVCacheConfigurator.resolve_max_num_reqs(sizes, tokens))


def _cell(arguments: ServerArgs, model: Namespace) -> float:
    """Bytes of one token of capacity."""
    nothing = Namespace(is_eagle=lambda: False, is_standalone=lambda: False, is_dflash_family=lambda: False)
    asking = Namespace(
        model_config=model, kv_cache_dtype=torch.bfloat16, server_args=arguments, spec_algorithm=nothing,
        is_draft_worker=False, use_mla_backend=model.attention_arch == AttentionArch.MLA, sliding_window_size=1,
        page_size=1, layer_info=Namespace(num_effective_layers=model.layers, start_layer=0, end_layer=model.layers),
    )  # fmt: skip
    kind = (
        pool_configurator.HybridSWAPoolConfigurator
        if model.swa_attention_layer_ids
        else pool_configurator.DefaultPoolConfigurator
    )
    return float(kind(asking)._cell_size)


def _model(config: dict[str, Any]) -> Namespace:
    """A model as SGLang describes it, from the published config."""
    text = {**config, **config.get("text_config", config.get("llm_config", {}))}
    names = config["architectures"]
    heads, latent = text["num_attention_heads"], text.get("kv_lora_rank")
    head = text.get("head_dim") or text["hidden_size"] // heads
    kv_heads = text.get("num_key_value_heads") or heads
    layers, windows = text["num_hidden_layers"], _windows(names, Namespace(**text))
    sees = configs.is_multimodal_model(names)
    published = Namespace(architectures=names, vision_config=None)
    if config.get("vision_config"):
        known = KIMI if names[0].startswith("KimiK25") else {}
        published.vision_config = Namespace(**{**config["vision_config"], **known})
    return Namespace(
        attention_arch=AttentionArch.MLA if latent else AttentionArch.MHA, hf_config=published, is_multimodal=sees,
        is_multimodal_piecewise_cuda_graph_supported=configs.is_multimodal_piecewise_cuda_graph_supported(names),
        is_multimodal_breakable_cuda_graph_supported=configs.is_multimodal_breakable_cuda_graph_supported(names),
        is_piecewise_cuda_graph_disabled_model=configs.is_piecewise_cuda_graph_disabled_model(names),
        context_len=text["max_position_embeddings"], kv_lora_rank=latent, qk_rope_head_dim=text.get("qk_rope_head_dim"),
        head_dim=head, v_head_dim=head, swa_head_dim=head, swa_v_head_dim=head, layers=layers,
        get_num_kv_heads=lambda group: max(1, kv_heads // group),
        get_swa_num_kv_heads=lambda group: max(1, kv_heads // group),
        swa_attention_layer_ids=windows,
        full_attention_layer_ids=[each for each in range(layers) if each not in windows],
        hf_text_config=Namespace(**text), is_encoder_decoder=False,
    )  # fmt: skip


def _windows(names: list[str], text: Namespace) -> list[int]:
    """Layers with a pool of their own for windows."""
    return list(configs.get_hybrid_layer_ids(names, text)[0]) if configs.is_hybrid_swa_model(names, text) else []
