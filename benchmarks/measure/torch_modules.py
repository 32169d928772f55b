"""Milliseconds of whole PyTorch modules on one GPU, eager and as a CUDA graph, with the kernels that they launch.

    python benchmarks/measure/torch_modules.py OUT_DIR [--seconds 400] [--only NAME,NAME]

Weights are random. A case is a module, a format (fp32, tf32, bf16) and a batch. Eager: calls in a row, by the clock on
the wall from the first to the end of the last; graph: median of replays. Kernels: one profiled call, by name.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
import transformers
import triton
import triton.language as tl
from torch import nn

Inputs = tuple[Any, ...]
Maker = Callable[[], tuple[nn.Module, Callable[[int, torch.dtype], Inputs]]]


@triton.jit
def _scale_rows(x_ptr, w_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):  # noqa: N803
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / cols + eps)
    w = tl.load(w_ptr + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + at, (x * scale * w).to(y_ptr.dtype.element_ty), mask=at < cols)


class TritonNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, cols = torch.empty_like(x), x.shape[-1]
        _scale_rows[(x.numel() // cols,)](x, self.weight, y, cols, 1e-6, BLOCK=triton.next_power_of_2(cols))
        return y


class Gated(nn.Module):
    """A user's module: norm by a Triton kernel, a gated feed-forward part, a residual."""

    def __init__(self, size: int = 2048, inner: int = 5632, depth: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(TritonNorm(size) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(size, 2 * inner, bias=False) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(inner, size, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            gate, value = up(norm(x)).chunk(2, -1)
            x = x + down(F.silu(gate) * value)
        return x


class Mixer(nn.Module):
    """MLP-Mixer B/16."""

    def __init__(self, size: int = 768, tokens: int = 196, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, 16, 16)
        block = lambda inner, outer: nn.Sequential(nn.Linear(outer, inner), nn.GELU(), nn.Linear(inner, outer))  # noqa: E731
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * depth))
        self.across = nn.ModuleList(block(384, tokens) for _ in range(depth))
        self.along = nn.ModuleList(block(3072, size) for _ in range(depth))
        self.head = nn.Linear(size, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for at, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            x = x + across(self.norms[2 * at](x).transpose(1, 2)).transpose(1, 2)
            x = x + along(self.norms[2 * at + 1](x))
        return self.head(x.mean(1))


class Diffusion(nn.Module):
    """Blocks of a diffusion transformer (DiT-XL/2 at 512 pixels: 1,024 tokens, width 1,152, 16 heads)."""

    def __init__(self, size: int = 1152, heads: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.modulations = nn.ModuleList(nn.Linear(size, 6 * size) for _ in range(depth))
        self.qkvs = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(depth))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        for modulation, qkv, out, up, down in zip(
            self.modulations, self.qkvs, self.outs, self.ups, self.downs, strict=True
        ):
            shift, scale, gate, shift2, scale2, gate2 = modulation(F.silu(condition)).unsqueeze(1).chunk(6, -1)
            y = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
            q, k, v = qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + gate * out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            y = F.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2
            x = x + gate2 * down(F.gelu(up(y), approximate="tanh"))
        return x


class Unet(nn.Module):
    """A residual and an attention block of a convolutional diffusion model."""

    def __init__(self, size: int = 320, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.GroupNorm(32, size) for _ in range(3))
        self.first, self.second = (nn.Conv2d(size, size, 3, padding=1) for _ in range(2))
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norms[0](x)))
        x = x + self.second(F.silu(self.norms[1](y)))
        y = self.norms[2](x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + y.transpose(1, 2).unflatten(-1, x.shape[-2:])


def images(side: int = 224, channels: int = 3) -> Callable[[int, torch.dtype], Inputs]:
    return lambda batch, dtype: (torch.randn(batch, channels, side, side, device="cuda", dtype=dtype),)


def tokens(length: int, vocabulary: int = 30000) -> Callable[[int, torch.dtype], Inputs]:
    return lambda batch, dtype: (torch.randint(vocabulary, (batch, length), device="cuda"),)


def rows(length: int, size: int) -> Callable[[int, torch.dtype], Inputs]:
    return lambda batch, dtype: (torch.randn(batch, length, size, device="cuda", dtype=dtype),)


def vision(name: str) -> Maker:
    return lambda: (getattr(torchvision.models, name)(), images())


def hugging(
    kind: str, config: str, inputs: Callable[[int, torch.dtype], Inputs], part: str = "", **changes: Any
) -> Maker:
    def make() -> tuple[nn.Module, Callable[[int, torch.dtype], Inputs]]:
        module = getattr(transformers, kind)(getattr(transformers, config)(**changes))
        return (getattr(module, part) if part else module), inputs

    return make


MODULES: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "resnet50": (vision("resnet50"), (1, 8, 64)),
    "vit_b_16": (vision("vit_b_16"), (1, 8, 64)),
    "bert-large-128": (
        hugging(
            "BertModel",
            "BertConfig",
            tokens(128),
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        (1, 8, 64),
    ),
    "gpt2-xl-512": (
        hugging("GPT2LMHeadModel", "GPT2Config", tokens(512), n_embd=1600, n_layer=48, n_head=25, use_cache=False),
        (1, 4, 16),
    ),
    "opt-1.3b-256": (
        hugging(
            "OPTForCausalLM",
            "OPTConfig",
            tokens(256),
            hidden_size=2048,
            num_hidden_layers=24,
            ffn_dim=8192,
            num_attention_heads=32,
            word_embed_proj_dim=2048,
            use_cache=False,
        ),
        (1, 8, 32),
    ),
    "t5-large-encoder-256": (
        hugging(
            "T5EncoderModel", "T5Config", tokens(256), d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16
        ),
        (1, 8, 32),
    ),
    "whisper-medium-encoder": (
        hugging(
            "WhisperModel",
            "WhisperConfig",
            lambda batch, dtype: (torch.randn(batch, 80, 3000, device="cuda", dtype=dtype),),
            "encoder",
            d_model=1024,
            encoder_layers=24,
            encoder_attention_heads=16,
            encoder_ffn_dim=4096,
            decoder_layers=1,
        ),
        (1, 4, 16),
    ),
    "llama-3.2-1b-512": (
        hugging(
            "LlamaForCausalLM",
            "LlamaConfig",
            tokens(512),
            hidden_size=2048,
            num_hidden_layers=16,
            intermediate_size=8192,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            use_cache=False,
        ),
        (1, 4, 16),
    ),
    "dit-xl-4-blocks": (
        lambda: (
            Diffusion(),
            lambda batch, dtype: (
                torch.randn(batch, 1024, 1152, device="cuda", dtype=dtype),
                torch.randn(batch, 1152, device="cuda", dtype=dtype),
            ),
        ),
        (1, 8, 64),
    ),
    "unet-block-64": (lambda: (Unet(), images(64, 320)), (1, 8, 32)),
    "lstm-2x1024-128": (lambda: (nn.LSTM(1024, 1024, 2, batch_first=True), rows(128, 1024)), (1, 8, 64)),
    "mixer-b16": (lambda: (Mixer(), images()), (1, 8, 64)),
    "gated-triton-512": (lambda: (Gated(), rows(512, 2048)), (1, 4, 16)),
    "resnet18": (vision("resnet18"), (1, 64)),
    "mobilenet_v3_large": (vision("mobilenet_v3_large"), (1, 64)),
    "swin_t": (vision("swin_t"), (1, 32)),
    "convnext_tiny": (vision("convnext_tiny"), (1, 32)),
    "vgg16": (vision("vgg16"), (1, 32)),
    "efficientnet_b0": (vision("efficientnet_b0"), (1, 64)),
    "distilbert-384": (hugging("DistilBertModel", "DistilBertConfig", tokens(384)), (1, 32)),
    "roberta-base-128": (
        hugging("RobertaModel", "RobertaConfig", tokens(128, 50000), vocab_size=50265, max_position_embeddings=514),
        (1, 64),
    ),
    "encoder-layer-512": (
        lambda: (nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), rows(512, 1024)),
        (1, 16),
    ),
    "mlp-4096": (
        lambda: (
            nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))),
            lambda batch, dtype: (torch.randn(16 * batch, 4096, device="cuda", dtype=dtype),),
        ),
        (1, 8, 64),
    ),
}


