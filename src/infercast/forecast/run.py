"""A simulated run summed up: latencies and rates, pools of replicas, cache tiers, sessions and classes of requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.speculation import Drafting
from infercast.errors import InputError, SaturatedError
from infercast.forecast.kernels import Phase, host_bound_share, summarise_phases, weakest_source
from infercast.forecast.slo import QUANTITIES, Array, Percentiles, latency_of, percentiles
from infercast.forecast.steady import CUT, FILLING, LATE, LONG, OVERLOADED, STABLE, State, SteadyState
from infercast.forecast.system import DECODE, Run, ServingPool, System, busiest
from infercast.hardware.gpu import is_left_open
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.models.lower import DRAFT_PREFIX
from infercast.predict.estimate import kind_of
from infercast.serve import Record, Workload
from infercast.serve.fleet.two_pools import Handover
from infercast.serve.record import ServedRequests
from infercast.serve.speculation import DraftCounts
from infercast.serve.workload.request import Draw
from infercast.shown import ReprMixin
from infercast.units import format_many, format_seconds

SHOWN_TURNS = 10
FULL = 0.95  # Share of the KV cache from which on it is what limits
WEIGHS, QUEUED = 0.05, 0.2  # Shares of time, and of clients, from which on something is worth a word


@dataclass(frozen=True, slots=True)
class TurnRun:
    """The n-th turns of all sessions."""

    first: int
    last: int | None  # None: all later ones
    requests: int
    input_tokens: float  # On average, the history included
    hit_share: float  # Of their prompt tokens that were in a cache
    ttft: Percentiles
    end_to_end: Percentiles

    @property
    def name(self) -> str:
        return f"{self.first}" if self.last == self.first else f"{self.first} and later"


@dataclass(frozen=True, slots=True)
class SessionsRun:
    count: int
    turns_each: float
    time: Percentiles  # From the first request sent to the last token
    waiting_share: float  # Share of that time spent waiting for the engine; the rest are pauses
    hit_share: float  # Of all prompt tokens
    turns: tuple[TurnRun, ...]


@dataclass(frozen=True, slots=True)
class ClassRun:
    name: str
    priority: int  # The smallest of its requests
    requests: int
    limits: tuple[tuple[str, float], ...]
    attainment: float | None  # Share of its requests that keep every limit; None where it has none
    ttft: Percentiles
    tpot: Percentiles | None
    end_to_end: Percentiles


def sessions_of(workload: Workload, served: ServedRequests, records: Sequence[Record]) -> SessionsRun | None:
    if not workload.in_turns and all(request.session is None for request in workload.requests):
        return None
    sessions = np.array([-1 if each.session is None else each.session for each in workload.requests])
    inside = np.flatnonzero(sessions >= 0)
    if not inside.size:
        return None
    inside = inside[np.lexsort((served.sent_at[inside], sessions[inside]))]
    _, begins, counts = np.unique(sessions[inside], return_index=True, return_counts=True)
    turn = np.arange(inside.size) - np.repeat(begins, counts) + 1
    inputs = np.array([request.num_input for request in workload.requests])
    cached = np.sum([record.num_cached for record in records], axis=0)
    sent, ended = served.sent_at[inside], served.last_token[inside]
    times = np.maximum.reduceat(ended, begins) - np.minimum.reduceat(sent, begins)
    spent = np.add.reduceat(ended - sent, begins)
    ttft, whole = served.ttft, served.end_to_end
    last, found = int(turn.max()), []
    for number in range(1, min(last, SHOWN_TURNS) + 1):
        is_rest = number == SHOWN_TURNS and last > SHOWN_TURNS
        chosen = inside[turn >= number if is_rest else turn == number]
        found.append(
            TurnRun(
                first=number, last=None if is_rest else number, requests=chosen.size,
                input_tokens=float(inputs[chosen].mean()), hit_share=float(cached[chosen].sum() / inputs[chosen].sum()),
                ttft=percentiles(ttft[chosen]), end_to_end=percentiles(whole[chosen]),
            )
        )  # fmt: skip
    return SessionsRun(
        count=counts.size, turns_each=float(counts.mean()), time=percentiles(times),
        waiting_share=float(min(1.0, spent.sum() / max(float(times.sum()), 1e-12))),
        hit_share=float(cached[inside].sum() / inputs[inside].sum()), turns=tuple(found),
    )  # fmt: skip


def classes_of(workload: Workload, served: ServedRequests) -> tuple[ClassRun, ...]:
    if not workload.classes:
        return ()
    names = np.array([request.slo_class for request in workload.requests])
    priorities = np.array([request.priority for request in workload.requests])
    latencies = {quantity: latency_of(served, quantity) for quantity in QUANTITIES}
    found = []
    for each in workload.classes:
        chosen = names == each.name
        if not chosen.any():
            continue
        kept = ~served.failed[chosen]
        for quantity, seconds in each.limits:
            kept &= ~(latencies[quantity][chosen] >= seconds)  # an answer of one token has no TPOT and keeps any
        several = latencies["tpot"][chosen & (served.num_output > 1)]
        found.append(
            ClassRun(
                name=each.name, priority=int(priorities[chosen].min()), requests=kept.size, limits=each.limits,
                attainment=float(kept.mean()) if each.limits else None, ttft=percentiles(latencies["ttft"][chosen]),
                tpot=percentiles(several) if several.size else None, end_to_end=percentiles(latencies["e2e"][chosen]),
            )
        )  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in seconds, rates a second."""

    ttft: Percentiles  # Time to first token, in seconds: from sending a request to its first output token
    tpot: Percentiles | None
    """Time per output token after the first, in seconds, of each request; None where no request has a second token."""
    inter_token: Percentiles | None  # Time between two output tokens, in seconds; None where no request has a second
    end_to_end: Percentiles  # Time from sending a request to its last output token, in seconds
    duration: float  # Seconds from the first request sent to the last token received, of the whole run
    output_tokens_per_second: float  # Output tokens per second of all GPUs together
    requests_per_second: float  # Requests per second that were completed


