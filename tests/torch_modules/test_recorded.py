"""Recorded captures of modules that were measured on an H200: lowered and forecast, which needs no PyTorch."""

import gzip
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from infercast.bundled import read_data
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import load_gpu
from infercast.ops.tensor import Conv2d, Product, Sdpa, TensorOp
from infercast.torch_modules.forecast import ModuleForecast, forecast_capture, launches_of, queued
from infercast.torch_modules.lower import AtenCall, Capture, Rules, Tensor, kernels_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/measure"))

from captures import capture_from_json  # noqa: E402

CAPTURES = ROOT / "tests" / "data" / "captures"
TORCH = ROOT / "measurements" / "h200-sxm" / "torch"


@cache
def recorded(name: str) -> Capture:
    return capture_from_json(gzip.decompress((CAPTURES / f"{name}.json.gz").read_bytes()).decode())


@cache
def measured() -> dict[tuple[str, str, int], dict[str, Any]]:
    cases = json.loads(gzip.decompress((TORCH / "modules.json.gz").read_bytes()))["cases"]
    return {(case["module"], case["format"], case["batch"]): case for case in cases}


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*-graph.json.gz")), ids=lambda path: path.name)
def test_graphs_are_forecast_as_they_were_measured(path: Path) -> None:
    name, kind, batch, _ = path.name.rsplit("-", 3)
    case = measured()[name, kind, int(batch)]
    found = forecast_capture(
        recorded(path.name.removesuffix(".json.gz")), gpu="h200-sxm", execution="graph", dtype=kind
    )
    assert found.parameters == case["parameters"]
    assert found.seconds == pytest.approx(1e-3 * case["graph_ms"], rel=0.2)
    assert found.low < found.seconds < found.high


def test_eager_calls_of_a_small_batch_wait_for_the_host() -> None:
    found = forecast_capture(recorded("resnet18-bf16-1-eager"), gpu="h200-sxm", dtype="bf16")
    assert found.bound == "host"
    assert found.seconds == pytest.approx(1e-3 * measured()["resnet18", "bf16", 1]["eager_ms"], rel=0.25)
    assert found.alone_seconds >= found.seconds


def test_a_probe_of_the_host_scales_eager_calls_and_narrows_their_interval(tmp_path: Path) -> None:
    reference = read_data("hosts/probe.toml")["reference"]

    def probed(launch: float | None) -> Path:
        path = tmp_path / f"{launch}.json"
        kinds = {"python": 1.38} | ({} if launch is None else {"launch": launch})
        figures = {
            kind: {name: {"p50": factor * value} for name, value in reference[kind].items()}
            for kind, factor in kinds.items()
        }
        path.write_text(json.dumps({"python": figures["python"], "gpu": figures.get("launch", {})}))
        return path

    def forecast(host: Any, execution: str = "eager") -> ModuleForecast:
        capture = recorded("resnet18-bf16-1-eager")
        return forecast_capture(capture, gpu="h200-sxm", dtype="bf16", host=host, execution=execution)

    usual, quick, slow = (forecast(each) for each in (None, probed(0.65), str(probed(1.1))))
    assert quick.seconds < usual.seconds < slow.seconds
    assert slow.host_seconds == pytest.approx((1.1 / 0.65) ** 0.9 * quick.host_seconds)
    assert slow.high / slow.low < usual.high / usual.low
    assert slow.gpu_seconds == usual.gpu_seconds
    assert [any("--host" in note for note in each.notes) for each in (usual, slow)] == [True, False]
    assert forecast(probed(None)).host_seconds == usual.host_seconds  # It saw no GPU
    assert forecast("ryzen-5-7600x").seconds < usual.seconds < forecast("xeon-e5-1650-v3").seconds
    assert forecast(probed(1.1), "graph").seconds == forecast(None, "graph").seconds


def test_an_unknown_host_names_the_known_ones(tmp_path: Path) -> None:
    capture = recorded("resnet18-bf16-1-eager")
    with pytest.raises(UnknownNameError, match=r"known: .*epyc-9654"):
        forecast_capture(capture, gpu="h200-sxm", host="i386")
    with pytest.raises(InputError, match=r"a module takes a name of `infercast hosts` or a host\.json"):
        forecast_capture(capture, gpu="h200-sxm", host=tmp_path / "host.toml")


def test_compiled_modules_have_fewer_kernels_and_move_less() -> None:
    capture = recorded("resnet18-bf16-64-graph")
    graph, compiled = (
        forecast_capture(capture, gpu="h200-sxm", execution=each, dtype="bf16") for each in ("graph", "compiled")
    )
    assert compiled.kernels < graph.kernels / 2
    assert compiled.gpu_seconds < graph.gpu_seconds


def test_a_mask_that_libraries_build_for_graphs_makes_attention_fall_back() -> None:
    eager, graph = (recorded(f"distilbert-384-bf16-32-{each}") for each in ("eager", "graph"))
    assert sum(call.name == "aten.scaled_dot_product_attention" for call in eager.calls) == 6
    assert not any(call.name == "aten.scaled_dot_product_attention" for call in graph.calls)
    assert sum(call.name == "aten._safe_softmax" for call in graph.calls) == 6


