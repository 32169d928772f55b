"""Small kernels on their own: KV writes, quantisers, Triton's and PyTorch's attention, bare tensor core rates."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from infercast.lab.measure.device import vllm
from infercast.lab.measure.kernels.elementwise import build_kv_write, new_keys
from infercast.lab.measure.launch import SimpleLaunch, Workspace
from infercast.lab.measure.rows import Shape

# Bare tensor core rates: a program of CUDA C++ (tensor_rate.cu), compiled by nvcc when first asked for.

KINDS = {"mma_sync/bf16": 0, "mma_sync/fp8": 1, "wgmma/bf16": 2, "wgmma/fp8": 3}
REGISTERS = 128  # of a thread for the 64 x 256 sums of a group of four warps
BLOCKS = {"mma_sync": 2, "wgmma": 1}  # of a multiprocessor, of 256 threads each
HOPPER = (9, 0)
FP8_SINCE = (8, 9)
GROUP = 128


def source() -> str:
    """The program, with the lists of sums that C++ has no loop for."""
    sums = ", ".join(f"%{number}" for number in range(REGISTERS))
    outputs = ", ".join(f'"+f"(d[{number}])' for number in range(REGISTERS))
    program = Path(__file__).with_name("tensor_rate.cu").read_text(encoding="utf-8")
    return program.replace("{SUMS}", "{" + sums + "}").replace("OUTPUTS", outputs).replace("REGISTERS", str(REGISTERS))


def build_tensor_rate(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    op, dtype = shape["op"], shape["dtype"]
    chip = torch.cuda.get_device_capability()
    if op == "wgmma" and chip != HOPPER:
        raise NotImplementedError("only Hopper has wgmma")
    if dtype == "fp8" and chip < FP8_SINCE:
        raise NotImplementedError("tensor cores of this chip have no fp8")
    library, kind = _library(*chip), KINDS[f"{op}/{dtype}"]
    blocks = BLOCKS[op] * torch.cuda.get_device_properties(0).multi_processor_count
    read = workspace.take(2**15, dtype=dtype)
    written = torch.empty(blocks * 256, dtype=torch.float32, device=workspace.device)

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        failed = library.launch(kind, blocks, shape["rows"], read.data_ptr(), written.data_ptr(), stream)
        if failed:
            raise RuntimeError(f"CUDA error {failed} at the launch of {op}")

    return SimpleLaunch("cuda", launch)


@cache
def _library(major: int, minor: int) -> Any:
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise NotImplementedError("nvcc, which compiles bare tensor core instructions, is not installed")
    folder = Path(tempfile.mkdtemp(prefix="infercast-"))
    (folder / "rate.cu").write_text(source(), encoding="utf-8")
    hopper = (major, minor) == HOPPER
    chip = f"{major}{minor}" + ("a" if hopper else "")
    flags = ["-gencode", f"arch=compute_{chip},code=sm_{chip}", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC"]
    flags += [f"-DWGMMA={int(hopper)}", f"-DFP8={int((major, minor) >= FP8_SINCE)}"]
    command = [compiler, *flags, "-o", str(folder / "rate.so"), str(folder / "rate.cu")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if made.returncode:
        raise NotImplementedError(f"nvcc cannot compile it: {(made.stderr.strip().splitlines() or [''])[-1][:80]}")
    library = ctypes.CDLL(str(folder / "rate.so"))
    library.launch.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 3
    return library


def build_probe(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    return _BUILDERS[shape["op"]](shape, workspace)


def _kv_write(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    if shape["by"] != "triton":
        return build_kv_write(shape, workspace)
    from triton_kernels import write_pages  # noqa: PLC0415 - needs Triton

    both, *others = new_keys(shape, workspace)
    return SimpleLaunch("triton", partial(write_pages, both, *others), (both,))


def _quantise(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Rows to fp8 with a scale a token or a group of 128 neighbours."""
    rows, width = shape["rows"], shape["width"]
    source = workspace.take(rows, width)
    by_token = shape["op"] == "quantise_token"
    if shape["by"] == "triton":
        from triton_kernels import quantise_groups, quantise_rows  # noqa: PLC0415 - needs Triton

        target = workspace.take(rows, width, dtype="fp8")
        scales = torch.empty(rows, 1 if by_token else width // GROUP, dtype=torch.float32, device=workspace.device)
        by_triton = partial(
            quantise_rows if by_token else partial(quantise_groups, group=GROUP), source, target, scales
        )
        return SimpleLaunch("triton", by_triton, (source,))
    launch = partial(vllm("_custom_ops").scaled_fp8_quant, source, use_per_token_if_dynamic=True)
    if not by_token:
        by_group = vllm("model_executor.layers.quantization.utils.fp8_utils").per_token_group_quant_fp8
        launch = partial(by_group, source, GROUP, column_major_scales=True, use_ue8m0=False)
    return SimpleLaunch("vllm", launch, (source,))


def _prompts(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Causal attention over prompts of one length without a prefix."""
    query, key, value = _heads(shape, workspace, shape["length"])
    if shape["by"] == "triton":
        from triton_kernels import prompts  # noqa: PLC0415 - needs Triton

        launch = partial(prompts, query, key, value, torch.empty_like(query))
        return SimpleLaunch("triton", launch, (query, key, value))
    return _torch_attention(shape["by"], query, key, value, causal=True)


def _decode(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """One query a sequence over keys of one length; keys are cold."""
    query, key, value = _heads(shape, workspace, 1)
    if shape["by"] == "triton":
        from triton_kernels import Decoder  # noqa: PLC0415 - needs Triton

        flat = query.squeeze(2)
        return SimpleLaunch("triton", Decoder(flat, key, value, torch.empty_like(flat)), (query,))
    return _torch_attention(shape["by"], query, key, value, causal=False)


def _heads(shape: Shape, workspace: Workspace, queries: int) -> tuple[Any, Any, Any]:
    batch, width = shape["rows"], shape["width"]
    query = workspace.take(batch, shape["heads"], queries, width)
    key, value = (
        workspace.take(batch, shape["kv_heads"], shape["length"], width, dtype=shape["dtype"]) for _ in range(2)
    )
    return query, key, value


def _torch_attention(by: str, query: Any, key: Any, value: Any, *, causal: bool) -> SimpleLaunch:
    backend = getattr(torch.nn.attention.SDPBackend, {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}[by])
    attend, grouped = torch.nn.functional.scaled_dot_product_attention, query.shape[1] != key.shape[1]

    def launch() -> None:
        with torch.nn.attention.sdpa_kernel(backend):
            attend(query, key, value, is_causal=causal, enable_gqa=grouped)

    return SimpleLaunch("torch", launch, (query, key, value) if causal else (query,))


_BUILDERS: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "kv_write": _kv_write,
    "quantise_token": _quantise,
    "quantise_block": _quantise,
    "prompts": _prompts,
    "decode": _decode,
    "mma_sync": build_tensor_rate,
    "wgmma": build_tensor_rate,
}