def part_of(steady: SteadyState, state: State, asked: bool, open_ended: bool) -> SteadyState | None:
    """The steady part if requested, or if the run decided its length; None: the whole run."""
    if asked and state.saturation is not None:
        raise SaturatedError(state.sentence)
    if asked and not steady.reached:
        raise InputError(f"a steady state was asked for and {steady.sentence}")
    return steady if asked or (open_ended and steady.reached) else None


def outcome_of(
    served: Record | ServedRequests, steady: SteadyState | None = None, workload: Workload | None = None
) -> Outcome:
    """Sum a run up; with a steady part, over it. Rates of random requests are then those of an endless run."""
    start, last = float(served.sent_at.min()), float(served.last_token.max())
    begin, end = (start, last) if steady is None else (start + steady.begin, start + steady.end)
    has_all = ~served.failed
    kept = (served.sent_at >= begin) & (served.sent_at <= end) & has_all
    if not kept.any():
        raise InputError("no client has its whole answer: all left before; raise client_timeout or lower the rate")
    ended, gaps, counts_of_all = served.timed_gaps
    within = _between(ended, begin, end)
    gaps, counts = gaps[within], counts_of_all[within]
    tokens: float = int(counts.sum()) + int(np.count_nonzero(_between(served.first_token, begin, end)))
    # With speculative decoding several tokens of an answer may come at once, which are one of these times.
    seen, all_tokens = int(counts_of_all.sum()) + served.num_output.size, int(served.num_output.sum())
    tokens = tokens if seen == all_tokens else tokens * all_tokens / seen
    within = _between(served.last_token, begin, end) & has_all
    finished = np.count_nonzero(within)
    tokens = tokens if has_all.all() else float(served.num_output[within].sum())
    requests, outputs = float(finished) / (end - begin), float(tokens) / (end - begin)
    drawn = None if steady is None or workload is None else workload.drawn
    if workload is not None and drawn is not None and drawn.spread_out and has_all.all():
        requests, outputs = _long_run(workload, drawn, requests, outputs)
    several = served.num_output[kept] > 1
    ttft, total = served.ttft[kept], served.end_to_end[kept]
    tpot = (total - ttft)[several] / (served.num_output[kept][several] - 1)
    return Outcome(
        ttft=percentiles(ttft), tpot=percentiles(tpot) if tpot.size else None,
        inter_token=percentiles(gaps, counts) if gaps.size else None, end_to_end=percentiles(total),
        duration=last - start, output_tokens_per_second=outputs, requests_per_second=requests,
    )  # fmt: skip


