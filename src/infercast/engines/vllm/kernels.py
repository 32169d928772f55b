"""Which kernels vLLM runs for a model on a GPU, and what follows: block size, padding and launch configurations.

Facts of vLLM 0.25 (``platforms/cuda.py``, ``v1/attention/backends``, ``fused_moe``); what a GPU prefers decides.

- Grouped attention: blocks of any multiple of 16. Latent attention: FlashAttention on Hopper (16), FlashMLA there with
  an fp8 cache (64), FlashInfer on Blackwell (32) or, for other heads, CUTLASS (128), and Triton elsewhere (16).
- Sparse attention: an indexer scores blocks of 64, of 256 for compressed keys (``models/deepseek_v4``). Hopper has
  FlashAttention for bf16, and FlashMLA for fp8 in its own format (64 or 128 heads). Datacentre Blackwell has FlashInfer
  for fp8 and few heads, else FlashMLA (128 heads). Other Blackwells read FlashMLA's format alone and do not pad heads.
  Older chips have no such kernels, and no DeepGEMM for the scores.
- Experts: launches by a file tuned for experts, their width, GPU and format, or by rules of thumb (``fused_moe.py``).
  In mxfp4 (``oracle/mxfp4.py``) TensorRT-LLM's on Blackwell need multiples of 256, Triton's on Hopper widths of 64,
  Marlin's hidden sizes in multiples of 256 and widths of 128; all kernels on AMD pad to 256.
- Since 0.29 FlashInfer reduces over a node of compute capability 10.3 (``all_reduce_utils.py``). Since 0.32 Humming's
  kernels precede Marlin's on Hopper for experts in int4 and nvfp4 and dense nvfp4 and mxfp4 (``humming/priority.py``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from infercast.engines.base import Configuration, ExpertLaunches
from infercast.engines.vllm.versions import EngineVersion, Rule
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention, Mixer
from infercast.models.mixers.sparse import BlockSparseAttention, CompressedAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops import Collective, Gemm, MoE, Op
from infercast.ops.op import PACKED_LATENT
from infercast.predict.families.moe import expert_kernel
from infercast.predict.identity import kernel_profile

UNIT, INDEXED, COMPRESSED = 16, 64, 256
DATACENTER_BLACKWELL = ("blackwell", "blackwell-ultra")
WITHOUT_KERNELS = ("pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada")
OTHER_BLACKWELL = ("blackwell-rtx",)
PADDED_HEADS, BLACKWELL_HEADS, FEW_HEADS = 64, 128, 16


def default_block_size(model: ModelConfig, gpu: Gpu) -> int:
    latent = [stack.mixer for stack in model.stacks if isinstance(stack.mixer, LatentAttention)]
    if model.has_mixer(CompressedAttention):
        return COMPRESSED
    chosen = [stack.mixer.block for stack in model.stacks if isinstance(stack.mixer, BlockSparseAttention)]
    if not latent:
        return max(chosen, default=UNIT)
    if any(isinstance(mixer, SparseLatentAttention) for mixer in latent):
        return INDEXED
    if gpu.architecture == "hopper":
        return 64 if model.cache_dtype == "fp8" else UNIT
    if gpu.architecture in DATACENTER_BLACKWELL:
        heads = (64, 128, 192)  # Query head dimensions without rotation of FlashInfer's latent attention kernel
        return 32 if latent[0].nope_dim in heads else 128
    return UNIT


def check_block_size(block_size: int) -> None:
    if block_size % UNIT:
        usual = (16, 32, 64, 128, 256)
        raise InputError(
            f"block_size {block_size} fits no attention kernel, which take multiples of {UNIT}; use one of "
            f"{', '.join(map(str, usual))}, or leave it out"
        )


def rule_of_thumb(tokens: int, experts: int, dtype: str) -> Configuration:
    if dtype == "fp8_block":
        stages = 4 if tokens <= 4 else 3
        return Configuration(
            16 if tokens <= 64 else 64, 64 if tokens <= 8 else 128, 128, 1 if tokens <= 16 else 32, 4, stages
        )
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    return Configuration(
        rows=rows, columns=64 if tokens <= 64 else 128, depth=128 if dtype == "fp8" or tokens <= 64 else 64,
        group=16 if tokens // experts > 128 else 1, warps=4 if tokens <= 128 else 8, stages=4 if tokens <= 32 else 3,
    )  # fmt: skip


EXPERT_LAUNCHES = ExpertLaunches(
    "vllm", folder_variable="VLLM_TUNED_CONFIG_FOLDER", rule_of_thumb=rule_of_thumb, called_alike=("H200",)
)


# Multiples of the hidden size and of the width of each expert on one GPU.
BY_KERNEL: dict[str, Multiples] = {"trtllm": (256, 256), "triton": (1, 64), "cutlass": (128, 128), "marlin": (256, 128)}


def expert_multiples(model: ModelConfig, gpu: Gpu) -> Multiples:
    if model.weights.experts != "mxfp4":
        return UNPADDED
    if gpu.vendor.lower() != "nvidia":
        return 256, 256
    automatic = {"hopper": "triton", "blackwell": "trtllm", "blackwell-ultra": "trtllm"}
    return BY_KERNEL[model.weights.experts_kernel or automatic.get(gpu.architecture, "marlin")]


def is_new(version: EngineVersion, op: Op, gpu: Gpu) -> bool:
    humming = version.has(Rule.PREFERS_HUMMING) and gpu.compute_capability == "9.0"
    if isinstance(op, MoE):
        return humming and not op.kernel and expert_kernel(op, gpu, kernel_profile()) == "marlin"
    if isinstance(op, Gemm):
        on_hopper = ("nvfp4", "mxfp4")  # Dense weight formats that Marlin multiplied there
        return humming and (op.weight_dtype or op.dtype) in on_hopper
    if isinstance(op, Collective):
        tabled = (4, 8) if gpu.compute_capability == "10.3" else ()  # GPUs in FlashInfer's table
        return version.has(Rule.FLASHINFER_ALL_REDUCE) and op.kind == "all_reduce" and op.gpus in tabled
    return False


PACKED_ROUTING = {False: ((1.0, 5.4), (32.0, 9.0)), True: ((1.0, 8.0), (32.0, 10.0))}
"""Tokens, and how many times as long those kernels choose experts as one of vLLM's: top-k, sums of bit matrices,
clearing and sorting are launches of their own. From decode steps of gpt-oss-20b on an H200: a sixth of their time; with
PyTorch 2.14 (True) a quarter, where published runs of gpt-oss-120b by earlier releases have no room for more."""


def packs_experts(model: ModelConfig, gpu: Gpu) -> bool:
    """True if 4-bit experts run OpenAI's Triton kernels: on Hopper those of gpt-oss, where others run Marlin's."""
    is_packed = model.architecture == "GptOssForCausalLM" and model.weights.experts == "mxfp4"
    return is_packed and not model.weights.experts_kernel and gpu.kernels == "hopper"


def choose_kernels(model: ModelConfig, gpu: Gpu, *, is_recent: bool = False) -> ModelConfig:
    """The model with the cache format and padding of this GPU's kernels; ``is_recent``: PyTorch 2.14 or later."""
    if packs_experts(model, gpu):
        model = model.with_experts(partial(replace, routing_slower=PACKED_ROUTING[is_recent]))
    kinds = {type(stack.mixer) for stack in model.stacks}
    if not kinds & {SparseLatentAttention, CompressedAttention}:
        with_sinks = any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.sinks for stack in model.stacks)
        has_no_kernel = with_sinks and gpu.architecture in (*WITHOUT_KERNELS, *OTHER_BLACKWELL)
        return model.with_mixers(_with_sinks) if has_no_kernel else model
    if gpu.architecture in WITHOUT_KERNELS:
        raise InputError(
            f"vLLM does not run {model.name} on {gpu.name}: it has kernels for sparse attention on Hopper and "
            "Blackwell alone (such as h200-sxm, b200-sxm or rtx-pro-6000)"
        )
    narrow = model.cache_dtype != model.weights.base
    packed = CompressedAttention in kinds or gpu.architecture in OTHER_BLACKWELL
    packed = packed or (narrow and gpu.architecture == "hopper")
    model = model.with_mixers(partial(_with_kernels, gpu=gpu, narrow=narrow))
    return replace(model, kv_dtype=PACKED_LATENT) if packed else model


