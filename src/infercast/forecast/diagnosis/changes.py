"""Single changes of a system that its command takes: which there are, what each eases, and the system with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

from infercast.engines.base import Deployment
from infercast.forecast.deploy import redeploy
from infercast.forecast.result import Forecast
from infercast.forecast.system import System, system_of, two_pools
from infercast.hardware.load import networks

SEATS, TOKENS, KV, SLOTS, ROUTER, SERVERS = "seats", "tokens", "kv", "slots", "router", "servers"
GPU, HOST, STAGES, LINK, PREFILL, DECODE, BURSTS, REUSE = (
    "gpu", "host", "stages", "link", "prefill", "decode", "bursts", "reuse",
)  # fmt: skip
"""What may limit a system."""
FREE, ANSWERS, GPUS = range(3)  # What a change costs: nothing, other numeric formats, or more GPUs
STEPS, SEQUENCES = (256, 65_536), (8, 4096)  # Tokens and sequences of the smallest and the largest step that is tried
USUAL_SEATS = 256  # Tried, too, where there are far fewer
UTILIZATION = 0.95
USABLE, MOST_TIMES = 0.9, 64  # The share of its capacity that one plans for, and the most copies that are tried
SWITCHES = {
    "enable_chunked_prefill": True, "async_scheduling": True, "disable_overlap_schedule": False,
    "enforce_eager": False, "disable_cuda_graph": False,
}  # fmt: skip
"""Switches of engines that help in one position."""
MIXED = "enable_mixed_chunk"
CHOICES: dict[str, tuple[Any, ...]] = {
    "schedule_policy": ("fcfs", "lpm"), "schedule_conservativeness": (0.3, 1.0), MIXED: (True, False),
    "long_prefill_token_threshold": (0, 1024, 4096),
}  # fmt: skip
"""Settings with several values, any of which may help."""
REUSING = {"enable_prefix_caching": True, "disable_radix_cache": False}
OF_POOLS = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
WEIGHTS, ATTENTION = ("gemm", "moe"), ("attention", "sparse_attention")
"""Families of kernels that read weights, and those that read the KV cache."""
ROUTERS = ("least_loaded", "round_robin")
WITH_PREFIXES = ("prefix_aware", "session_affinity")


class Change(NamedTuple):
    eases: tuple[str, ...]  # What may limit a system less with it
    values: Mapping[str, Any] = {}  # Of `deploy` and the engine's settings; None leaves one out
    pool: int | None = None  # The pool that it is about; None: all
    cost: int = FREE
    instances: tuple[int, ...] = ()  # Of both pools, where these change
    router: str | None = None
    link: str | None = None
    shorter: float = 1.0  # The share of what it eases that it takes away at most
    families: tuple[str, ...] = ()  # Kernel families that it makes faster; none: all
    kernels: bool = True  # Whether other kernels run, with errors of their own

    @property
    def label(self) -> str:
        named = {"router": self.router, "link": self.link, "instances": self.instances or None}
        return label_of({name: value for name, value in named.items() if value is not None} | {**self.values})

    def words(self, system: System) -> str:
        """The options of the command that make it."""
        parts: list[tuple[str, Any]] = [("router", self.router)] if self.router else []
        parts += [("link", self.link)] if self.link else []
        pools = system.pools
        if self.instances:
            pairs = zip(pools, self.instances, strict=True)
            parts += [(f"{pool.role}-engines", count) for pool, count in pairs if count != pool.instances]
        for name, value in self.values.items():
            short = OF_POOLS.get(name) if system.wire is not None else None
            roles = [pool.role for number, pool in enumerate(pools) if self.pool in (None, number)]
            parts += [(f"{role}-{short}", value) for role in roles] if short else [(name.replace("_", "-"), value)]
        return " ".join(filter(None, (_flag(name, value, pools[0].deployment) for name, value in parts)))

    def applied(self, system: System) -> System:
        """The system with it; an error where its engine would refuse it."""
        pools = system.pools
        asked = [redeploy(pool.deployment, self.values) if self.values and self.pool in (None, number)
                 else pool.deployment for number, pool in enumerate(pools)]  # fmt: skip
        timers = [pool.replica.timer if same_steps(pool.deployment, each) else None
                  for pool, each in zip(pools, asked, strict=True)]  # fmt: skip
        counts = self.instances or tuple(pool.instances for pool in pools)
        now = pools[0].engines.router if len(pools[0].engines.replicas) > 1 else None
        router = self.router or now
        if system.wire is None:
            several = counts[0] * asked[0].layout.data > 1
            found = system_of(asked[0], router if several else None, instances=counts[0], timer=timers[0])
            return found.failing(pools[0].engines.outages)
        link, balancer = self.link or str(system.link), router or pools[0].engines.router
        return two_pools(*asked, instances=(counts[0], counts[1]), link=link, router=balancer, timers=(*timers,))  # type: ignore[arg-type]


def label_of(values: Mapping[str, Any]) -> str:
    words = {True: "on", False: "off", None: "left out"}
    return ", ".join(f"{name} {words[value] if value is None or isinstance(value, bool) else value}"
                     for name, value in values.items())  # fmt: skip


def _flag(name: str, value: Any, deployment: Deployment) -> str:
    name = deployment.engine.commands.dotted.get(name.replace("-", "_"), name)
    if isinstance(value, bool):
        negates = deployment.engine.commands.negates
        return f"--{name}" if value else f"--no-{name}" if negates else f"without --{name}"
    return f"without --{name}" if value is None else f"--{name} {shlex.quote(str(value))}"


def same_steps(one: Deployment, other: Deployment) -> bool:
    """Whether steps of both take equally long and have the same size limits."""
    parts = ("model", "layout", "gpu", "host", "graphs", "corrections", "drafting")
    bounds = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    return (
        one.predictor is other.predictor
        and all(getattr(one, part) == getattr(other, part) for part in parts)
        and all(getattr(one.settings, bound) == getattr(other.settings, bound) for bound in bounds)
    )


def changes_of(forecast: Forecast) -> Iterator[Change]:
    """Every single change of a forecast's system, whether it helps or not."""
    system = forecast.system
    yield from _of_command(forecast)
    for number, pool in enumerate(system.pools):
        if pool.deployment.asked is None:
            continue
        if number == 0:
            yield from _formats(forecast)
            yield from _settings(forecast)
        yield from _layouts(forecast, number)


