"""Names in place of objects, and progress for people."""

import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import infercast
from infercast.forecast.deploy import DeployOptions
from infercast.forecast.kernels import estimate_step, prefill_shape
from infercast.forecast.memory import fit_memory
from infercast.forecast.progress import request_progress, stage_progress
from infercast.serve.workload.synthetic import synthetic_workload

QUICK: dict[str, Any] = {"gpu": "l4"}


def test_names_are_the_same_as_objects() -> None:
    workload = synthetic_workload(rate=8, count=30, input_lengths=100, output_lengths=10)
    made = infercast.simulate(infercast.deploy("qwen3-0.6b", "l4", quantization="fp8"), workload)
    load: dict[str, Any] = {"rate": 8, "num_requests": 30, "input_len": 100, "output_len": 10}
    named = infercast.simulate("qwen3-0.6b", **QUICK, quantization="fp8", **load)
    assert named.ttft == made.ttft
    assert named.workload.description == workload.description


def test_default_lengths_are_those_of_the_command_line_within_the_model() -> None:
    short = infercast.EngineSettings(max_model_len=512)
    forecast = infercast.simulate("qwen3-0.6b", **QUICK, settings=short, rate=8, num_requests=30)
    assert max(each.num_input + each.num_output for each in forecast.workload.requests) <= 512


def test_a_trace_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n2,100,10\n")
    forecast = infercast.simulate("qwen3-0.6b", str(path), **QUICK, num_requests=2)
    assert len(forecast.workload.requests) == 2
    with pytest.raises(infercast.InputError, match="seed has no meaning with a trace"):
        infercast.simulate("qwen3-0.6b", path, **QUICK, seed=3)


def test_two_pools_by_name() -> None:
    forecast = infercast.simulate("qwen3-0.6b", prefill_gpu="l4", gpu="l40s", rate=2, num_requests=20)
    assert forecast.title == "qwen3-0.6b on 1 x l4, 1 x l40s"


def test_a_sweep_and_a_step_by_name() -> None:
    sweep = infercast.sweep("qwen3-0.6b", "l4", concurrencies=[1, 2], num_requests=20)
    assert [point.label for point in sweep.points] == ["1", "2"]
    varied = infercast.sweep("qwen3-0.6b", "l4", vary=("max_num_seqs", [8, 16]), rate=4, num_requests=20)
    assert len(varied.points) == 2
    assert estimate_step("qwen3-0.6b", prefill_shape(64), gpu="l4").num_tokens == 64


