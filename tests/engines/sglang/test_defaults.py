"""What SGLang chooses by GPU and model: chunks, graphs, the static share, KV tokens, requests at once."""

from typing import Any

import pytest

from infercast.engines.base import engine_named
from infercast.engines.host import Launch
from infercast.engines.sglang.host import SglangHost
from infercast.engines.sglang.settings import EARLY_GRAPHS, ResolvedSglang, SglangSettings
from infercast.errors import InputError
from infercast.forecast.deploy import deploy, load_model
from infercast.forecast.memory import Fit, fit_memory


def fit(model: str = "llama-3.1-8b", gpu: str = "h200-sxm", tensor: int = 1, data: int = 1, **settings: object) -> Fit:
    asked = SglangSettings(**settings)  # type: ignore[arg-type]
    return fit_memory(model, gpu, asked, tensor_parallel_size=tensor, data_parallel_size=data)


def resolved(*args: object, **settings: object) -> ResolvedSglang:
    found = fit(*args, **settings).settings  # type: ignore[arg-type]
    assert isinstance(found, ResolvedSglang)
    return found


@pytest.mark.parametrize(
    ("model", "tokens"), [("llama-3.1-8b", 906_067), ("qwen3-30b-a3b", 750_533)]
)  # stated by engines that ran on an H200
def test_tokens_of_measured_engines(model: str, tokens: int) -> None:
    found = fit(model, context_length=16_384, max_running_requests=256)
    assert found.settings.mem_fraction_static == 0.903  # type: ignore[attr-defined]
    assert found.memory.num_blocks == pytest.approx(tokens, rel=0.001)
    assert found.memory.kv.shape.block_size == 1


@pytest.mark.parametrize(
    ("gpu", "tensor", "chunk", "largest", "share"),
    [
        ("t4", 1, 2048, 8, 0.735),
        ("l4", 1, 2048, 24, 0.823),
        ("l4", 4, 2048, 80, 0.802),
        ("l40s", 1, 4096, 32, 0.843),
        ("h100-sxm", 1, 8192, 256, 0.83),
        ("h100-sxm", 4, 8192, 512, 0.818),
        ("h200-sxm", 1, 8192, 256, 0.903),
        ("b200-sxm", 1, 16384, 512, 0.853),
    ],
)
def test_defaults_follow_the_memory_of_a_gpu(gpu: str, tensor: int, chunk: int, largest: int, share: float) -> None:
    found = resolved("qwen3-0.6b", gpu, tensor)
    assert found.chunked_prefill_size == chunk
    assert max(found.decode_sizes) == largest
    assert found.mem_fraction_static == pytest.approx(share, abs=0.002)


@pytest.mark.parametrize(
    ("model", "gpu", "backend", "page"),
    [
        ("llama-3.1-8b", "h100-sxm", "fa3", 1),
        ("llama-3.1-8b", "b200-sxm", "trtllm_mha", 64),
        ("llama-3.1-8b", "l40s", "flashinfer", 1),
        ("gpt-oss-20b", "l40s", "triton", 1),
        ("deepseek-v2-lite", "h100-sxm", "fa3", 1),
        ("deepseek-v2-lite", "l40s", "triton", 1),
        ("deepseek-v3", "b200-sxm", "trtllm_mla", 64),
        ("deepseek-v2-lite", "b200-sxm", "flashinfer", 1),
        ("nemotron-3-nano-30b-a3b", "b200-sxm", "flashinfer", 1),
        ("qwen3.5-35b-a3b", "b200-sxm", "trtllm_mha", 64),
        ("gemma-4-31b", "h100-sxm", "triton", 1),
        ("minimax-m3", "b200-sxm", "fa4", 128),
        ("minimax-m3", "h200-sxm", "fa3", 128),
        ("deepseek-v3.2", "h200-sxm", "dsa", 64),
        ("deepseek-v4-flash", "h200-sxm", "dsv4", 256),
    ],
)
def test_attention_and_its_pages(model: str, gpu: str, backend: str, page: int) -> None:
    found = resolved(model, gpu, 8 if model.startswith(("deepseek-v3", "deepseek-v4", "minimax-m3")) else 1)
    assert (found.attention_backend, found.page_size) == (backend, page)


def test_a_page_that_kernels_do_not_take_is_replaced() -> None:
    assert resolved(gpu="b200-sxm", page_size=16).page_size == 16
    assert resolved(gpu="b200-sxm", page_size=8).page_size == 64
    assert resolved(page_size=32).page_size == 32
    assert resolved(attention_backend="flashmla").page_size == 64


