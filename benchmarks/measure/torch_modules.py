"""Milliseconds of whole PyTorch modules on one GPU, eager and as a CUDA graph, with the kernels that they launch.

    python benchmarks/measure/torch_modules.py OUT_DIR [--seconds 400] [--only NAME,NAME] [--formats bf16] [--more]
        [--compiled NAME,NAME] [--operators]

Weights are random. A case is a module, a format (fp32, tf32, bf16) and a batch. Eager: calls in a row, by the clock on
the wall from the first to the end of the last; graph: median of replays. Kernels: one profiled call, by name. Calls:
the aten operators that launched them, with the shapes of their inputs (``--operators``: nothing else). ``--more`` takes
the second list of modules, which were chosen to test forecasts and not to make them; ``--compiled`` also measures these
after ``torch.compile``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
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
            decoder_attention_heads=16,
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


class Upsampler(nn.Module):
    """A small convolutional U-Net: three levels down, three up, with skips."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.downs = nn.ModuleList(self.block(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True))
        self.grows = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.ups = nn.ModuleList(self.block(2 * a, a) for a in sizes[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(given: int, size: int) -> nn.Module:
        twice = ((given, size), (size, size))
        layers = [
            layer for a, b in twice for layer in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True))
        ]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for at, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if at else x)
            skips.append(x)
        for at in reversed(range(len(self.ups))):
            x = self.ups[at](torch.cat([skips[at], self.grows[at](x)], 1))
        return self.head(x)