def eager(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = int(min(100, max(5, 0.15 / (time.perf_counter() - begin))))
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begin) / count)
    return 1e3 * sorted(taken)[1]


def replayed(call: Callable[[], Any]) -> float:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        call()
    graph.replay()
    torch.cuda.synchronize()
    taken = []
    for _ in range(11):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken)[5]


def kernels(call: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Kernels of one call: name, launches and microseconds together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name][0] += 1
            found[event.name][1] += event.device_time_total
    return [
        (name, int(count), round(spent, 2))
        for name, (count, spent) in sorted(found.items(), key=lambda each: -each[1][1])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until, found = time.monotonic() + options.seconds, []
    torch.set_grad_enabled(False)
    for name, (make, batches) in MODULES.items():
        if options.only and name not in options.only.split(","):
            continue
        for kind, dtype in (("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
            if time.monotonic() > until:
                break
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
            try:
                with torch.device("cuda"):
                    module, inputs = make()
                module = module.eval().to("cuda", dtype)
                size = sum(each.numel() for each in module.parameters())
                for batch in batches:
                    given = inputs(batch, dtype)
                    call = lambda: module(*given)  # noqa: E731, B023
                    row = {"module": name, "format": kind, "batch": batch, "parameters": size}
                    row |= {"eager_ms": round(eager(call), 4), "graph_ms": round(replayed(call), 4)}
                    found.append(row | {"kernels": kernels(call)})
                    print(row, len(found[-1]["kernels"]), flush=True)
            except Exception as problem:  # the rest is measured in any case
                print(name, kind, repr(problem)[:300], flush=True)
            module = given = call = None
            torch.cuda.empty_cache()
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        about |= {"transformers": transformers.__version__, "torchvision": torchvision.__version__}
        with gzip.open(options.out / "torch_modules.json.gz", "wt") as file:
            json.dump({"about": about, "cases": found}, file)


if __name__ == "__main__":
    main()
