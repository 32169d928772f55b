"""Another engine is a module and a line in the registry: it is deployed, simulated and told flags by its own names."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import infercast.engines.host
from infercast.engines import base as registry
from infercast.engines.base import Deployment, Engine
from infercast.engines.host import HostCosts, Launch
from infercast.engines.memory import KvLayout, Memory
from infercast.engines.settings import EngineFlags, EngineNames, Resolved
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.serve import FcfsPolicy, Replica
from infercast.serve.cache.blocks import KvShape
from infercast.serve.step import HostCost, StepTimer
from infercast.serve.workload.synthetic import synthetic_workload

TIMES = ("request_path", "request_token", "wake_up", "token_path", "token_turn", "step")


@dataclass(frozen=True)
class ToySettings:
    engine: str = "toy@1"
    running_requests: int | None = None
    prefill_tokens: int = 4096


@dataclass(frozen=True)
class ToyResolved:
    engine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyHost(HostCosts):
    step: float


@dataclass(frozen=True)
class ToyHostModel:
    host: ToyHost
    gap_seconds: float = 0.0
    waited_share: float = 0.0

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        return HostCost(self.host.step, 0.0, 0.0, 0.0, 0.0)

    def borrowed_share(self, model: str) -> float:
        return 0.0

    def rests_on(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Eager:
    sizes: tuple[int, ...] = ()

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        return Launch.EAGER, num_tokens


class Toy(Engine):
    title = "Toy"
    load_balancer = "round_robin"
    names = EngineNames({"auto": "auto"}, {"auto": ""}, ("auto",), ("none",))
    settings_type = ToySettings
    bounds = ("prefill_tokens", "running_requests", "context")
    shown = ("max_num_seqs",)
    host_type = ToyHost

    def settings_from(self, given: Any, tell: Any) -> dict[str, Any]:
        return dict(given)

    def describe(self, settings: ToyResolved) -> str:
        return f"{settings.max_num_seqs} requests at once"

    def resolve(self, asked: ToySettings, model: Any, layout: Any, gpu: Any) -> ToyResolved:
        return ToyResolved(asked.engine, asked.running_requests or 8, asked.prefill_tokens, 8192)

    def fuses_norms(self, model: Any, gpu: Any) -> bool:
        return False

    def expert_multiples(self, model: Any, gpu: Any) -> tuple[int, int]:
        return 1, 1

    def graphs(self, settings: Any) -> Eager:
        return Eager()

    def plan_memory(self, model: Any, layout: Any, gpu: Any, settings: Resolved) -> Memory:
        kv = KvLayout(KvShape(1), 65_536)
        return Memory(gpu.driver_bytes, gpu.driver_bytes, 1e9, 0.0, 0.0, 0.0, kv, 200_000)

    def host_model(self, host: ToyHost, model: Any, layout: Any, gpu: Any, settings: Any) -> ToyHostModel:
        return ToyHostModel(host)

    def replica(self, deployment: Deployment, settings: ToyResolved, timer: StepTimer, warmed_up: bool) -> Replica:
        policy = FcfsPolicy(
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            prompts_first=True,
        )
        return Replica(
            timer=timer,
            policy=policy,
            num_blocks=deployment.memory.num_blocks,
            kv_shape=deployment.memory.kv.shape,
            steps_under_way=1,
        )


TOY = Toy(
    name="toy@1",
    flags=EngineFlags(
        options=frozenset({"running_requests", "prefill_tokens"}),
        settings={"running-requests": "running_requests", "prefill-tokens": "prefill_tokens"},
    ),
)
SERVED = (
    "simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--predictor", "roofline", "--concurrency", 8, "-n", 16,
    "--input-len", 64, "--output-len", 4,
)  # fmt: skip


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    module = ModuleType("toy_engine")
    module.RELEASES = {"toy@1": TOY}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    monkeypatch.setitem(registry.FAMILIES, "toy", "toy_engine")
    folder = tmp_path / "engines" / "toy"
    folder.mkdir(parents=True)
    lines = ['cpu = "measured"', 'source = "nowhere"', *(f"{name}_ms = 1" for name in TIMES)]
    (folder / "host.toml").write_text("\n".join(lines))
    monkeypatch.setattr(infercast.engines.host, "DATA", tmp_path)
    caches = (registry.releases_of, registry.engine_named)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def test_a_deployment_is_that_of_the_engine() -> None:
    deployment = deploy("qwen3-0.6b", "h200-sxm", engine="toy@1", predictor="roofline")
    assert deployment.engine is TOY
    assert deployment.host.title == "Xeon server, 16 vCPU"
    assert deployment.replica().policy.prompts_first
    forecast = simulate(deployment, synthetic_workload(rate=5.0, count=20, input_lengths=100, output_lengths=8))
    assert forecast.ttft.p50 > 1e-3  # what a step costs the host


def test_flags_by_their_own_names(infercast: Any) -> None:
    run = infercast(*SERVED, "--engine", "toy@1", "--running-requests", 3, "--full")
    assert run.code == 0, run.err
    run = infercast(*SERVED, "--engine", "toy@1", "--running-requests=3", "--json")
    assert run.json["deployment"]["max_num_seqs"] == run.json["running"]["peak"] == 3
    other = infercast(*SERVED, "--engine", "toy@1", "--what-if", "running_requests=2", "--full")
    assert other.code == 0, other.err
    assert (
        "toy@1: 2 requests at once"
        in infercast(*SERVED, "--engine=toy@1", "--setting", "running_requests=2", "--full").out
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "toy@1", "--max-num-seqs", 4), "--max-num-seqs is no option of Toy; leave it out"),
        (("--engine", "toy@1", "--running-requests", "many"), "--running-requests must be a whole number"),
        (("--engine", "toy@1", "--setting", "max_num_seqs=4"), "unknown setting 'max_num_seqs'"),
        (("--engine", "toy@1", "--moe-backend", "marlin"), "unknown moe_backend 'marlin'; known: auto"),
        (("--engine", "toy@1", "--what-if", "max_num_seqs=4"), "what-if max_num_seqs is no setting of Toy"),
        (("--engine", "toy@new"), "unknown engine 'toy@new'; did you mean toy@1?"),
    ],
)
def test_what_it_does_not_know_is_refused(infercast: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in infercast(*SERVED, *words).sentence


def test_settings_and_hosts_of_another_engine_are_refused() -> None:
    vllm = registry.engine_named()
    with pytest.raises(InputError, match="is not for toy@1, which takes ToySettings"):
        deploy("qwen3-0.6b", "h200-sxm", vllm.settings(), engine="toy@1", predictor="roofline")
    with pytest.raises(InputError, match="was fitted for another engine than vllm"):
        deploy("qwen3-0.6b", "h200-sxm", predictor="roofline", host=TOY.default_host())
