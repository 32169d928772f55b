"""That every case of the plan finds its kernel, whose kernel that is, and that timing makes the marks it cuts at."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from infercast.lab.measure import device as engines
from infercast.lab.measure.rows import NAMES, Case, sweep_cases

PROBES = Path(__file__).parents[2] / "benchmarks" / "measure" / "probes"
NEEDS_TORCH = ("kernels", "kernels.attention", "kernels.elementwise", "kernels.experts", "kernels.linear", "launch")
NEEDS_TORCH += ("kernels.recurrent", "kernels.states")
NEEDS_TORCH += ("kernels.tensor_rate", "trace", "workspace")
VLLM = ("", "._custom_ops", ".vllm_flash_attn", ".model_executor", ".model_executor.layers", ".v1", ".v1.worker")
VLLM += (".model_executor.layers.fused_moe", ".model_executor.layers.fused_moe.config", ".v1.worker.gpu")
VLLM += (".v1.worker.gpu.sample", ".v1.worker.gpu.sample.gumbel", ".v1.attention", ".v1.attention.backends")
FLA, MAMBA = ".model_executor.layers.fla.ops", ".model_executor.layers.mamba.ops"
UTILS = ".v1.attention.backends.utils"
VLLM += (".model_executor.layers.fla", FLA, f"{FLA}.fused_gdn_prefill_post_conv", f"{FLA}.index", f"{FLA}.kda")
VLLM += (".model_executor.layers.mamba", MAMBA, f"{MAMBA}.ssd_combined", f"{MAMBA}.mamba_ssm", UTILS)
VLLM += (f"{MAMBA}.causal_conv1d", ".vllm_flash_attn.flash_attn_interface")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[MagicMock]:
    """A PyTorch that agrees to everything."""
    fake = MagicMock()
    fake.Tensor = type("Tensor", (), {})
    fake.cuda.get_device_capability.return_value = (9, 0)
    for shaped in (fake.arange().unsqueeze(), fake.arange().view()):
        shaped.__lt__ = lambda *_: MagicMock()
    for name, module in {"torch": fake, "torch.nn": fake.nn, "torch.nn.functional": fake.nn.functional}.items():
        monkeypatch.setitem(sys.modules, name, module)
    before = {name: sys.modules.pop(f"infercast.lab.measure.{name}", None) for name in NEEDS_TORCH}
    yield fake
    for name, module in before.items():
        sys.modules.pop(f"infercast.lab.measure.{name}", None)
        if module is not None:
            sys.modules[f"infercast.lab.measure.{name}"] = module


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VLLM:
        monkeypatch.setitem(sys.modules, f"vllm{name}", MagicMock(__spec__=SimpleNamespace(), __path__=[]))
    prepare = sys.modules[f"vllm{FLA}.fused_gdn_prefill_post_conv"].fused_post_conv_prep
    prepare.return_value = [MagicMock() for _ in range(5)]  # type: ignore[attr-defined]
    cut = sys.modules[f"vllm{UTILS}"].compute_causal_conv1d_metadata
    cut.return_value = [MagicMock() for _ in range(3)]  # type: ignore[attr-defined]
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "")


@pytest.fixture
def builders(torch: MagicMock) -> ModuleType:
    return importlib.import_module("infercast.lab.measure.kernels")


def workspace() -> MagicMock:
    space, part = MagicMock(), MagicMock(shape=(4, 16, 1, 64))
    space.take.return_value.unbind.return_value = (part, part)
    return space


APART = ("dtype", "op", "kv_dtype", "latent", "sigma", "routing", "kind", "update")


def one_of_each() -> list[Case]:
    """A case of every family, format and operation."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in sweep_cases(NAMES):
        kind = (
            case.shape.get(name) for name in ("dtype", "op", "kv_dtype", "latent", "sigma", "routing", "kind", "update")
        )
        found.setdefault((case.family, *kind), case)
    return list(found.values())


def engines_of(builders: ModuleType) -> dict[str, set[str]]:
    """Whose kernels the cases get, by family or operation."""
    found: dict[str, set[str]] = {}
    for case in one_of_each():
        name = case.shape.get("op", f"{case.family} {case.shape['dtype']}")
        try:
            launch = builders.BUILDERS[case.family](case.shape, workspace())
            launch.touch()
            launch()
            found.setdefault(name, set()).add(launch.engine)
        except (ImportError, NotImplementedError) as problem:
            found.setdefault(name, set()).add(str(problem).partition(" ")[0])
    return found


def test_every_family_has_a_builder(builders: ModuleType) -> None:
    assert set(builders.BUILDERS) == {*NAMES, "tuning"}


@pytest.mark.usefixtures("vllm")
def test_with_vllm_its_kernels_are_taken(builders: ModuleType) -> None:
    engines.choose_engine(None)
    found = engines_of(builders)
    for name in ("gemm fp8", "attention_decode bf16", "attention_prefill bf16", "attention_mixed bf16", "moe bf16"):
        assert found[name] == {"vllm"}, name
    assert found["kv_write"] == found["topk"] == found["sample"] == found["moe fp8"] == {"vllm"}
    assert found["scan bf16"] == found["state_update bf16"] == found["convolution bf16"] == {"vllm"}
    assert found["gemm bf16"] == found["norm"] == found["rope"] == found["copy"] == {"torch"}


LAYER = {"tokens": 64, "hidden": 2816, "inter": 352, "experts": 128, "topk": 8, "dtype": "bf16", "routing": "uniform"}
WIDE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