def _long_run(workload: Workload, drawn: Draw, requests: float, outputs: float) -> tuple[float, float]:
    """Requests and output tokens a second of an endless run in a steady state, without the luck of a part's draw."""
    length = drawn.output_lengths.mean
    if workload.num_truncated or workload.num_skipped:
        length = float(np.mean([request.num_output for request in workload.requests]))
    if workload.rate is None:
        return outputs / length, outputs
    return workload.rate, workload.rate * length


def _between(times: Array, begin: float, end: float) -> Array:
    return np.asarray((times > begin) & (times <= end))


class TierTransfer(NamedTuple):
    """Copies in one direction, of all GPUs."""

    copies: int
    num_bytes: int
    seconds: float  # Of one GPU's link, as an engine counts them: with handing over, without waiting for each other
    use: float  # Share of the run in which the busiest replica's link was in use


class TierRun(NamedTuple):
    """Over all replicas of a pool."""

    peak_use: float  # The most of the tier that was filled, of the fullest replica
    hit_rate: float  # Share of all prompt tokens that came from the tier
    queries: int  # Tokens that the GPU did not have, of requests when they started ...
    hits: int  # ... and those of them that the tier had.
    load: TierTransfer
    store: TierTransfer
    num_refused: int  # Times when the tier had no room, because copies were under way to or from all of its blocks
    held_up: float  # Seconds in which steps waited until blocks that they wanted were stored
    num_loaded: int  # Requests that waited for a copy ...
    mean_wait: float  # ... and how long each waited, from being looked at to its first step.


def tier_run(deployment: Deployment, records: Sequence[Record], num_input: int, duration: float) -> TierRun | None:
    """Sum up what the replicas did; None without a tier."""
    tiers = [record.tier for record in records if record.tier is not None]
    if not tiers:
        return None
    gpus = deployment.layout.tensor * deployment.layout.pipeline
    waits = np.concatenate([record.started_at - record.tier.load_began for record in records if record.tier])
    waits = waits[~np.isnan(waits)]

    def way(name: str) -> TierTransfer:
        links = [getattr(tier, name) for tier in tiers]
        return TierTransfer(
            copies=sum(link.num_copies for link in links), num_bytes=sum(link.num_bytes for link in links) * gpus,
            seconds=sum(link.seconds for link in links), use=min(1.0, max(link.seconds for link in links) / duration),
        )  # fmt: skip

    return TierRun(
        peak_use=max(tier.peak_blocks / tier.num_blocks for tier in tiers),
        hit_rate=float(sum(tier.num_loaded.sum() for tier in tiers)) / num_input,
        queries=sum(tier.num_queried for tier in tiers), hits=sum(tier.num_hit for tier in tiers), load=way("load"),
        store=way("store"), num_refused=sum(tier.num_refused for tier in tiers),
        held_up=sum(tier.waited for tier in tiers), num_loaded=int(waits.size),
        mean_wait=float(waits.mean()) if waits.size else 0.0,
    )  # fmt: skip


class MeanAndPeak(NamedTuple):
    """A quantity over time: its average over the part that counts, and its peak over the whole run."""

    mean: float
    peak: float


class EngineLoad(NamedTuple):
    requests: int
    busy: float  # Share of the run in which a step was under way
    running: float  # Sequences on average
    kv_peak: float
    prefix_hit_rate: float  # Share of the prompt tokens it was sent that were in its cache
    num_preemptions: int