def _of_command(forecast: Forecast) -> Iterator[Change]:
    """Load balancers, and of two pools the engines of each and the link between them."""
    system = forecast.system
    first = system.pools[0].engines
    if any(len(pool.engines.replicas) > 1 for pool in system.pools):
        shared = forecast.workload.has("prefix")
        for name in (*ROUTERS, *(WITH_PREFIXES if shared else ())):
            if name != first.router:
                yield Change((ROUTER, REUSE), router=name, kernels=False)
    if system.wire is None:
        return
    counts = tuple(pool.instances for pool in system.pools)
    for number, role in enumerate((PREFILL, DECODE)):
        for more in (counts[number] + 1, 2 * counts[number]):
            if more == counts[number] + 1 or counts[number] > 1:
                now = (*counts[:number], more, *counts[number + 1 :])
                yield Change((role,), instances=now, cost=GPUS, kernels=False)
    fastest = max(networks(), key=lambda name: networks()[name].bandwidth)
    if system.link in networks() and networks()[str(system.link)].bandwidth < networks()[fastest].bandwidth:
        yield Change((LINK,), link=fastest, kernels=False)


def _settings(forecast: Forecast) -> Iterator[Change]:
    """Other values of one setting of the engine, which both of two pools share."""
    deployment = forecast.deployment
    engine, settings = deployment.engine, deployment.settings
    tokens, sequences, _ = engine.bounds
    factors = (2.0, 4.0, 0.5, 0.25)
    for name, size, (least, most), eased in (
        (sequences, settings.max_num_seqs, SEQUENCES, (SEATS,)),
        (tokens, settings.max_num_batched_tokens, STEPS, (TOKENS,)),
    ):
        usual = [USUAL_SEATS] if eased == (SEATS,) and factors[1] * size < USUAL_SEATS else []
        for value in [*(int(size * factor) for factor in factors), *usual]:
            if least <= value <= most:
                yield Change(eased, {name: value})
    yield from _sizes(forecast)
    for name, better in {**SWITCHES, **REUSING}.items():
        now = getattr(settings, name, None)
        if now is not None and now is not better:
            yield Change((REUSE,) if name in REUSING else (GPU, HOST, TOKENS), {name: better})
    for name, values in CHOICES.items():
        now = getattr(settings, name, None)
        others = values[:1] if name == "long_prefill_token_threshold" and now else values  # dropped or added, not moved
        yield from (Change((TOKENS,), {name: value}) for value in others if now is not None and value != now)
    if deployment.model.prediction is not None and deployment.drafting is None and engine.own_drafts:
        flag, _, words = engine.own_drafts.removeprefix("--").partition(" ")
        yield Change((GPU,), {flag.replace("-", "_"): words.strip("'")})