@pytest.mark.usefixtures("vllm")
def test_kernels_are_compiled_on_small_layers_unless_their_sizes_matter(
    builders: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.choose_engine(None)
    fused_moe = MagicMock()
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.fused_moe.fused_moe", fused_moe)
    fused_moe.try_get_optimal_moe_config.return_value = WIDE
    small = builders.gemm.small_layer(LAYER)
    assert (small["hidden"], small["inter"], small["experts"], small["tokens"]) == (1024, 512, 128, 64)
    assert small["configuration"] == WIDE  # which vLLM chose for the whole layer
    assert fused_moe.try_get_optimal_moe_config.call_args.args[:2] == ((128, 704, 2816), (128, 2816, 352))
    assert builders.gemm.small_layer(LAYER | {"inter": 88})["inter"] == 88
    assert builders.gemm.small_layer(LAYER | {"dtype": "fp8_block", "configuration": WIDE})["hidden"] == 2816
    bench = builders.GpuBench.__new__(builders.GpuBench)
    bench.workspace = workspace()
    bench.compile(Case("moe", LAYER))
    sizes = [call.args for call in bench.workspace.take.call_args_list]
    assert sizes == [(64, 1024), (128, 1024, 1024), (128, 1024, 512)]


@pytest.mark.skipif(not PROBES.is_dir(), reason="benchmarks are not part of a source distribution")
@pytest.mark.usefixtures("vllm", "torch")
def test_probes_say_whose_kernel_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBES))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    cases, kernels = importlib.import_module("run"), importlib.import_module("probe_kernels")
    for name in ("run", "probe_kernels"):  # made with a PyTorch that is none
        monkeypatch.delitem(sys.modules, name)
    engines.choose_engine("torch")
    space = MagicMock()
    space.take.return_value.view.return_value.unbind.return_value = (1, 2)
    found: dict[tuple[str, str], str] = {}
    for case in cases.probe_cases():
        op, by = case.shape["op"], case.shape["by"]
        if by in ("vllm", "flash2", "cudnn"):
            try:
                found[op, by] = kernels.build_probe(case.shape, space).engine
            except ImportError as problem:
                found[op, by] = str(problem)
    assert found["prompts", "flash2"] == found["decode", "flash2"] == found["prompts", "cudnn"] == "torch"
    assert "only vLLM" in found["kv_write", "vllm"]


@pytest.mark.usefixtures("vllm")
def test_engine_torch_leaves_vllm_out_even_where_it_is_installed(builders: ModuleType) -> None:
    engines.choose_engine("torch")
    found = engines_of(builders)
    assert "vllm" not in set().union(*found.values())
    assert found["gemm fp8"] == found["sample"] == {"torch"}
    assert found["attention_decode bf16"] == {"torch", "PyTorch"}, "even batches run, uneven ones are refused"
    for name in ("moe bf16", "moe fp8", "kv_write", "topk", "scan bf16", "convolution bf16"):
        assert found[name] == {"only"}, "only vLLM has this kernel"


@pytest.mark.usefixtures("vllm")
def test_older_chips_run_the_older_attention(torch: MagicMock, builders: ModuleType) -> None:
    torch.cuda.get_device_capability.return_value = (8, 0)
    engines.choose_engine(None)
    found = engines_of(builders)
    assert found["attention_mixed bf16"] == {"vllm"}
    assert found["attention_decode bf16"] == {"vllm", "FlashAttention"}, "latent and fp8 keys are refused"


def test_each_run_of_a_product_finds_its_operands_elsewhere(torch: MagicMock) -> None:
    launch = importlib.import_module("infercast.lab.measure.launch")
    ran: list[int] = []
    places = iter(range(10))

    def place() -> Any:
        number = next(places)
        return lambda: ran.append(number), ()

    moving = launch.MovingLaunch("torch", place)
    for _ in range(2):
        moving.touch()
        moving()
        moving()
    assert ran == [1, 1, 2, 2], "the warm run comes back to where the cold one was"


def test_light_and_heavy_runs_make_the_marks_that_they_are_cut_at(
    torch: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = importlib.import_module("infercast.lab.measure.launch")
    record: list[dict[str, Any]] = []

    def ran(name: str) -> None:
        record.append({"cat": "kernel", "name": name, "ts": len(record), "dur": 1.0})

    def keep(work: Any) -> Any:
        record.clear()
        work()
        trace.mark()
        return trace.cut(record)

    torch.cuda._sleep = lambda cycles: ran("spin_kernel")
    monkeypatch.setattr(trace, "record", keep)
    launches = [MagicMock(side_effect=lambda name=name: ran(name)) for name in "ab"]
    for launch in launches:
        launch.touch = lambda: ran("touch")
    space = SimpleNamespace(flush=lambda: ran("flush"))
    for timings in (trace.time_launches(launches, space, 3), trace.time_sustained(launches, 3, lambda: ran("heat"))):
        for name, timing in zip("ab", timings, strict=True):
            assert [[kernel.name for kernel in run] for run in timing.cold][-1][0] == name
            assert {run[0].name for sections in (timing.cold, timing.warm, timing.burst) for run in sections} == {name}
            assert len(timing.cold) == 3


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block"])
def test_experts_run_under_the_configuration_that_is_asked_for(builders: ModuleType, vllm: None, dtype: str) -> None:
    fused_moe = sys.modules["vllm.model_executor.layers.fused_moe"]
    layer = {"tokens": 4, "hidden": 256, "inter": 128, "experts": 8, "topk": 2, "dtype": dtype, "routing": "uniform"}
    asked = {"BLOCK_SIZE_M": 16}
    token = engines._engine.set("vllm")
    builders.BUILDERS["tuning"](layer | {"configuration": asked}, workspace())()
    fused_moe.override_config.assert_called_once_with(asked)
    fused_moe.fused_experts.assert_called_once()
    builders.BUILDERS["tuning"](layer | {"configuration": None}, workspace())()
    fused_moe.override_config.assert_called_once()
    engines._engine.reset(token)