def test_a_triton_kernel_is_named_with_its_share_as_a_bound() -> None:
    found = forecast_capture(recorded("gated-triton-512-bf16-4-graph"), gpu="h200-sxm", execution="graph", dtype="bf16")
    assert [(part.name, part.calls) for part in found.unknown] == [("triton._scale_rows", 8)]
    assert 0 < found.unknown_share < 0.1


def test_parts_add_up() -> None:
    found = forecast_capture(recorded("dit-xl-4-blocks-bf16-8-graph"), gpu="a100-sxm", execution="graph", dtype="bf16")
    for parts in (found.operators, found.submodules):
        assert sum(part.gpu_seconds for part in parts) == pytest.approx(found.gpu_seconds)
        assert sum(part.kernels for part in parts) == found.kernels
    assert found.weight_bytes == pytest.approx(2 * found.parameters, rel=0.01)
    assert 0 < found.joules / found.seconds <= load_gpu("a100-sxm").tdp


def test_a_launch_front_hides_kernels_and_kernels_hide_the_front() -> None:
    chip = load_gpu("h200-sxm")
    launches = [*launches_of(recorded("mlp-4096-bf16-64-graph").calls, chip, Rules(), "eager")]
    gpu = sum(float(each.gpu.seconds) for each in launches)
    host = sum(each.host for each in launches)
    first, again = queued(launches)
    assert again == pytest.approx(max(gpu, host))
    assert max(gpu, host) <= first <= gpu + host


def dense(dtype: str, *shape: int) -> Tensor:
    strides, size = [], 1
    for length in reversed(shape):
        strides.insert(0, size)
        size *= length
    return Tensor(dtype, shape, tuple(strides))


def call(name: str, output: Tensor, **given: Any) -> AtenCall:
    return AtenCall(f"aten.{name}", given, (output,))


def test_a_bias_of_a_row_is_part_of_a_product() -> None:
    x, w, b = dense("float32", 64, 256), dense("float32", 256, 512), dense("float32", 512)
    (kernel,) = kernels_of(call("addmm", dense("float32", 64, 512), self=b, mat1=x, mat2=w), Rules(tf32=True))
    assert kernel.op == Product(64, 512, 256, dtype="tf32", bias=True)


def test_convolutions_in_one_dimension_have_a_height_of_one_and_a_bias_is_a_kernel() -> None:
    x, w, b = dense("bfloat16", 2, 80, 3000), dense("bfloat16", 512, 80, 3), dense("bfloat16", 512)
    given = {"input": x, "weight": w, "bias": b, "groups": 1}
    conv, bias = kernels_of(call("convolution", dense("bfloat16", 2, 512, 1500), **given), Rules())
    assert conv.op == Conv2d(2, 80, 1, 3000, 512, 1, 1500, 1, 3, dtype="bf16")
    assert bias.order == "strided"


@pytest.mark.parametrize(
    ("dtype", "hopper", "kernel"),
    [
        ("bfloat16", True, "cudnn_attention"),
        ("float16", False, "flash_attention"),
        ("float32", True, "efficient_attention"),
    ],
)
def test_attention_is_by_the_kernel_that_pytorch_picks(dtype: str, hopper: bool, kernel: str) -> None:
    q = dense(dtype, 2, 8, 128, 64)
    (found,) = kernels_of(
        call("scaled_dot_product_attention", q, query=q, key=q, value=q, is_causal=True), Rules(cudnn_attention=hopper)
    )
    assert isinstance(found.op, Sdpa)
    assert (found.op.kernel, found.op.causal) == (kernel, True)


def test_values_that_lie_otherwise_are_found_place_by_place() -> None:
    x = dense("float32", 64, 256)
    turned = Tensor("float32", (64, 256), (1, 64))
    row = dense("float32", 256)
    orders = [kernels_of(call("add", x, self=x, other=other), Rules())[0].order for other in (x, row, turned)]
    assert orders == ["", "strided", "transposed"]


def test_a_norm_of_what_does_not_lie_in_order_copies_it_first() -> None:
    turned, out = Tensor("float32", (8, 196, 768), (196 * 768, 1, 196)), dense("float32", 8, 196, 768)
    copied, norm = kernels_of(call("native_layer_norm", out, input=turned, normalized_shape=[768]), Rules())
    assert copied.order == "transposed"
    assert isinstance(norm.op, TensorOp)
    assert (norm.op.kind, norm.op.rows, norm.op.cols) == ("layer_norm", 8 * 196, 768)


def test_views_launch_nothing_and_unknown_operators_are_bounds() -> None:
    x = dense("float32", 64, 256)
    assert kernels_of(AtenCall("aten.transpose", {"self": x}, (x,), is_view=True), Rules()) == []
    (kernel,) = kernels_of(AtenCall("mine.scan", {"x": x}, (x,)), Rules())
    assert kernel.unknown
    assert kernel.op.bytes_read == kernel.op.bytes_written == 4 * 64 * 256


def test_an_unknown_execution_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="eager"):
        forecast_capture(recorded("mlp-4096-bf16-64-graph"), gpu="h200-sxm", execution="quick")
