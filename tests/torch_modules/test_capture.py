"""Modules captured by PyTorch without weights or a GPU."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/measure"))

from captures import capture_from_json, capture_to_json  # noqa: E402

import infercast  # noqa: E402
from infercast.errors import InputError, UnknownNameError  # noqa: E402
from infercast.torch_modules.capture import capture, read_inputs  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


def names(found: Any) -> list[str]:
    return [call.name.removeprefix("aten.") for call in found.calls if not call.is_view]


def meta(*shape: int) -> Any:
    return torch.empty(shape, device="meta")


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout()).train()
    before = {name: (id(each), each.dtype) for name, each in module.state_dict(keep_vars=True).items()}
    found = capture(module, meta(4, 8), dtype="bfloat16")
    assert {name: (id(each), each.dtype) for name, each in module.state_dict(keep_vars=True).items()} == before
    assert module.training
    assert names(found)[0] == "addmm"
    assert "clone" not in names(found)  # nothing is dropped


def test_memory_is_what_is_held_at_once() -> None:
    size = 1 << 20
    found = capture(nn.Sequential(*(nn.ReLU() for _ in range(8))), meta(size))
    assert found.peak_bytes == 3 * 4 * size  # the input, and of each operator its input and its output
    assert (found.weight_bytes, found.parameters) == (0, 0)


def test_recurrent_layers_are_one_call_with_the_shapes_of_pytorch() -> None:
    found = capture(nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True), meta(4, 7, 16))
    (call,) = [call for call in found.calls if call.name == "aten.lstm"]
    assert call.outputs[0].shape == (4, 7, 64)


def test_encoder_layers_take_their_fused_path() -> None:
    found = capture(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), meta(2, 16, 64))
    assert names(found).count("_addmm_activation") == 1
    assert names(found).count("scaled_dot_product_attention") == 1


class Routed(nn.Module):
    """Code that looks at values: each expert gathers its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        which = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            rows = (which == at).nonzero()[:, 0]
            out[rows] = expert(x[rows])
        return out if out.isfinite().all().item() else x


def test_values_that_decide_are_drawn_and_said() -> None:
    found = capture(Routed(), meta(256, 16))
    taken = [call["mat1"].shape[0] for call in found.calls if call.name == "aten.addmm"][1:]
    assert sum(taken) == 256
    assert all(30 < rows < 100 for rows in taken)
    assert any("equally likely" in each for each in found.assumed)


def test_a_capture_survives_json() -> None:
    found = capture(nn.MultiheadAttention(32, 4, batch_first=True).eval(), (meta(2, 8, 32),) * 3)
    assert capture_from_json(capture_to_json(found)) == found


def test_a_forecast_in_python() -> None:
    found = infercast.forecast_module(nn.Linear(4096, 4096), meta(64, 4096), gpu="h100-sxm", dtype="bf16")
    assert 1e-6 < found.seconds < 1e-4
    assert "eager on h100-sxm" in repr(found)
    with pytest.raises(UnknownNameError, match="bf16"):
        infercast.forecast_module(nn.Linear(8, 8), meta(1, 8), gpu="h100-sxm", dtype="fp9")


def test_inputs_by_shape_and_name() -> None:
    module = nn.Bilinear(8, 8, 4)
    given = read_inputs(module, ["input1:2x8", "input2:2x8"])
    assert {name: tuple(each.shape) for name, each in given.items()} == {"input1": (2, 8), "input2": (2, 8)}
    assert read_inputs(module, ["int64:3x4"])[0].dtype == torch.int64
    with pytest.raises(InputError, match="8x3x224x224"):
        read_inputs(module, ["8*3"])
    with pytest.raises(UnknownNameError, match="input1"):
        read_inputs(module, ["input3:2x8"])