SINKS_SLOWER = 2.35
"""Prompts with sinks, of which FlashAttention 2 has no kernel: Triton's tiles of 16 rows read all keys anew for every
two tokens of gpt-oss, at half of the cache's rate. From published prompts of 32,000 tokens on A100."""


def _with_sinks(mixer: Mixer) -> Mixer:
    return replace(mixer, prompts_slower=SINKS_SLOWER) if isinstance(mixer, GroupedAttention) else mixer


def _with_kernels(mixer: Mixer, gpu: Gpu, narrow: bool) -> Mixer:
    """A mixer with the kernels' padding, for a ``narrow`` cache or one in the base format."""
    if isinstance(mixer, CompressedAttention):
        return replace(mixer, head_multiple=1 if gpu.architecture in OTHER_BLACKWELL else PADDED_HEADS)
    if not isinstance(mixer, SparseLatentAttention):
        return mixer
    is_hopper = gpu.architecture == "hopper"
    multiple, unpadded = (PADDED_HEADS, 0) if is_hopper and narrow else (1, 0)
    if gpu.architecture in DATACENTER_BLACKWELL and not narrow:
        multiple, unpadded = BLACKWELL_HEADS, FEW_HEADS
    # Only FlashAttention takes the two parts of a query separately.
    joins = narrow or not is_hopper
    return replace(mixer, head_multiple=multiple, unpadded_heads=unpadded, joins_queries=joins)