@dataclass(frozen=True, slots=True, repr=False)
class PoolRun(ReprMixin):
    """What the replicas of one pool did."""

    pool: ServingPool
    records: tuple[Record, ...]  # Of each replica
    phases: tuple[Phase, ...]  # Of the replica that took most steps
    engines: tuple[EngineLoad, ...]
    running: MeanAndPeak  # Sequences from their first step to their last token, on all replicas together ...
    waiting: MeanAndPeak  # ... and requests from being sent to their first step.
    kv_usage: MeanAndPeak  # Of the fullest replica
    prefix_hit_rate: float  # Share of the prompt tokens that were in a cache
    num_preemptions: int
    tier: TierRun | None = None  # What the tier of its KV cache in the host's memory did, if it has one

    def _words(self) -> str:
        return f"{self.role}, {len(self.records)} x {self.deployment!r}"

    @property
    def tier_hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from that tier."""
        return None if self.tier is None else self.tier.hit_rate

    @property
    def deployment(self) -> Deployment:
        return self.pool.deployment

    @property
    def role(self) -> str:
        return self.pool.role


class GroupRun(NamedTuple):
    """What one kind of replicas did in a fleet, of requests that count."""

    name: str
    replicas: int
    gpus: int
    weight: float  # What the load balancer takes a replica to serve, compared with the largest
    share: float  # Of all requests
    ttft: Percentiles | None  # None where no request came to it
    tpot: Percentiles | None
    busy: float  # Share of the run in which a step was under way, on average over its replicas
    kv_usage: float  # Of the fullest replica, on average
    usd_per_hour: float | None = None  # Of all of them; None where the price is not known


def groups_of(run: SimulatedRun) -> tuple[GroupRun, ...]:
    served, (begin, end) = run.clients, run.steady_window if run.steady_only else (-inf, inf)
    counted, first, found = (served.sent_at >= begin) & (served.sent_at <= end) & ~served.failed, 0, []
    tpot = latency_of(served, "tpot")
    for place, pool in enumerate(run.pools):
        last = first + len(pool.records)
        own = counted & (served.engine >= first) & (served.engine < last)
        several = own & ~np.isnan(tpot)
        ttft, gaps = (percentiles(each[of]) if of.any() else None for each, of in ((served.ttft, own), (tpot, several)))
        weight, share = run.system.weights[place] if run.system.weights else 1.0, float(own.sum() / counted.sum())
        busy, count, first = sum(each.busy for each in pool.engines) / len(pool.engines), len(pool.records), last
        row = GroupRun(pool.role, count, pool.pool.gpus, weight, share, ttft, gaps, busy, pool.kv_usage.mean)
        found.append(row)
    return tuple(found)


class LinkRun(NamedTuple):
    """What happened between a prefill pool and a decode pool: the parts of the time to first token."""

    name: str
    use: float  # Share of the run in which the busiest sender's link carried something
    prompt: Percentiles  # From sending a request to the end of its prompt on the prefill pool
    wait: Percentiles  # Until the link is free
    transfer: Percentiles  # On the link
    first_step: Percentiles  # From the arrival of keys and values to the first token
    handover: Handover


class GivenUp(NamedTuple):
    """Requests of clients that left before they had whole answers, over the whole run."""

    requests: int  # That were never answered ...
    share: float  # ... as a share of all.
    retries: int  # Times that a client sent its request again
    tokens: int  # Computed in vain ...
    tokens_share: float  # ... as a share of all computed in the part that counts.


class Stays:
    """When requests came to a pool, were started and left it; averages over time follow from how long they stayed."""

    def __init__(
        self, served: ServedRequests, window: tuple[float, float], rate: float | None, engines: range | None = None
    ) -> None:
        """``window``: the part that counts; ``rate``: of an endless run like it, if it is known; ``engines``: those
        of the pool, where the requests are those of others, too.
        """
        self.served, self._window, self._rate = served, window, rate
        self._first = 0 if engines is None else engines.start
        inside = True if engines is None else (served.engine >= engines.start) & (served.engine < engines.stop)
        self._own = np.full(served.sent_at.size, inside)
        self._counted = (served.sent_at >= window[0]) & (served.sent_at <= window[1])

    def mean(self, begin: Array, end: Array, engine: int | None = None) -> float:
        """How many there were between two moments of each, on average: by Little's law where the rate is known."""
        chosen = self._own if engine is None else self.served.engine == self._first + engine
        if self._rate is None:
            first, last = self._window
            inside = np.minimum(end, last)[chosen] - np.maximum(begin, first)[chosen]
            return float(np.maximum(inside, 0.0).sum()) / (last - first)
        counted = max(int(np.count_nonzero(self._counted)), 1)
        return self._rate * float((end - begin)[chosen & self._counted].sum()) / counted

    def level(self, begin: Array, end: Array, most: float = inf, over: float = 0.0) -> MeanAndPeak:
        """The same less those ``over`` the seats, and how many at a time, no more than ``most``."""
        ends = np.concatenate([end[self._own], begin[self._own]])
        changes = np.repeat([-1, 1], ends.size // 2)[np.argsort(ends, kind="stable")]
        return MeanAndPeak(self.mean(begin, end) - over, min(float(np.cumsum(changes).max(initial=0)), most))

    def busy(self, engine: int) -> float:
        """Share of the run in which an engine had any request."""
        chosen = self.served.engine == self._first + engine
        order = np.argsort(self.served.started_at[chosen])
        begin, end = self.served.started_at[chosen][order], self.served.last_token[chosen][order]
        before = np.maximum.accumulate(np.concatenate([[-inf], end]))[:-1]
        whole = float(self.served.last_token.max() - self.served.sent_at.min())
        return float(np.maximum(end - np.maximum(begin, before), 0.0).sum()) / whole


def pool_run(
    pool: ServingPool, records: tuple[Record, ...], workload: Workload, duration: float, stays: Stays
) -> PoolRun:
    """Sum up what the replicas of a pool did in a run of ``duration`` seconds."""
    served, seats = stays.served, pool.deployment.settings.max_num_seqs
    running = [stays.mean(served.started_at, served.last_token, number) for number in range(len(records))]
    over = sum(max(each - seats, 0.0) for each in running)  # Little's law is not exact for a part of a run
    inputs = np.array([request.num_input for request in workload.requests])
    loads, usage, num_input = list[EngineLoad](), list[float](), 0
    for number, record in enumerate(records):
        own = ~np.isnan(record.last_token)
        num_input += int(inputs[own].sum())
        prompts, seconds = int(inputs[own].sum()), sum(phase.seconds for phase in record.phases.values())
        # Steps of a pipeline overlap: what they add to the run leaves out where its first stage waits for the others.
        busy = seconds / (record.span or duration) if pool.replica.stages is None else stays.busy(number)
        load = EngineLoad(
            requests=int(own.sum()), busy=min(1.0, busy), running=min(running[number], seats),
            kv_peak=record.kv_usage.peak, prefix_hit_rate=float(record.num_cached.sum()) / prompts if prompts else 0.0,
            num_preemptions=record.num_preemptions,
        )  # fmt: skip
        loads.append(load)
        usage.append(load.busy * record.kv_usage.area / seconds if seconds else 0.0)
    return PoolRun(
        pool=pool, records=records,
        phases=summarise_phases(pool.deployment, busiest(records), pool.timer, receives=pool.role == DECODE),
        engines=tuple(loads), running=stays.level(served.started_at, served.last_token, seats * len(records), over),
        waiting=stays.level(served.sent_at, served.started_at, over=-over),
        kv_usage=MeanAndPeak(max(usage), max(load.kv_peak for load in loads)),
        prefix_hit_rate=float(sum(record.num_cached.sum() for record in records)) / max(num_input, 1),
        num_preemptions=sum(load.num_preemptions for load in loads),
        tier=tier_run(pool.deployment, records, num_input, duration),
    )  # fmt: skip


def assumed_of(pools: Sequence[PoolRun], state: State) -> str:
    """What is not known of the deployment and weighs on whether it keeps up, with the option that says it."""
    found = []
    for pool in pools:
        gpu, joined = pool.deployment.gpu, pool.deployment.layout.tensor
        families = [family for phase in pool.phases for family in phase.families]
        if is_left_open(gpu, joined) and any(each.family == "collective" and each.share > WEIGHS for each in families):
            found.append("PCIe crosses two sockets, as is assumed without --pcie-topology")
        if not state.is_steady and pool.deployment.has_default_host and host_bound_share(pool.phases) > WEIGHS:
            found.append("the host is the default one, as is assumed without --host")
    return " and ".join(dict.fromkeys(found))


def queue_of(pools: Sequence[PoolRun], workload: Workload, seen: Outcome) -> str:
    """Who waits in a closed loop, where many of its clients do."""
    waiting, running = (sum(getattr(pool, name).mean for pool in pools) for name in ("waiting", "running"))
    if workload.concurrency is None or waiting < QUEUED * (waiting + running):
        return ""
    full = max(pools, key=lambda pool: pool.waiting.mean)
    seats = full.deployment.settings.max_num_seqs * len(full.records)
    why = f"max_num_seqs is {seats:,}" if full.running.peak >= seats else "prompts wait for their turn"
    why = "the KV cache is full" if full.kv_usage.peak >= FULL else why
    return (
        f"of {format_many(workload.concurrency, 'client')} {running:,.0f} are served and {waiting:,.0f} wait at a time "
        f"({why}); TTFT is {format_seconds(seen.ttft.mean)} on average"
    )


def link_run(system: System, run: Run, workload: Workload, duration: float) -> LinkRun | None:
    """Sum up what happened between two pools; None for one."""
    done, clients = run.handover, run.clients
    if done is None or system.link is None or system.wire is None:
        return None
    carried = np.bincount(ServedRequests(done.prefill).engine, system.sequence_sizes(workload))
    return LinkRun(
        name=system.link, use=float(carried.max()) / system.wire.sending / duration,
        prompt=percentiles(done.ready - clients.sent_at), wait=percentiles(done.began - done.ready),
        transfer=percentiles(done.received - done.began), first_step=percentiles(clients.first_token - done.received),
        handover=done,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedRun(Outcome):
    """A simulated run: what clients with whole answers saw, and what each pool of replicas did."""

    workload: Workload
    system: System  # As it was simulated
    pools: tuple[PoolRun, ...]  # One, or a prefill pool and a decode pool
    link: LinkRun | None  # Between two pools
    clients: ServedRequests  # The times of every request, as clients saw them
    state: State  # Stable, backlogged or overloaded
    steady: SteadyState  # Between ramp-up and drain
    steady_only: bool  # Whether latencies and rates are those of that part, and not of the whole run

    @property
    def given_up(self) -> GivenUp | None:
        """What clients left; None where none did."""
        left, tokens = (sum(getattr(each, name) for each in self.records) for name in ("num_left", "num_wasted"))
        failed = int(self.clients.failed.sum())
        computed = sum(phase.tokens for each in self.records for phase in each.phases.values())
        return (
            GivenUp(failed, failed / self.clients.failed.size, left - failed, tokens, tokens / computed)
            if left
            else None
        )

    @property
    def headline(self) -> str:
        """One sentence: whether the deployment keeps up, and which requests the numbers cover."""
        count = len(self.workload.requests)
        if self.state.word == FILLING:
            requests = format_many(count, "request")
            limit = f"; cut at {requests}" if self.steady.stopped in (CUT, LATE) else f"; the run had {requests}"
            enough = "" if self.steady.num_needed is None else f"; about {self.steady.num_needed:,} would do"
            grow = "Latencies grow with the length of the run, so there are no cost and no odds."
            return f"{self.state.sentence}{limit}{enough}. {grow}"
        if self.state.word == OVERLOADED:
            return f"{self.state.sentence}. There are no cost and no odds."
        cut = ""
        if self.steady.stopped == CUT:
            cut = " The run reached its limit before its medians were known to a few per cent."
        if self.steady.stopped == LATE:
            cut = (
                f" The time limit ended the run: about {self.steady.num_needed:,} requests would narrow medians and "
                "tails, which a longer --time-limit allows."
            )
        if self.is_short:
            cut += f" So near to saturation {count:,} requests show too low latencies: leave --num-requests out."
        if self.window is None:
            all_of = f"all {count:,} requests" if count > 1 else "the one request"
            return f"{self.state.sentence}. Numbers are of {all_of}, ramp-up and drain included.{cut}"
        return f"{self.state.sentence}. Numbers are of {self.steady.num_requests:,} requests of the steady state.{cut}"

    @property
    def is_short(self) -> bool:
        """Whether a longer run would show longer latencies, because a queue near saturation takes long to settle."""
        state, count = self.state, len(self.workload.requests)
        is_near = state.offered is not None and state.capacity is not None and state.offered > 0.85 * state.capacity
        return is_near and state.word == STABLE and not self.workload.open_ended and count < LONG

    @property
    def window(self) -> tuple[float, float] | None:
        """From when to when the requests that count were sent, where they are those of the steady part; in seconds."""
        return self.steady_window if self.steady_only else None

    @property
    def steady_window(self) -> tuple[float, float]:
        """From when to when the requests of the steady part were sent, whether others count or not; in seconds."""
        start = float(self.clients.sent_at.min())
        return start + self.steady.begin, start + self.steady.end

    @property
    def deployment(self) -> Deployment:
        """The deployment; of two pools the first."""
        return self.pools[0].deployment

    @property
    def records(self) -> tuple[Record, ...]:
        """What each replica of all pools did."""
        return tuple(record for pool in self.pools for record in pool.records)

    @property
    def engines(self) -> tuple[EngineLoad, ...]:
        """The load of each replica of all pools."""
        return tuple(load for pool in self.pools for load in pool.engines)

    @property
    def running(self) -> MeanAndPeak:
        """Sequences on all replicas together."""
        return MeanAndPeak(sum(pool.running.mean for pool in self.pools), sum(pool.running.peak for pool in self.pools))

    @property
    def waiting(self) -> MeanAndPeak:
        """Requests on all replicas together."""
        return MeanAndPeak(sum(pool.waiting.mean for pool in self.pools), sum(pool.waiting.peak for pool in self.pools))

    @property
    def kv_usage(self) -> MeanAndPeak:
        """Share of the KV blocks that are held, of the fullest replica."""
        return MeanAndPeak(
            max(pool.kv_usage.mean for pool in self.pools), max(pool.kv_usage.peak for pool in self.pools)
        )

    @property
    def num_preemptions(self) -> int:
        """On all replicas together."""
        return sum(pool.num_preemptions for pool in self.pools)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Steps with prompt tokens and steps without, of the busiest replica of each pool."""
        return tuple(phase for pool in self.pools for phase in pool.phases)

    @property
    def router(self) -> str | None:
        """The load balancer of several replicas; None where there is one."""
        several = self.system.is_fleet or any(len(pool.records) > 1 for pool in self.pools)
        return self.pools[0].pool.engines.router if several else None

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return self.system.gpus

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens that were in a cache."""
        cached = sum(int(each.num_cached.sum()) for each in self.first_records)
        return cached / sum(request.num_input for request in self.workload.requests)

    @property
    def first_records(self) -> tuple[Record, ...]:
        """Of the replicas that take requests in: all but those of a decode pool."""
        return self.records if self.system.is_fleet else self.pools[0].records

    @property
    def sessions(self) -> SessionsRun | None:
        """Latencies of turns and sessions; None without sessions."""
        return sessions_of(self.workload, self.clients, self.first_records)

    @property
    def classes(self) -> tuple[ClassRun, ...]:
        """What each class of requests saw, and how many keep its SLO."""
        return classes_of(self.workload, self.clients)

    @property
    def tier_hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from the host's memory; None without such a tier."""
        return self.pools[0].tier_hit_rate

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """Output tokens per second and GPU."""
        return self.output_tokens_per_second / self.gpus

    @property
    def saturation(self) -> State | None:
        """Set where requests arrive faster than they can be served; latencies then depend on the length of the run."""
        return self.state.saturation

    @property
    def source(self) -> str:
        """What the estimates of the largest kernels rest on: the weakest of them."""
        return weakest_source(self.phases)

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked with estimates."""
        return kind_of(self.source)

    @property
    def title(self) -> str:
        """The model and its GPUs."""
        gpus = ", ".join(f"{pool.pool.gpus} x {pool.deployment.gpu.name}" for pool in self.pools)
        return f"{self.deployment.model.name} on {gpus}"


class DraftRun(NamedTuple):
    """Of all replicas that draft."""

    drafting: Drafting
    counts: DraftCounts
    drafted_per_second: float
    accepted_per_second: float
    parts: dict[str, float]  # Shares of GPU time in steps without prompts: target's layers, head and sampling, drafting


def drafts_of(forecast: SimulatedRun) -> DraftRun | None:
    pool = forecast.pools[-1]
    drafting = pool.deployment.drafting
    if drafting is None:
        return None
    counts = DraftCounts()
    for record in pool.records:
        counts.add(record.drafts)
    drafted, accepted = (count / forecast.duration for count in (counts.num_draft_tokens, counts.num_accepted))
    return DraftRun(drafting, counts, drafted, accepted, _parts(pool.phases))


def _parts(phases: tuple[Phase, ...]) -> dict[str, float]:
    # Kernels of the target with a row for every draft
    verifying = ("lm_head", "logits_gather", "sampling", "rejection")
    found = {"target": 0.0, "verify": 0.0, "draft": 0.0}
    for family in (family for phase in phases if phase.name == "decode" for family in phase.families):
        for kernel, seconds in family.kernels:
            part = "draft" if kernel.startswith(DRAFT_PREFIX) else "verify" if kernel in verifying else "target"
            found[part] += seconds
    whole = sum(found.values())
    return {name: seconds / whole for name, seconds in found.items()} if whole else {}