class Routed(nn.Module):
    """A user's mixture of experts: a loop over experts, each of which gathers its tokens."""

    def __init__(self, size: int = 1024, inner: int = 2048, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.chosen, self.router = chosen, nn.Linear(size, experts, bias=False)
        block = lambda: nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))  # noqa: E731
        self.experts = nn.ModuleList(block() for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, which = self.router(flat).softmax(-1).topk(self.chosen)
        out = torch.zeros_like(flat)
        for at, expert in enumerate(self.experts):
            row, slot = torch.where(which == at)
            out.index_add_(0, row, expert(flat[row]) * weights[row, slot, None])
        return x + out.view_as(x)


class Ranker(nn.Module):
    """A recommender: 26 embedding bags, a bottom and a top network, dot interactions."""

    def __init__(self, size: int = 64, tables: int = 26, entries: int = 100_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(entries, size, mode="sum") for _ in range(tables))
        layers = lambda *sizes: nn.Sequential(  # noqa: E731
            *(each for a, b in pairwise(sizes) for each in (nn.Linear(a, b), nn.ReLU()))
        )
        self.bottom = layers(13, 512, 256, size)
        self.top = layers(size + (tables + 1) * tables // 2, 1024, 512, 256, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        all_ = torch.stack([x, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], 1)
        dots = all_ @ all_.mT
        row, col = torch.tril_indices(all_.shape[1], all_.shape[1], -1, device=x.device)
        return torch.sigmoid(self.top(torch.cat([x, dots[:, row, col]], 1)))


def pairs(length: int, size: int, other: int) -> Callable[[int, torch.dtype], Inputs]:
    make = lambda batch, count, dtype: torch.randn(batch, count, size, device="cuda", dtype=dtype)  # noqa: E731
    return lambda batch, dtype: (make(batch, length, dtype), make(batch, other, dtype))


CLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
MORE: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "whisper-medium-encoder": MODULES["whisper-medium-encoder"],
    "clip-vision-b32": (hugging("CLIPVisionModel", "CLIPVisionConfig", images(), patch_size=32, **CLIP), (1, 64)),
    "gru-2x1024-128": (lambda: (nn.GRU(1024, 1024, 2, batch_first=True), rows(128, 1024)), (1, 32)),
    "transformer-6-512": (
        lambda: (nn.Transformer(512, 8, batch_first=True), pairs(256, 512, 128)),
        (1, 32),
    ),
    "unet-256": (lambda: (Upsampler(), images(256)), (1, 16)),
    "densenet121": (vision("densenet121"), (1, 32)),
    "regnet_y_3_2gf": (vision("regnet_y_3_2gf"), (1, 32)),
    "resnext50_32x4d": (vision("resnext50_32x4d"), (1, 32)),
    "wide_resnet50_2": (vision("wide_resnet50_2"), (1, 32)),
    "efficientnet_v2_s": (vision("efficientnet_v2_s"), (1, 32)),
    "maxvit_t": (vision("maxvit_t"), (1, 16)),
    "wav2vec2-base": (
        hugging(
            "Wav2Vec2Model",
            "Wav2Vec2Config",
            lambda batch, dtype: (torch.randn(batch, 160_000, device="cuda", dtype=dtype),),
        ),
        (1, 8),
    ),
    "t5-base-both": (
        hugging(
            "T5Model",
            "T5Config",
            lambda batch, dtype: (
                torch.randint(30000, (batch, 256), device="cuda"),
                None,
                torch.randint(30000, (batch, 64), device="cuda"),
            ),
            d_model=768,
            d_ff=3072,
            num_layers=12,
            num_heads=12,
            use_cache=False,
        ),
        (1, 16),
    ),
    "qwen3-0.6b-256": (
        hugging("Qwen3Model", "Qwen3Config", tokens(256), head_dim=128, num_hidden_layers=28, use_cache=False, **QWEN),
        (1, 16),
    ),
    "mamba-130m-64": (
        hugging("MambaModel", "MambaConfig", tokens(64), hidden_size=768, num_hidden_layers=4, use_cache=False),
        (1, 8),
    ),
    "routed-experts-512": (lambda: (Routed(), rows(512, 1024)), (1, 16)),
    "ranker-26": (
        lambda: (
            Ranker(),
            lambda batch, dtype: (
                torch.randn(32 * batch, 13, device="cuda", dtype=dtype),
                torch.randint(100_000, (32 * batch, 26, 4), device="cuda"),
            ),
        ),
        (1, 64),
    ),
    "segformer-b0-512": (
        hugging("SegformerForSemanticSegmentation", "SegformerConfig", images(512)),
        (1, 8),
    ),
    "electra-base-512": (hugging("ElectraModel", "ElectraConfig", tokens(512), **CLIP, embedding_size=768), (1, 16)),
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


def launched(call: Callable[[], Any]) -> list[tuple[str, Any, list[str], int, float]]:
    """Operators of one call that launched kernels: name, shapes, kernels, calls and microseconds together."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], record_shapes=True) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, list[Any]] = {}
    for event in profile.events():
        if event.kernels and "::" in event.name:
            names = [kernel.name[:90] for kernel in event.kernels]
            key = json.dumps([event.name, event.input_shapes, names])
            one = found.setdefault(key, [event.name, event.input_shapes, names, 0, 0.0])
            one[3] += 1
            one[4] = round(one[4] + sum(kernel.duration for kernel in event.kernels), 2)
    return [tuple(each) for each in found.values()]


def measured(call: Callable[[], Any], *, operators: bool) -> dict[str, Any]:
    if operators:
        call()
        call()
        return {"calls": launched(call)}
    found: dict[str, Any] = {"eager_ms": round(eager(call), 4)}
    try:
        found["graph_ms"] = round(replayed(call), 4)
    except RuntimeError as problem:  # code that looks at values cannot be captured
        print("no graph:", repr(problem)[:120], flush=True)
    return found | {"kernels": kernels(call), "calls": launched(call)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--compiled", default="")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--formats", default="fp32,tf32,bf16")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until, found = time.monotonic() + options.seconds, []
    torch.set_grad_enabled(False)
    for name, (make, batches) in (MORE if options.more else MODULES).items():
        if options.only and name not in options.only.split(","):
            continue
        for kind, dtype in (("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
            if time.monotonic() > until or kind not in options.formats.split(","):
                continue
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
                    row |= measured(call, operators=options.operators)
                    if name in options.compiled.split(","):
                        torch._dynamo.reset()
                        compiled = torch.compile(module, dynamic=False)
                        row["compiled_ms"] = round(eager(lambda: compiled(*given)), 4)  # noqa: B023
                        row["compiled_kernels"] = kernels(lambda: compiled(*given))  # noqa: B023
                    found.append(row)
                    print({name: each for name, each in row.items() if not isinstance(each, list)}, flush=True)
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
