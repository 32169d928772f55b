"""One question for any system: what users see of one replica, of several behind a load balancer, or of two pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any, NamedTuple, Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InputError
from infercast.forecast import deploy, sketch
from infercast.forecast import steady as steadiness
from infercast.forecast.cost import Tariff
from infercast.forecast.energy import Facility
from infercast.forecast.fleet import Group, covering, deployed, parse_fleet, with_outages, with_spare
from infercast.forecast.intervals import jumps_over
from infercast.forecast.progress import Pace, note_cut, request_progress, time_budget, time_left
from infercast.forecast.result import Forecast, holds
from infercast.forecast.run import Outcome, Stays, assumed_of, link_run, outcome_of, part_of, pool_run, queue_of
from infercast.forecast.slo import Slo, parse_slo, quantile
from infercast.forecast.system import DEFAULT_LINK, PROXY_ROUTER, Run, System, system_of, two_pools
from infercast.forecast.uncertainty import longest_taken
from infercast.serve import Record, Workload
from infercast.serve.fleet.pool import Pool
from infercast.serve.fleet.two_pools import prompts_of, receiving
from infercast.serve.loop import Progress, StepObserver
from infercast.serve.record import ServedRequests
from infercast.serve.workload.synthetic import continued, extended

ROUGH = 2.0  # Times that errors of a run may be as large where each of its steps is simulated by itself


def simulate(
    deployment: deploy.Deployable, workload: deploy.Servable = None, router: str | None = None, *,
    gpu: deploy.GpuSource | None = None, prefill: deploy.Deployable | None = None,
    prefill_gpu: deploy.GpuSource | None = None, prefill_instances: int | None = None,
    decode_instances: int | None = None, link: str | None = None, progress: Progress | bool | None = None,
    time_limit: float | None = None, steady: bool = False, slo: Slo | str | None = None,
    price: Tariff | float | None = None, facility: Facility | None = None, fail: str | None = None,
    fleet: str | None = None, **options: Unpack[deploy.RunOptions],
) -> Forecast:  # fmt: skip
    """Simulate a workload on a deployment, with ``data_parallel_size`` replicas on all of them.

    Names do, too: ``simulate("llama-3.1-8b", gpu="h200-sxm", rate=12)`` with further ``options`` of `deploy` and
    `synthetic_workload`. A workload may be the file of a trace.

    With ``prefill``, a deployment or a model on ``prefill_gpu``, that computes prompts and ``deployment`` decodes;
    ``prefill_gpu`` alone is for the same model. A pool has ``prefill_instances`` or ``decode_instances`` independent
    copies behind one load balancer, and a ``link`` of this name joins the two: a network, or NVLink within a node.

    ``router`` names the load balancer of several replicas; that of the engine if none is named.
    ``progress`` is called with the number of requests served and the simulated seconds; True shows a bar.
    A run of open length that is not precise after ``time_limit`` seconds ends there, and its state says so.
    With ``steady``, latencies and rates leave out ramp-up and drain; it is an error if the run reached no steady state.
    A run of open length goes on until an ``slo`` is decided; the forecast then has a verdict. ``price`` is in dollars
    per GPU and hour, or a `Tariff`, and ``facility`` describes servers and building. ``fail`` says which replica fails
    when, and for how long (``0@60s+300s``), or how often any does (``mtbf=2h``); with an SLO, one more is tried.
    ``fleet`` is of replicas of several kinds, ``2xh100-sxm:tp=2 + 4xl40s:quantization=fp8``, in place of a ``gpu``;
    ``0-4xl40s`` is for the cheapest mix that keeps the ``slo``.
    """
    promise = parse_slo(slo) if isinstance(slo, str) else slo
    outages = partial(with_outages, text=fail, seed=options.get("seed", 0))
    if fleet is None:
        found, load = deploy.resolve_run(deployment, workload, gpu, options)
    if fleet is not None:
        if gpu is not None or prefill is not None or prefill_gpu is not None:
            raise InputError("fleet names the GPUs of all replicas; leave gpu, prefill and prefill_gpu out")
        groups = parse_fleet(fleet, lambda each: deploy.resolve_call(deployment, each, deploy.deploy_options(options)))
        first = groups[0][1]()
        load = deploy.resolve_workload(
            workload, deploy.load_options(options), first.settings.max_model_len, first.model
        )
        system = fleet_system(groups, router, load, promise, Tariff.of(price), facility, outages)
    elif prefill is None and prefill_gpu is None:
        between = {"prefill_instances": prefill_instances, "decode_instances": decode_instances, "link": link}
        if idle := [name for name, value in between.items() if value is not None]:
            raise InputError(f"{idle[0]} is of two pools; say prefill=... or prefill_gpu=..., or leave it out")
        system = system_of(found, router)
    else:
        shared = {} if isinstance(prefill, Deployment) else deploy.deploy_options(options)
        first = deploy.resolve_deployment(deployment if prefill is None else prefill, prefill_gpu, shared)
        instances = prefill_instances or 1, decode_instances or 1
        system = two_pools(first, found, instances=instances, link=link or DEFAULT_LINK, router=router or PROXY_ROUTER)
    system = outages(system)
    with request_progress(progress, len(load.requests)) as tell, time_budget(time_limit):
        made = simulate_system(system, load, slo=promise, progress=tell, steady=steady)
    forecast = replace(made, tariff=Tariff.of(price), facility=facility or Facility())
    return forecast if promise is None else forecast.promised(promise)


def fleet_system(
    groups: Sequence[Group], router: str | None, workload: Workload, slo: Slo | None, tariff: Tariff,
    facility: Facility | None, outages: Callable[[System], System] = lambda system: system,
) -> System:  # fmt: skip
    """A fleet, or the cheapest mix of its kinds that keeps an SLO, with replicas that fail if ``outages`` has any."""

    def price_of(deployment: Deployment) -> float | None:
        price = tariff.price(deployment.gpu.name, facility)
        return None if price is None else price.per_hour * deployment.layout.gpus

    def keeps(system: System, promise: Slo) -> bool:
        system = outages(system)
        return holds(forecast_of(system, serve_system(system, workload, slo=promise, medians=lambda: False)), promise)

    return deployed(groups, router, workload, price_of, None if slo is None else partial(keeps, promise=slo))


class SystemRun(NamedTuple):
    """What takes the time of a simulation: the requests in the end, what became of them, and how the system copes."""

    workload: Workload
    run: Run
    steady: steadiness.SteadyState
    state: steadiness.State

    def part(self, *, asked: bool = False) -> steadiness.SteadyState | None:
        """What results are of, if not of the whole run; a steady part that is ``asked`` for must be there."""
        return part_of(self.steady, self.state, asked, self.workload.open_ended)


def simulate_system(system: System, workload: Workload, *, steady: bool = False, **how: Any) -> Forecast:
    """Simulate a workload, of an open-ended one as much as a steady result takes; ``how`` is for `serve_system`."""
    if system.is_fleet and not system.weights:  # so that its load balancer can give each what it can serve
        rates = [steadiness.full_rate(pool.replica, system.as_served(workload)) for pool in system.pools]
        system = system._replace(weights=tuple(rate / max(rates) for rate in rates))
    found = forecast_of(system, serve_system(system, workload, steady=steady, **how), steady=steady)
    if (slo := how.get("slo")) is None or system.pools[0].engines.outages is None:
        return found
    spare = with_spare(system)
    return replace(found, spare=forecast_of(spare, serve_system(spare, found.workload, slo=slo)))


def serve_system(
    system: System, workload: Workload, *, watch: Callable[[Workload], Sequence[Sequence[StepObserver]]] = lambda _: (),
    progress: Progress | None = None, steady: bool = False, run: Run | None = None,
    capacity: Callable[[], float] | None = None, slo: Slo | None = None, medians: Callable[[], bool] = lambda: True,
    rejects: float = inf, check: Callable[[ServedRequests], None] = lambda _: None,
) -> SystemRun:  # fmt: skip
    """Serve a workload; of an open-ended one as much as a steady result takes (`forecast.steady`).

    ``watch`` returns for each pool one step observer a replica, which may see more requests than the workload has.
    ``run`` is a run of the workload that was made before. ``capacity`` is the request rate of the system at saturation,
    for callers that simulate many rates and compute it once. The run goes on until ``slo`` and, with ``medians``, the
    median latencies are known well, no longer than until it misses the SLO by ``rejects`` standard errors. ``check`` is
    given what clients saw whenever the run is judged, before ``medians`` is asked, and may raise. Within a
    `time_budget` a run of open length goes on for as long as that allows.
    """
    deploy.require_workload(workload)
    workload = covering(system, system.as_served(workload))
    most = cache(capacity or partial(most_requests_per_second, system, workload))
    # A run without stretches to jump over, as of a pipeline, takes ten times as long.
    rough = 1.0 if jumps_over(system) else ROUGH
    ask = partial(steadiness.further_requests, slo=slo, medians=medians, rejects=rejects, rough=rough)
    while True:
        course = _Course(system, workload, most, ask, check)
        if run is None:
            run = course.serve(watch, progress, goes_on=workload.open_ended or steady)
        workload = course.workload
        records = [record for records in run.records for record in records]
        steady_state, state, count = course.judge(run.clients, workload, records)
        if course.is_precise and steady_state.reached:
            steady_state, count = steady_state._replace(stopped=steadiness.ENOUGH), None
        if count is None:
            break
        longer = course.affordable(len(workload.requests), count)
        if longer is None:
            steady_state = steady_state._replace(stopped=steadiness.LATE, num_needed=count)
            break
        workload, run = extended(workload, longer, longest_taken(workload, system.smallest)), None
    return SystemRun(workload, run, steady_state, state)


def forecast_of(system: System, served: SystemRun, *, steady: bool = False) -> Forecast:
    """What users see of it."""
    workload, run, steady_state, state = served
    if steady_state.stopped == steadiness.LATE:
        note_cut("a run")
    part = served.part(asked=steady)
    seen = outcome_of(run.clients, part, workload)
    start = float(run.clients.sent_at.min())
    window = (start, start + seen.duration) if part is None else (start + part.begin, start + part.end)
    rate = workload.rate if part else None
    if system.is_fleet:
        ends = [*accumulate([len(records) for records in run.records], initial=0)]
        stays = [Stays(run.clients, window, rate, range(*pair)) for pair in pairwise(ends)]
    else:
        both = [run.clients] if len(run.records) == 1 else [ServedRequests(records) for records in run.records]
        stays = [Stays(each, window, rate) for each in both]
    pools = zip(system.pools, _within(run, part), stays, strict=True)
    runs = tuple(pool_run(pool, records, workload, seen.duration, stay) for pool, records, stay in pools)
    state = state._replace(assumed=assumed_of(runs, state), queue=queue_of(runs, workload, seen))
    return Forecast(
        **{field.name: getattr(seen, field.name) for field in fields(Outcome)}, workload=workload, system=system,
        pools=runs, link=link_run(system, run, workload, seen.duration), clients=run.clients, state=state,
        steady=steady_state, steady_only=part is not None,
    )  # fmt: skip


class _TooSlow(Exception):  # noqa: N818 - a reason to be content with a shorter run
    """A run that would take more than its time; it says for how many requests there is time."""


class _Course:
    """A run that may go on: its requests so far, and what is asked of it."""

    def __init__(
        self, system: System, workload: Workload, capacity: Callable[[], float],
        ask: Callable[..., tuple[int | None, str]], check: Callable[[ServedRequests], None],
    ) -> None:  # fmt: skip
        self.workload, self.is_precise, self._begin = workload, False, 0.0
        self._sketch: sketch.Sketch | None = None
        self._replica = system.smallest
        self._engines = len((system.engines if system.is_fleet else system.pools[-1].engines).replicas)
        self._first = self._replica if system.wire is None else receiving(self._replica)
        self._capacity, self._ask, self._check, self._pace, self._system = capacity, ask, check, Pace(), system

    def serve(
        self, watch: Callable[[Workload], Sequence[Sequence[StepObserver]]], progress: Progress | None, *, goes_on: bool
    ) -> Run:
        """The run; of half of the requests, and so on, if there is no time for all of an open workload."""
        # Fewer would say nothing of this load: each engine, and each client, has to come in.
        least = max(steadiness.LEAST_REQUESTS * self._engines, 3 * (self.workload.concurrency or 0))

        def on_progress(sent: int, seconds: float) -> None:
            if progress is not None:
                progress(sent, seconds)
            # One that goes on asks for time before it does.
            if sent and self.workload is workload and (fewer := self._pace.instead(count, sent, least)) < count:
                raise _TooSlow(fewer)

        while True:
            workload, count = self.workload, len(self.workload.requests)
            can_be_shorter = workload.open_ended and workload.drawn is not None and time_left() < inf
            told = on_progress if can_be_shorter else progress
            try:
                return self._system.serve(workload, watch(workload), told, self.go_on if goes_on else None)
            except _TooSlow as slow:
                self.workload = extended(workload, slow.args[0], longest_taken(workload, self._replica))
                self._pace = Pace()

    def affordable(self, count: int, wanted: int) -> int | None:
        """How many of the requests that are wanted there is time for, in a run of its own; None: for no more."""
        longer = count if self._pace.is_late else self._pace.affordable(count, wanted, again=True)
        return longer if longer > count else None

    def judge(
        self, clients: ServedRequests, workload: Workload, records: Sequence[Record],
        within: tuple[float, float] = steadiness.AGAIN,
    ) -> tuple[steadiness.SteadyState, steadiness.State, int | None]:  # fmt: skip
        """Whether it is steady, how the system copes, and how many requests it should have; None: no more."""
        self._check(clients)
        steady = steadiness.find_steady(clients, workload, self._begin)
        state = steadiness.find_state(
            self._first, workload, clients, steady, engines=self._engines, capacity=self._capacity,
            is_late=partial(self._pace.is_late_for, len(workload.requests)),
        )  # fmt: skip
        if self._system.pools[0].engines.outages is not None:
            state = steadiness.state_beside(workload, clients, self._capacity, state)
        steady = steadiness.judged(steady, state)._replace(sketch=self._sketch)
        if not workload.open_ended or workload.drawn is None:
            return steady, state, None
        planned = sum(phase.stretches for record in records for phase in record.phases.values())
        count, stopped = self._ask(clients, workload, steady, state, planned, within=within)
        return steady._replace(stopped=stopped), state, count

    def go_on(self, records: Sequence[Record], clients: ServedRequests | None = None) -> Workload | None:
        """More requests, unless those that have ended when the last one is sent are enough."""
        clients, count = clients or ServedRequests(records), len(self.workload.requests)
        done = int(np.argmax(np.isnan(clients.last_token)))
        if done < steadiness.LEAST_REQUESTS:
            return None
        known = replace(self.workload, requests=self.workload.requests[:done])
        seen = clients.first(done)
        steady, _, needed = self.judge(seen, known, records, steadiness.ONWARD)
        is_worth = needed is not None and needed - done > sketch.WORTH and jumps_over(self._system)
        if is_worth and self._sketch is None:
            room = steadiness.room_for(self._system.smallest, known.requests)
            self._sketch = sketch.sketch_of(self._system, self.workload, records, seen, room)
            steady, _, needed = self.judge(seen, known, records, steadiness.ONWARD)
        self.is_precise = steady.stopped == steadiness.ENOUGH
        if needed is None:
            return None
        # Those that have not ended would not have either at the end of the longer run.
        most = steadiness.MOST_REQUESTS
        if steady.reached:
            most = steadiness.MOST_FOR_PRECISION if self._sketch is None else steadiness.MOST_BESIDE
        wanted = min(steadiness.two_digits(needed + count - done), most)
        wanted = wanted if wanted <= count else self._pace.affordable(count, wanted)
        if wanted <= count:
            return None
        longest, number = longest_taken(self.workload, self._replica), 0
        if self._sketch is not None:
            stayed = quantile(seen.end_to_end, steadiness.STAYS / 100)
            self._begin = self._begin or (steady.begin if steady.reached else sketch.FILLING * stayed)
            number = self._sketch.evenest(self.workload, wanted, self._begin, stayed, longest)
        longer = continued(self.workload, wanted, longest, number)
        self.workload = longer or self.workload
        return longer


def _within(run: Run, part: steadiness.SteadyState | None) -> tuple[tuple[Record, ...], ...]:
    """What each replica did, summed up over the steady part if results are those of it."""
    if part is None:
        return run.records
    start = float(run.clients.sent_at.min())
    window = start + part.begin, start + part.end
    return tuple(tuple(record.within(*window) for record in records) for records in run.records)


def most_requests_per_second(system: System, workload: Workload) -> float:
    """What a system serves of such requests while others are always waiting: its engines, or its API servers."""
    return min(most_of_engines(system, workload), most_of_servers(system.engines, system.as_served(workload)))


def most_of_servers(pool: Pool, workload: Workload) -> float:
    """What API servers keep up with when they are late: then the tokens of a stream leave together, as one part."""
    replica = pool.replicas[0]
    costs, count = replica.server, max(pool.servers, replica.num_servers)
    tokens = float(np.mean([each.num_output for each in workload.requests]))
    seconds = (costs.work or costs.turn) + tokens * costs.token
    return count / seconds if seconds else inf


def most_of_engines(system: System, workload: Workload) -> float:
    workload = system.as_served(workload)
    if system.wire is not None:
        return _slowest_part(system, workload)
    pool = system.pools[0].engines
    first, engines = pool.replicas[0], len(pool.replicas)
    if not pool.lockstep:
        rates = (len(each.engines.replicas) * steadiness.full_rate(each.replica, workload) for each in system.pools)
        return sum(rates)
    # Replicas in lockstep serve less than each of them could alone.
    return steadiness.kept_full(first, workload, lambda requests: system.serve(requests).clients, engines)


def _slowest_part(system: System, workload: Workload) -> float:
    """Requests a second that two pools can serve: the slower one, or the link, decides."""
    (prefill, decode), wire = (pool.engines.replicas for pool in system.pools), system.wire
    assert wire is not None
    second = receiving(decode[0])
    mix = steadiness.typical(workload, second)
    prompts = prompts_of(mix)
    size = float(np.array(system.sequence_sizes(workload)).mean())
    return min(
        len(prefill) * steadiness.full_rate(prefill[0], prompts),
        len(decode) * steadiness.full_rate(second, mix),
        min(len(prefill) * wire.sending, wire.receiving) / size,
    )