def test_a_plan_by_name() -> None:
    found = infercast.plan("qwen3-0.6b", rate=2, num_requests=20, slo="ttft_p99<2s", gpus=["l4"], max_gpus=1, price=1.0)
    assert found.winner is not None
    assert found.winner.cost == 1.0
    assert repr(found).startswith("<Plan: qwen3-0.6b, ttft_p99<2s: 1 x TP1 on l4")
    assert "winner" in found._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("qwen3-0.6b",), {"rate": 3}, "the str 'qwen3-0.6b' is a model, which needs a GPU to run on: gpu='h200-sxm'"),
        (("qwen3-0.6b",), QUICK, "say how requests arrive: rate=12 per second, concurrency=32 clients, or a workload"),
        ((3,), QUICK, "needs a deployment or a model with gpu=..., not the int 3; infercast.deploy"),
        (("qwen3-0.6b", 12), QUICK, "needs a workload, not the int 12; rate=12 or the file of a trace does"),
        (("qwen3-0.6b",), {**QUICK, "gpu": "l44", "rate": 3}, "unknown GPU 'l44'; did you mean l4"),
    ],
)
def test_what_is_missing_is_said(arguments: tuple[Any, ...], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(infercast.InputError, match=sentence.replace("(", r"\(")):
        infercast.simulate(*arguments, **options)


def test_options_of_what_is_made_already_are_refused() -> None:
    deployment = infercast.deploy("qwen3-0.6b", "l4")
    workload = synthetic_workload(rate=3, count=10)
    with pytest.raises(infercast.InputError, match="quantization is an option of deploy, and <Deployment"):
        infercast.simulate(deployment, workload, quantization="fp8")
    with pytest.raises(infercast.InputError, match="rate says how requests are made, and there is a workload already"):
        infercast.simulate(deployment, workload, rate=3)


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    infercast.simulate("qwen3-0.6b", **QUICK, rate=8, num_requests=20, progress=True)
    err = capsys.readouterr().err
    assert "[                        ] 0 of 20 requests" in err
    assert err.endswith("\r")


def test_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with request_progress(True, 10) as tell, stage_progress(True) as say:
        assert tell is not None
        tell(5, 1.0)
        say("something")
    with request_progress(None, 10) as silent, stage_progress(False) as quiet:
        assert silent is None
        quiet("something")
    assert capsys.readouterr() == ("", "")


def test_one_line_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(bundle["text/plain"])

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(bundle["text/plain"])
        return Handle()

    module: Any = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    with stage_progress(True) as say:
        say("first")
        say("second")
    assert shown == ["1: first", "2: second", ""]


def test_options_that_are_none() -> None:
    with pytest.raises(infercast.InputError, match="unknown option 'num_request'; did you mean num_requests"):
        infercast.simulate("qwen3-0.6b", **QUICK, rate=1, num_request=8)
    with pytest.raises(infercast.InputError, match="unknown option 'input_length'; did you mean"):
        infercast.plan("qwen3-0.6b", rate=1, slo="ttft_p99<2s", input_length=8)
    with pytest.raises(infercast.InputError, match=r"unknown option 'max_num_seq'; did you mean max_num_seqs.* too"):
        infercast.simulate("qwen3-0.6b", **QUICK, rate=1, max_num_seq=8)
    with pytest.raises(infercast.InputError, match=r"unknown option 'chunked_prefill_size'; .*vLLM"):
        infercast.simulate("qwen3-0.6b", **QUICK, rate=1, chunked_prefill_size=8)
    for name, value in (("rate", "12"), ("num_requests", 2.5), ("seed", "x"), ("concurrency", "many")):
        with pytest.raises(infercast.InputError, match=f"{name} must be a "):
            infercast.simulate("qwen3-0.6b", **QUICK, **{"rate": 1, name: value})


def test_keywords_that_were_renamed_say_so() -> None:
    old: dict[str, Any] = {"count": 8, "input_lengths": 100, "output_lengths": 4, "prefix_length": 32}
    now: dict[str, Any] = {"num_requests": 8, "input_len": 100, "output_len": 4, "prefix_len": 32}
    with pytest.warns(DeprecationWarning, match="count is num_requests now, .*prefix_len now; 1.0 drops the old names"):
        one = infercast.simulate("qwen3-0.6b", **QUICK, rate=1, **old)
    assert one.workload == infercast.simulate("qwen3-0.6b", **QUICK, rate=1, **now).workload


def test_sessions_are_options_as_on_the_command_line() -> None:
    asked: dict[str, Any] = {"input_len": 100, "output_len": 4, "turns": 3, "think": 2}
    found = infercast.simulate("qwen3-0.6b", **QUICK, session_rate=1.0, num_requests=9, **asked)
    assert found.workload.in_turns
    assert len(found.workload.requests) == 9


def test_settings_of_an_engine_are_options() -> None:
    one = infercast.simulate("qwen3-0.6b", **QUICK, rate=1, max_num_seqs=8)
    told = infercast.EngineSettings(max_num_seqs=8)
    other = infercast.simulate("qwen3-0.6b", **QUICK, rate=1, settings=told)
    assert one.ttft == other.ttft
    deployment = infercast.deploy("qwen3-0.6b", "l4", engine="sglang", max_running_requests=8)
    assert deployment.settings.max_num_seqs == 8
    assert fit_memory("qwen3-0.6b", "l4", max_num_seqs=8).settings.max_num_seqs == 8
    with pytest.raises(infercast.InputError, match="max_num_seqs is a setting of vLLM, of which there are settings"):
        infercast.deploy("qwen3-0.6b", "l4", told, max_num_seqs=9)


def test_options_of_deploy_are_typed() -> None:
    named = {*inspect.signature(infercast.deploy).parameters} - {"model", "gpu", "options"}
    assert named <= set(DeployOptions.__annotations__)
