"""Captures many published modules, and says of which operators a forecast knows only a bound.

    python benchmarks/robustness/traced_modules.py [--only WORD]

Needs PyTorch; torchvision's and transformers' modules are taken where these are installed. No weights, no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import torch
from torch import nn

from infercast.torch_modules.forecast import forecast_module

Case = tuple[str, Callable[[], Any], Any]
IDS = torch.randint(1, 100, (2, 64))
SMALL = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
TEXT = (
    *(
        "Albert",
        "Bert",
        "Camembert",
        "ConvBert",
        "Deberta",
        "DebertaV2",
        "DistilBert",
        "Electra",
        "Ernie",
        "Esm",
        "FNet",
    ),
    *("Funnel", "LayoutLM", "Longformer", "MPNet", "MobileBert", "ModernBert", "Nystromformer"),
    *("Reformer", "RemBert", "Roberta", "RoFormer", "SqueezeBert", "XLMRoberta", "XLNet", "Yoso"),
    *("GPT2", "GPTNeo", "GPTNeoX", "GPTJ", "OPT", "Bloom", "Falcon", "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3"),
    *("Qwen2Moe", "Qwen3Moe", "Gemma", "Gemma2", "Phi", "Phi3", "Cohere", "Olmo", "Olmo2", "Olmoe", "Starcoder2"),
    *("StableLm", "Mamba", "Mamba2", "FalconMamba", "Rwkv", "RecurrentGemma", "Granite", "Mpt"),
)
IMAGES = (
    *("ViT", "Deit", "Beit", "Swin", "Swinv2", "ConvNext", "ConvNextV2", "ResNet", "RegNet", "MobileNetV2", "Dinov2"),
    *("Segformer", "PoolFormer", "Levit", "Bit", "CvT", "FocalNet", "Hiera", "MobileViT", "PvtV2", "SiglipVision"),
    *("CLIPVision", "EfficientNet", "DPT", "GLPN", "Data2VecVision", "ViTMSN", "ViTMAE", "Yolos"),
)
SOUND = ("Wav2Vec2", "Hubert", "WavLM", "Data2VecAudio", "UniSpeech", "SEW")
BOTH = ("T5", "MT5", "Bart", "Pegasus", "MBart", "Marian", "Blenderbot", "LED", "ProphetNet", "BigBirdPegasus")


def plain() -> Iterator[Case]:
    rows = torch.empty(2, 32, 64, device="meta")
    yield "nn.LSTM", lambda: nn.LSTM(64, 64, 2, bidirectional=True), rows
    yield "nn.GRU", lambda: nn.GRU(64, 64), rows
    yield "nn.RNN", lambda: nn.RNN(64, 64), rows
    yield "nn.Transformer", lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True), (rows, rows)
    yield "nn.TransformerDecoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4), 2), (rows, rows)
    yield "nn.MultiheadAttention", lambda: nn.MultiheadAttention(64, 4, batch_first=True), (rows, rows, rows)
    volume = torch.empty(1, 4, 16, 32, 32, device="meta")
    yield "nn.Conv3d", lambda: nn.Sequential(nn.Conv3d(4, 8, 3), nn.BatchNorm3d(8), nn.ReLU()), volume
    yield "nn.Conv1d", lambda: nn.Sequential(nn.Conv1d(32, 64, 5), nn.GroupNorm(4, 64), nn.SiLU()), rows


def vision() -> Iterator[Case]:
    import torchvision  # noqa: PLC0415

    models = torchvision.models
    image, film = torch.empty(1, 3, 224, 224, device="meta"), torch.empty(1, 3, 16, 112, 112, device="meta")
    for name in models.list_models():
        if name.startswith("quantized_") or "rcnn" in name or name in ("ssd300_vgg16", "retinanet_resnet50_fpn"):
            continue
        kind = models.get_model_builder(name).__module__
        if "detection" in kind or "optical_flow" in kind:
            continue
        side = {"inception_v3": 299, "vit_h_14": 518}.get(name, 224)
        given = film if "video" in kind else torch.empty(1, 3, side, side, device="meta")
        changes = {"weights_backbone": None} if "segmentation" in kind else {}
        make = lambda name=name, changes=changes: models.get_model(name, weights=None, **changes)  # noqa: E731
        yield f"torchvision.{name}", make, given if given is not image else image


def published() -> Iterator[Case]:
    import transformers  # noqa: PLC0415

    def made(name: str, changes: dict[str, Any]) -> Any:
        config = getattr(transformers, f"{name}Config")()
        for key, value in changes.items():
            if hasattr(config, key):
                setattr(config, key, value)
        return getattr(transformers, f"{name}Model")(config)

    small = {"num_hidden_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "use_cache": False}
    kinds = [(name, (IDS,)) for name in TEXT]
    kinds += [(name, (torch.empty(1, 3, 224, 224, device="meta"),)) for name in IMAGES]
    kinds += [(name, (torch.empty(1, 16_000, device="meta"),)) for name in SOUND]
    for name, given in kinds:
        if hasattr(transformers, f"{name}Model") and hasattr(transformers, f"{name}Config"):
            yield f"transformers.{name}", lambda name=name: made(name, small), given
    for name in BOTH:
        if hasattr(transformers, f"{name}Model"):
            yield (
                f"transformers.{name}",
                lambda name=name: made(name, small),
                {"input_ids": IDS, "decoder_input_ids": IDS},
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    captured = failed = 0
    for cases in (plain, published, vision):
        for name, make, inputs in cases():
            if options.only not in name:
                continue
            begin = time.perf_counter()
            try:
                try:
                    with torch.device("meta"):
                        module = make()
                except (NotImplementedError, RuntimeError):
                    module = make()
                found = forecast_module(module, inputs, gpu="h200-sxm", dtype="bf16", execution="eager")
            except Exception as problem:  # one more that cannot be captured
                failed += 1
                print(f"{name}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
                continue
            captured += 1
            unknown = ", ".join(f"{part.name} {part.share:.1%}" for part in found.unknown)
            said = f"{1e3 * found.gpu_seconds:.2f} ms, {found.kernels} kernels"
            said = f"{said}, unknown: {found.unknown_share:.1%} {unknown}"
            print(f"{name}: {said}, {time.perf_counter() - begin:.1f} s", flush=True)
    print(f"{captured} captured, {failed} not")


if __name__ == "__main__":
    main()