def test_graphs_of_prompts_by_size() -> None:
    assert len(resolved().prefill_sizes) == 58
    assert resolved(context_length=4096).prefill_sizes[-1] == 4096
    assert resolved(cuda_graph_max_bs_prefill=512).prefill_sizes[-1] == 512
    for name in ("disable_cuda_graph", "disable_prefill_cuda_graph"):
        assert resolved(**{name: True}).prefill_sizes == ()
    assert resolved(disable_cuda_graph=True).decode_sizes == ()


@pytest.mark.parametrize(
    ("engine", "latent", "pipelined"),
    [("0.5.16", 0, 8192), ("0.5.17", 0, 8192), ("0.5.18", 2048, 8192), ("0.5.19", 2048, 0), ("0.5.23", 8192, 0)],
)
def test_graphs_of_prompts_by_release(engine: str, latent: int, pipelined: int) -> None:
    """The largest with latent attention, and in pipelines, by the sources of each release."""

    def largest(model: str, gpu: str = "h200-sxm", **options: Any) -> int:
        settings = deploy(model, gpu, engine=f"sglang@{engine}", **options).settings
        assert isinstance(settings, ResolvedSglang)
        return max(settings.prefill_sizes, default=0)

    assert largest("llama-3.1-8b") == 8192
    assert largest("deepseek-v2-lite") == latent
    assert largest("deepseek-v2-lite", settings=SglangSettings(chunked_prefill_size=4096)) == min(latent, 4096)
    assert largest("deepseek-v3", "b200-sxm", tensor_parallel_size=8) == 0  # TensorRT-LLM's prefill of latents
    assert largest("kimi-linear-48b-a3b") == 0
    assert largest("llama-3.1-8b", pipeline_parallel_size=2) == pipelined


def test_latent_attention_between_graphs_is_launched_as_plain_attention() -> None:
    old, new = (deploy("deepseek-v2-lite", "h200-sxm", engine=f"sglang@0.5.{each}") for each in (16, 23))
    host = new.host
    assert isinstance(host, SglangHost)
    between = new.host_model.cost(Launch.PIECEWISE_GRAPHS, 1, 1000, 1).launch
    assert between == pytest.approx(host.prompt_step + 27 * host.piece_layer + host.sample)
    assert new.host_model.borrowed_share("deepseek-v2-lite") > 0.5  # measured in no model
    assert "not measured" in new.host_model.rests_on()[0]
    assert old.host_model.borrowed_share("deepseek-v2-lite") == 0.0


def test_releases_that_compiled_graphs_of_prompts() -> None:
    def largest(model: str, gpu: str = "h200-sxm", tensor: int = 1) -> int:
        found = resolved(model, gpu, tensor, engine="sglang@0.5.12")
        return max(found.prefill_sizes, default=0)

    assert largest("deepseek-v2-lite") == 2048  # latent attention, too
    assert largest("deepseek-r1", "b200-sxm", 8) == 0  # experts in TensorRT-LLM's kernels
    assert largest("qwen3-next-80b-a3b", tensor=4) == 0
    assert largest("qwen3-30b-a3b") == 8192
    settings, _ = engine_named("sglang").before((0, 5, 12), load_model("deepseek-r1"))
    assert settings["cuda_graph_backend_prefill"] == EARLY_GRAPHS


def test_prompts_have_no_graphs_on_amd() -> None:
    amd = resolved(gpu="mi300x")
    assert amd.prefill_sizes == ()
    assert amd.decode_sizes
    assert amd.attention_backend == "aiter"


def test_graphs_of_decoding_end_with_as_many_as_run() -> None:
    assert resolved(max_running_requests=100).decode_sizes[-2:] == (96, 100)
    assert resolved(cuda_graph_max_bs=20).decode_sizes == (1, 2, 4, 8, 12, 16, 20)
    assert resolved(cuda_graph_bs=(4, 1)).decode_sizes == (1, 4)
    assert resolved(disable_cuda_graph_padding=True, cuda_graph_max_bs=5).decode_sizes == (1, 2, 3, 4, 5)


def test_requests_at_once_by_what_fits() -> None:
    assert resolved(gpu="h100-sxm").max_running_requests == 2048  # three contexts fit
    assert resolved(context_length=16_384).max_running_requests == 4096
    assert resolved(max_total_tokens=1000).max_running_requests == 500
    found = resolved(max_total_tokens=1000)
    assert found.max_model_len == 1000  # a server starts all the same, and refuses longer requests


