"""The load at which each limit of a system binds, by the growth that a run shows.

A replica with ``b`` sequences needs ``b`` times the seconds of a prompt and, for all their answers, the steps of an
answer of ``b`` sequences: so it serves ``b / (steps * step(b) + b * prompt)`` requests a second. Steps are as long as
the step timer says, times what they took longer in the run.
"""

from __future__ import annotations

from math import inf

import numpy as np

from infercast.forecast.result import Forecast
from infercast.forecast.run import PoolRun, drafts_of
from infercast.forecast.simulate import most_of_engines, most_of_servers
from infercast.forecast.system import PREFILL, busiest
from infercast.lazy_classes import NamedTuple

NEARLY = 0.9  # Of the rate with all GPU time taken: queues have no end before it


class Binding(NamedTuple):
    """A limit, and the load at which it binds; None where no load does."""

    name: str
    load: float
    unit: str  # ``requests/s`` or ``clients``
    share: float  # Of it that is in use now, at most
    kind: str = ""  # Of the cause that it is, if it limits a run


class Growth:
    """How one replica of a pool responds to more sequences."""

    def __init__(self, forecast: Forecast, pool: PoolRun) -> None:
        record = busiest(pool.records)
        self._pool, self._timer, self._stages = pool, pool.pool.timer, pool.deployment.layout.pipeline
        requests = forecast.workload.requests
        self.output = float(np.mean([each.num_output for each in requests]))
        self.context = float(np.mean([each.num_input + each.num_output / 2 for each in requests]))
        drafts = drafts_of(forecast)
        self.tokens_a_step = 1.0 if drafts is None else max(1.0, drafts.counts.acceptance_length)
        decoding, prompts = record.decoding, record.prefilling
        self._longer = 1.0  # Steps follow each other stage by stage: an answer's next token comes after all stages'
        if decoding.steps and decoding.sequences:
            now = self.step_alone(self._stages * decoding.sequences / decoding.steps)
            self._longer = self._stages * decoding.seconds / decoding.steps / now if now else 1.0
        span = record.span or forecast.duration
        served = forecast.requests_per_second * span / len(pool.records)
        beside = self.step(self._stages * prompts.sequences / prompts.steps) / self._stages if prompts.steps else 0.0
        own = max(prompts.seconds - 0.5 * prompts.steps * beside, 0.1 * prompts.seconds)
        self.prompt = own / max(served, 1e-9)

    def step_alone(self, sequences: float) -> float:
        """Seconds of a decode step, by the timer; stages of a pipeline work on as many at the same time."""
        count = max(1, round(sequences / self._stages))
        context = int(self.context)
        estimate = self._timer.decode(count, count * context, lambda: [context] * count, 1)
        return max(float(estimate.gpu_seconds[0]), estimate.host.total)

    def step(self, sequences: float) -> float:
        return self._longer * self.step_alone(sequences)

    @property
    def most(self) -> float:
        """Requests a second of a replica without end of seats: its GPU time is all taken."""
        seats = self._pool.deployment.settings.max_num_seqs
        each = (self.step(seats) - self.step(seats / 2)) / (seats / 2) if seats > 1 else self.step(1)
        return 1.0 / max(self.prompt + max(self.output - 1.0, 0.0) / self.tokens_a_step * max(each, 0.0), 1e-9)

    def rate(self, sequences: float) -> float:
        """Requests a second that a replica serves with this many of them running."""
        steps = max(self.output - 1.0, 0.0) / self.tokens_a_step
        return sequences / max(steps * self.step(sequences) + sequences * self.prompt, 1e-12)