def _sizes(forecast: Forecast) -> Iterator[Change]:
    deployment, settings = forecast.deployment, forecast.deployment.settings
    adapters = {request.adapter for request in forecast.workload.requests} - {None}
    slot_settings = ("max_loras", "max_loras_per_batch")
    for name in slot_settings:
        now = getattr(settings, name, None)
        if adapters and now is not None:
            for value in sorted({len(adapters), ceil(len(adapters) / 2), 2 * now}, reverse=True):
                if now < value <= len(adapters):
                    yield Change((SLOTS,), {name: value})
    if getattr(settings, "gpu_memory_utilization", 1.0) < UTILIZATION:
        yield Change((KV,), {"gpu_memory_utilization": UTILIZATION}, kernels=False)
    if hasattr(settings, "api_server_count") and deployment.over_http:
        first = forecast.system.pools[0]
        now = max(first.engines.servers, first.replica.num_servers)
        for value in (2 * now, 4 * now):
            yield Change((SERVERS,), {"api_server_count": value}, kernels=False)


def _formats(forecast: Forecast) -> Iterator[Change]:
    """Narrower formats of weights and of the KV cache that the engine makes by itself."""
    deployment, model = forecast.deployment, forecast.deployment.model
    if model.weights.name == model.weights.base:
        yield Change((GPU, KV, PREFILL, DECODE), {"quantization": "fp8"}, cost=ANSWERS, shorter=0.6, families=WEIGHTS)
    names = deployment.engine.names.kv_cache_dtypes
    other = next((name for name in ("fp8", "fp8_e4m3") if name in names), None)
    if model.cache_dtype not in ("fp8", None) and other and not model.pools:
        yield Change((KV, GPU, LINK), {"kv_cache_dtype": other}, cost=ANSWERS, shorter=0.55, families=ATTENTION)


def _layouts(forecast: Forecast, number: int) -> Iterator[Change]:
    pool = forecast.system.pools[number]
    layout, gpu = pool.deployment.layout, pool.deployment.gpu
    if gpu.stages or layout.experts:  # groups that share experts, and stages of several kinds, are left as they are
        return
    of_pool = None if len(forecast.system.pools) == 1 else number
    role = () if of_pool is None else ((PREFILL, DECODE)[number],)
    tensor, data, pipeline = layout.tensor, layout.data, layout.pipeline
    t, p, d = OF_POOLS
    if pipeline > 1 and pipeline % 2 == 0:
        for by in dict.fromkeys((pipeline, 2)):
            values = {t: by * tensor, p: None if pipeline == by else pipeline // by}
            yield Change((STAGES, *role), values, of_pool)
            yield Change((STAGES, KV, HOST, SEATS, SERVERS, *role), {d: by * data, p: values[p]}, of_pool)
    if data > 1 and data % 2 == 0:
        yield Change((GPU, ROUTER, *role), {t: 2 * tensor, d: _or_none(data // 2)}, of_pool)
    if tensor > 1 and tensor % 2 == 0:
        yield Change((GPU, HOST, *role), {t: _or_none(tensor // 2), d: 2 * data}, of_pool)
    if 2 * tensor * pipeline <= gpu.gpus_per_node:
        yield Change((GPU, KV, *role), {t: 2 * tensor}, of_pool, GPUS)
    if of_pool is None:
        for times in sorted({2, _times(forecast)}):
            yield Change((GPU, KV, HOST, SEATS, SERVERS, BURSTS), {d: times * data}, of_pool, GPUS)


def _times(forecast: Forecast) -> int:
    """How many times as many replicas what comes would need."""
    state = forecast.state
    if not state.capacity or not state.offered or state.is_steady:
        return 2
    return max(2, min(ceil(state.offered / (USABLE * state.capacity)), MOST_TIMES))


def _or_none(size: int) -> int | None:
    return size if size > 1 else None