def test_windows_have_a_smaller_pool_of_their_own() -> None:
    split, whole = (fit("gpt-oss-20b", disable_hybrid_swa_memory=off).memory for off in (False, True))
    assert split.kv.block_bytes == pytest.approx(0.9 * whole.kv.block_bytes, rel=1e-4)
    gemma, asked = (fit("gemma-3-27b", disable_hybrid_swa_memory=off).memory for off in (False, True))
    assert gemma.kv.block_bytes == asked.kv.block_bytes  # all tokens are kept in any case


@pytest.mark.parametrize(
    ("model", "settings", "token", "waiting"),
    [
        # What DSV4PoolConfigurator of SGLang 0.5.16 computes for 256 requests and a window pool of a tenth: bytes of a
        # token in all pools, and of the rings in which requests gather 128 tokens for an entry.
        ("deepseek-v4-flash", {}, 7705.45, 2_715_811_840),
        ("deepseek-v4-pro", {}, 10_993.8375, 4_209_508_352),
        ("deepseek-v4-pro", {"max_running_requests": 32, "swa_full_tokens_ratio": 0.5}, 32_923.4375, 568_852_480),
    ],
)
def test_compressed_caches(model: str, settings: dict[str, object], token: float, waiting: int) -> None:
    memory = fit(model, "b200-sxm", 8, **settings).memory
    assert memory.kv.block_bytes == round(256 * token)
    assert memory.states == waiting


def test_states_take_a_share_of_memory_and_bound_requests() -> None:
    found = fit("qwen3-next-80b-a3b", tensor=2)
    memory = found.memory
    assert memory.states == pytest.approx(0.9 * memory.kv_bytes, rel=0.01)
    asked = fit("qwen3-next-80b-a3b", tensor=2, max_mamba_cache_size=500)
    assert asked.settings.max_num_seqs == 100  # three for prefixes, and two buffers
    plain = fit("qwen3-next-80b-a3b", tensor=2, max_mamba_cache_size=500, disable_radix_cache=True)
    assert plain.settings.max_num_seqs == 500


def test_groups_of_dp_attention_share_the_chunk_and_the_requests() -> None:
    found = resolved("qwen3-30b-a3b", "h100-sxm", 4, 4, enable_dp_attention=True, max_running_requests=256, ep_size=4)
    assert (found.groups, found.chunked_prefill_size, found.max_running_requests) == (4, 2048, 64)
    assert found.prefill_sizes == ()


def test_layouts_as_the_engine_reads_them() -> None:
    copies = fit("qwen3-30b-a3b", "h100-sxm", 2, 2).layout
    assert (copies.tensor, copies.data, copies.sharing, copies.gpus) == (2, 2, 1, 4)
    groups = fit("qwen3-30b-a3b", "h100-sxm", 4, 2, enable_dp_attention=True, ep_size=4).layout
    assert (groups.tensor, groups.data, groups.sharing, groups.expert_gpus, groups.gpus) == (2, 2, 2, 4, 4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mem_fraction_static": 1.2}, r"mem_fraction_static must lie in \(0, 1\), not 1.2"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size must be at least 1, or -1 for whole prompts, not 0"),
        ({"max_running_requests": 0}, "max_running_requests must be at least 1, not 0"),
        ({"schedule_policy": "random"}, "schedule_policy random is not modelled; use fcfs or lpm"),
        ({"schedule_policy": "first"}, "unknown schedule_policy 'first'"),
        ({"attention_backend": "aiter"}, "attention_backend aiter needs an AMD GPU, which h200-sxm is not"),
        ({"attention_backend": "fa9"}, "unknown attention_backend 'fa9'"),
        ({"attention_backend": "trtllm_mha"}, "needs a Blackwell datacentre GPU, which h200-sxm is not"),
        ({"context_length": 10**6}, "context_length 1000000 is above the 131072 positions"),
        ({"cuda_graph_bs": ()}, "cuda_graph_bs must be one or more numbers"),
        ({"ep_size": 3}, "ep_size 3 is not modelled with tp_size 1; use 1"),
        ({"swa_full_tokens_ratio": 0.0}, r"swa_full_tokens_ratio must lie in \(0, 1\]"),
    ],
)
def test_what_it_refuses(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolved(**settings)


def test_groups_need_experts_and_a_multiple() -> None:
    with pytest.raises(InputError, match=r"is modelled for models with experts, and llama-3.1-8b has none"):
        fit(tensor=2, data=2, enable_dp_attention=True)
    with pytest.raises(InputError, match=r"make tp_size a multiple of dp_size"):
        fit("qwen3-30b-a3b", tensor=4, data=3, enable_dp_attention=True)