def bindings(forecast: Forecast, *, may_simulate: bool = False) -> list[Binding]:
    """Limits in the order in which a growing load meets them; ``may_simulate``: full engines, where steps at this load
    do not tell how long those of a higher one are.
    """
    found = list[Binding]()
    closed = forecast.workload.concurrency is not None
    for pool in forecast.pools:
        role = "" if len(forecast.pools) == 1 else f"{pool.role} pool's "
        count = len(pool.records)
        if pool.role == PREFILL or forecast.tpot is None:
            busy = max((each.busy for each in pool.engines), default=0.0)
            if busy and not closed:
                found.append(Binding(f"{role}prompts", forecast.requests_per_second / busy, "requests/s", busy))
            continue
        growth = Growth(forecast, pool)
        seats = most_running(pool)
        used = pool.running.peak / (seats * count)
        rooms = {f"{role}{pool.deployment.engine.bounds[1]}": (float(seats), used, "seats")}
        if pool.running.mean > 0 and pool.kv_usage.mean > 0:
            rooms[f"{role}KV cache"] = pool.running.mean / count / pool.kv_usage.mean, pool.kv_usage.peak, "kv"
        for name, (sequences, share, kind) in rooms.items():
            most = min(sequences, float(seats))  # as far as steps are timed
            load = count * growth.rate(most) * sequences / most
            load = sequences * count if closed else load if load < NEARLY * count * growth.most else inf
            found.append(Binding(name, load, "clients" if closed else "requests/s", min(share, 1.0), kind))
        if not closed:
            most = NEARLY * count * growth.most
            found.append(Binding(f"{role}GPU time", most, "requests/s", min(forecast.requests_per_second / most, 1.0)))
    found = _as_served(forecast, found, may_simulate)
    load = most_of_servers(forecast.system.engines, forecast.workload)
    if (busy := forecast.requests_per_second / load) > 0.01 and not closed:
        found.append(Binding("API server", load, "requests/s", min(busy, 1.0)))
    if forecast.link is not None and forecast.link.use > 0 and not closed:
        load = forecast.requests_per_second / forecast.link.use
        found.append(Binding("link", load, "requests/s", forecast.link.use))
    return sorted((each for each in found if each.load < inf), key=lambda each: each.load)


def _as_served(forecast: Forecast, found: list[Binding], may_simulate: bool) -> list[Binding]:
    """The same for one pool, so that the first limit binds at the rate which full engines were seen to serve."""
    most, served, system = forecast.state.capacity, forecast.requests_per_second, forecast.system
    if forecast.workload.rate is None or len(forecast.pools) > 1 or not found:
        return found
    if most is None or most >= most_of_servers(system.engines, forecast.workload):  # which hides what engines serve
        if not (may_simulate and _differ_by_load(forecast)):
            return found
        most = most_of_engines(system, forecast.workload)
    slots = forecast.pools[0].pool.replica.max_adapters
    if slots is not None and slots < len({each.adapter for each in forecast.workload.requests} - {None}):
        return [Binding("adapter slots", most, "requests/s", min(served / most, 1.0), "slots"), *found]
    times = most / min(each.load for each in found)
    return [each._replace(load=times * each.load, share=each.share if each.kind else min(each.share / times, 1.0))
            for each in found]  # fmt: skip


def _differ_by_load(forecast: Forecast) -> bool:
    """Whether steps with more in them cost each request less: the host's time and experts' weights are shared."""
    whole = sum(each.whole for each in forecast.phases)
    waits = sum(each.host_bound_seconds for each in forecast.phases)
    much = 0.05
    return waits > much * whole or any(part.family == "moe" for each in forecast.phases for part in each.families)


def most_running(pool: PoolRun) -> int:
    settings = pool.deployment.settings
    return int(getattr(settings, "most_running", settings.max_num_seqs))


def server_share(forecast: Forecast) -> float:
    """The share of its time in which each API server's thread works, if it keeps up."""
    pool = forecast.pools[0].pool
    costs, count = pool.replica.server, max(pool.engines.servers, pool.replica.num_servers)
    tokens = forecast.output_tokens_per_second * (costs.token + costs.part)
    return (forecast.requests_per_second * (costs.work or costs.turn) + tokens) / count
