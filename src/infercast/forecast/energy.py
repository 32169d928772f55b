"""Energy of a run: joules of its GPU boards, and with servers, building (PUE), carbon and the electricity bill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, hypot, log
from typing import Any

import numpy as np

from infercast.engines.base import Deployment, Version
from infercast.engines.tables import Table
from infercast.engines.timer import KernelTimer
from infercast.errors import UnknownNameError, require
from infercast.forecast.run import SimulatedRun
from infercast.forecast.system import System, busiest
from infercast.forecast.uncertainty import EIGHTY, uncertainty_of
from infercast.hardware import Gpu
from infercast.hardware.load import Server, server_of, servers
from infercast.lazy_classes import dataclass, replace
from infercast.predict.board_power import BoardPower, board_under
from infercast.predict.estimate import SOURCES, exposed_seconds
from infercast.serve import Record, Workload
from infercast.serve.record import PhaseTotals, ServedRequests
from infercast.shown import ReprMixin
from infercast.units import format_gpus

Batch = tuple[Table, Table]  # New tokens of each sequence, and its tokens in all
MOST_SIZES = 48  # Table sizes at which joules are computed; in between, they are interpolated
Drawing = tuple[Deployment, KernelTimer, Sequence[Record]]  # A deployment, its step timer, and what each replica did
STATIC, IDLE = "static", "idle"  # Parts other than kernel families: power while kernels run, and while none does
MOST_SEQUENCES = 256  # sequences of a batch that stands for others: more of them draw no more power while they run
KILO = 1000.0


@dataclass(frozen=True, slots=True)
class StepsEnergy:
    """Energy of one phase's steps on one GPU of each stage, summed."""

    kernel_seconds: float  # Time in kernels, including the short gaps between them
    dynamic: dict[str, float]
    static: float
    peak_watts: float

    @property
    def joules(self) -> float:
        return self.static + sum(self.dynamic.values())


def steps_energy(timer: KernelTimer, board: BoardPower, totals: PhaseTotals, batches: list[Batch]) -> StepsEnergy:
    seconds = timer.kernel_seconds(totals.rows, totals.varying, totals.slowed)
    first, *others = [np.array([[*counts], [*counts.values()]]) for counts in totals.rows]
    numbers = first[0].astype(np.int64)
    by_row = table_joules(timer, board, 0, numbers)
    parts = [rows[1] @ table_joules(timer, board, n, rows[0].astype(np.int64)) for n, rows in enumerate(others, 1)]
    parts.append(np.array(totals.varying) * attention_watts(timer, board, batches, len(totals.varying)))
    rest = np.concatenate(parts)
    steps, columns = first[1].sum(), by_row.shape[1]
    # Each row as its average step: time outside the first table is spread over all steps.
    slowed = np.array([totals.slowed.get(row, 0.0) for row in totals.rows[0]]) / first[1]
    each = timer.slowed_seconds(numbers, slowed) + seconds[columns:].sum() / steps
    work = by_row.sum(axis=1) + rest.sum() / steps
    within = np.clip((board.held_watts - board.idle_watts) * each / np.maximum(work, 1e-12), 0.0, 1.0)
    # A short step after lighter ones is over before the clock has dropped, as in the timer.
    kept = 1.0 - timer.limit_felt(numbers, slowed, each) * (1.0 - within)
    joules = np.concatenate([(first[1] * kept) @ by_row, rest * (first[1] @ kept) / steps])
    dynamic: dict[str, float] = {}
    for (_, family), value in zip(timer.kernels, joules.tolist(), strict=True):
        if value > 0:
            dynamic[family] = dynamic.get(family, 0.0) + value
    whole = float(seconds.sum())
    # Bursts of milliseconds exceed the power limit; a tenth of a second, which meters show, does not.
    peak = min(board.idle_watts + float((kept * work / each).max()), board.limit_watts)
    return StepsEnergy(whole, dynamic, board.idle_watts * whole, peak)


def within_limit(
    board: BoardPower, phases: list[tuple[str, StepsEnergy]], seconds: float
) -> list[tuple[str, StepsEnergy]]:
    """Bursts exceed the limit for milliseconds; the average over a run of this many seconds does not."""
    most = board.held_watts * seconds - board.idle_watts * max(seconds, sum(each.kernel_seconds for _, each in phases))
    share = min(1.0, max(most, 0.0) / max(sum(sum(each.dynamic.values()) for _, each in phases), 1e-12))
    return [(name, replace(each, dynamic={part: share * value for part, value in each.dynamic.items()}))
            for name, each in phases]  # fmt: skip


def table_joules(timer: KernelTimer, board: BoardPower, table: int, rows: Table) -> Table:
    """Joules above static power of each kernel (columns) in steps of each of these rows of a table."""
    chosen = np.array(sorted(set(rows.tolist())), dtype=rows.dtype)
    if chosen.size > MOST_SIZES:
        chosen = chosen[np.linspace(0, chosen.size - 1, MOST_SIZES).round().astype(np.int64)]
    seconds = timer.row_seconds(table, chosen)
    joules: Table = np.zeros(seconds.shape)
    for column, (call, launches) in enumerate(timer.row_calls(table, chosen)):
        each = seconds[:, column] / np.maximum(launches, 1)
        joules[:, column] = launches * np.asarray(board.dynamic_joules(call.op, np.maximum(each, 1e-9)))
    spread: Table = np.empty((len(rows), len(joules.T)))  # a table of drafts may have no column at all
    for column, values in enumerate(joules.T):
        spread[:, column] = np.interp(rows, chosen, values)
    return spread


def attention_watts(timer: KernelTimer, board: BoardPower, batches: list[Batch], count: int) -> Table:
    """Watts above static power of each attention kernel while it runs, on batches like these."""
    joules, seconds = np.zeros(count), np.zeros(count)
    for queries, keys in batches:
        for column, call, each in timer.sequence_calls(queries, keys):
            one = float(np.ravel(each)[0])
            joules[column] += call.count * float(np.ravel(board.dynamic_joules(call.op, one))[0])
            seconds[column] += float(np.ravel(exposed_seconds(call, one))[0])
    mean = joules.sum() / max(float(seconds.sum()), 1e-12)
    return np.where(seconds > 0, joules / np.maximum(seconds, 1e-12), mean)


@dataclass(frozen=True, slots=True)
class PoolEnergy:
    board: BoardPower
    gpus: int
    by_part: dict[str, float]
    phases: dict[str, list[tuple[PhaseTotals, StepsEnergy]]]
    tensor: int
    peak_watts: float
    half_width: float

    @property
    def joules(self) -> float:
        return sum(self.by_part.values())


def pool_energy(
    deployment: Deployment, timer: KernelTimer, records: Sequence[Record], workload: Workload, duration: float,
    version: Version,
) -> PoolEnergy:  # fmt: skip
    board, layout = board_under(deployment.gpu), deployment.layout
    phases: dict[str, list[tuple[PhaseTotals, StepsEnergy]]] = {}
    parts = {STATIC: 0.0, IDLE: 0.0}
    busy = 0.0
    for record in records:
        times, steps = 1.0 if record.span is None else duration / record.span, list[tuple[str, StepsEnergy]]()
        gpus = times * layout.tensor
        for name, totals in record.phases.items():
            if not totals.steps:
                continue
            prompts = 0
            if name == "prefill":
                served = np.flatnonzero(~np.isnan(record.last_token))
                inputs = sum([workload.requests[number].num_input for number in served.tolist()])
                prompts = round(record.share * int(inputs - record.num_cached[served].sum()))
            steps.append((name, steps_energy(timer, board, totals, typical_batches(totals, prompts))))
        for name, energy in within_limit(board, steps, layout.pipeline * duration / times):
            phases.setdefault(name, []).append((record.phases[name], energy))
            for family, value in energy.dynamic.items():
                parts[family] = parts.get(family, 0.0) + gpus * value
            parts[STATIC] += gpus * energy.static
            busy += gpus * energy.kernel_seconds
    gpus = len(records) * layout.replica_gpus
    parts[IDLE] = board.idle_watts * max(gpus * duration - busy, 0.0)
    joules = sum(parts.values())
    peaks = [energy.peak_watts for several in phases.values() for _, energy in several]
    run_spread = 0.045  # of runs on one kind of board, on H200s (benchmarks/accuracy/energy_runs.py)
    limited_spread = 0.1  # added for boards with a power limit or a locked clock: an assumption, none was measured
    waiting = 1.0 - busy / (gpus * duration)
    # What a board draws between kernels is known less well: chosen on the first runs of vLLM 0.33; of 32 measured
    # later, 81 % lie inside.
    waiting_spread = 0.4 * waiting * (1.0 - waiting)
    spreads = (board.spread, run_spread, waiting_spread)
    half = EIGHTY * hypot(*spreads, 0.0 if deployment.gpu.unlimited is None else limited_spread)
    busy_share = 0.2  # share of a run's joules that chips draw for being busy, whatever they do
    # Joules follow the time that kernels take: of kernels that keep the chip busy, and where clients wait for answers,
    # of all that is drawn meanwhile.
    follows = busy_share + (parts[STATIC] / joules if workload.rate is None else 0.0)
    about = uncertainty_of(deployment, busiest(records), version)
    half = hypot(half, follows * max(about.prompts, about.decodes))
    return PoolEnergy(board, gpus, parts, phases, layout.tensor, max(peaks, default=board.idle_watts), half)


def typical_batches(totals: PhaseTotals, prompt_tokens: int) -> list[Batch]:
    """Of a phase: ``prompt_tokens`` of prompts, and decoding sequences of one token each, or as many as they verify."""
    context = totals.context / totals.sequences
    prompt_tokens = min(prompt_tokens, totals.tokens)
    decodes = max(totals.tokens - prompt_tokens, 0)
    prompts = max(totals.sequences - decodes, 0)
    batches = []
    if prompt_tokens and prompts:
        new, count = max(1, round(prompt_tokens / prompts)), min(max(1, round(prompts / totals.steps)), MOST_SEQUENCES)
        batches.append((np.full(count, new), np.full(count, new)))
    rest = totals.sequences - (prompts if prompt_tokens else 0)
    if rest > 0 and decodes > 0:
        new, count = max(1, round(decodes / rest)), min(max(1, round(rest / totals.steps)), MOST_SEQUENCES)
        batches.append((np.full(count, new), np.full(count, new + round(context))))
    return batches


@dataclass(frozen=True, slots=True)
class Facility:
    """Servers, building and grid around the GPUs."""

    pue: float | None = None  # Watts of the building per watt of its servers; None: by the list of owned hardware, or 1
    server_watts: float | None = None  # Idle power of a server without its GPUs; None: by its kind
    server_factor: float | None = None  # What a watt of a board becomes at the wall of the server; None: as in its kind
    server: str | None = None  # The kind of server; None: the one that the GPU is usually found in
    grid_carbon: float | None = None  # Grams of CO2 per kWh; None: no carbon is reported
    electricity_price: float | None = None
    """Dollars for each kWh; None: as the price list of owned hardware has it, if it does."""

    def __post_init__(self) -> None:
        if self.server is not None and self.server not in servers():
            raise UnknownNameError("server", self.server, servers())
        bounds = {
            "pue": (1.0, 10.0), "server_watts": (0.0, 1e6), "server_factor": (1.0, 10.0), "grid_carbon": (0.0, 1e5),
            "electricity_price": (0.0, 1e3),
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            require(value is None or least <= value <= most, name, f"be a number from {least:g} to {most:g}", value)

    def or_else(self, **defaults: Any) -> Facility:
        """The same with these where nothing was said."""
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})


@dataclass(frozen=True, slots=True, repr=False)
class FacilityEnergy(ReprMixin):
    """Power and energy at the wall of the building; watts are means over the run, of all GPUs together."""

    gpu_watts: float  # Watts of the boards alone
    server_watts: float  # Watts of the servers, or of the share of them that the GPUs are
    watts: float  # Watts of the building for these servers: times PUE
    peak_watts: float  # Watts of the building while the boards draw most
    joules: float  # Joules of the run at the wall
    low: float  # 80 % interval of the joules ...
    high: float  # ... and its upper end, in joules.
    joules_per_output_token: float  # Joules at the wall
    joules_per_request: float  # Joules at the wall
    watt_hours_per_million_output_tokens: float  # Watt-hours at the wall
    grams_co2_per_hour: float | None  # Grams of CO2 per hour; None without a grid factor
    grams_co2_per_million_output_tokens: float | None  # Grams of CO2; None without a grid factor
    usd_per_hour: float | None  # Dollars of electricity alone, per hour; None without a price
    usd_per_million_output_tokens: float | None  # Dollars of electricity alone; None without a price
    pue: float  # Watts of the building for each watt of its servers, a factor
    servers: tuple[Server, ...]  # The kind of each pool, with the factors that were used

    def _words(self) -> str:
        token = f"{self.joules_per_output_token:.3g} J per output token"
        return f"{self.watts:,.0f} W on average, {token}, PUE {self.pue:g}"

    @property
    def kilowatt_hours_per_day(self) -> float:
        """If it went on like this."""
        return self.watts * 24 / KILO


def server_around(gpu: Gpu, facility: Facility) -> Server:
    """The server that a GPU is in, with what was given instead of its own factors."""
    server = server_of(gpu, facility.server)
    if facility.server_watts is not None:
        server = replace(server, base_watts=facility.server_watts)
    return server if facility.server_factor is None else replace(server, factor=facility.server_factor)


def facility_watts(boards: list[tuple[int, Server, float]], pue: float) -> float:
    return pue * sum(server.base_of(count) + server.factor * count * watts for count, server, watts in boards)


def facility_energy(energy: Energy, system: System, facility: Facility) -> FacilityEnergy:
    placed = [(pool.gpus, server_around(pool.deployment.gpu, facility)) for pool in system.pools]
    pue = facility.pue or 1.0
    pools = list(zip(placed, energy.pools, strict=True))
    server = facility_watts([(count, kind, pool.mean_watts) for (count, kind), pool in pools], 1.0)
    peak = facility_watts([(count, kind, pool.peak_watts) for (count, kind), pool in pools], pue)
    boards = energy.mean_watts * system.gpus
    watts = pue * server
    times = watts / boards
    tenth = 1.2815515655446004  # `EIGHTY` with all digits
    off = tenth * max(kind.spread for _, kind in placed)
    low, high = (exp(hypot(log(energy.joules / end), off)) for end in (energy.low, energy.high))
    hours = watts / KILO
    per_million = energy.watt_hours_per_million_output_tokens * times
    carbon, price = facility.grid_carbon, facility.electricity_price
    return FacilityEnergy(
        gpu_watts=boards, server_watts=server, watts=watts, peak_watts=peak, joules=energy.joules * times,
        low=energy.joules * times / low, high=energy.joules * times * high,
        joules_per_output_token=energy.joules_per_output_token * times,
        joules_per_request=energy.joules_per_request * times, watt_hours_per_million_output_tokens=per_million,
        grams_co2_per_hour=None if carbon is None else hours * carbon,
        grams_co2_per_million_output_tokens=None if carbon is None else per_million / KILO * carbon,
        usd_per_hour=None if price is None else hours * price,
        usd_per_million_output_tokens=None if price is None else per_million / KILO * price, pue=pue,
        servers=tuple(kind for _, kind in placed),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    name: str  # ``prefill``: steps with prompt tokens; ``decode``: those without
    steps: int
    tokens: int
    joules: float
    watts: float  # Per GPU while kernels ran, as a meter shows it: at most the board's limit
    burst_watts: float  # The same within steps: for milliseconds, until its clock is down, a board draws over its limit

    @property
    def joules_per_token(self) -> float:
        """Of the tokens that these steps computed."""
        return self.joules / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class PoolPower:
    gpus: int
    mean_watts: float  # Over the whole run
    peak_watts: float  # In the step that drew most


@dataclass(frozen=True, slots=True, repr=False)
class Energy(ReprMixin):
    """Joules and watts of all GPUs in the steady part, or else from the first request sent to the last token."""

    joules: float  # Joules of all GPUs
    low: float  # The ends of the 80 % interval of the joules; what follows from them is off by the same factors
    high: float  # Upper end of that interval, in joules
    mean_watts: float  # Per GPU, over the whole run
    peak_watts: float  # Per GPU, in the step that drew most
    idle_watts: float  # Per GPU, while nothing runs
    limit_watts: float  # What a board may draw
    gpus: int  # Number of GPUs
    by_part: dict[str, float]  # Joules by kernel family, and of ``static`` and ``idle`` power
    phases: tuple[PhaseEnergy, ...]
    pools: tuple[PoolPower, ...]  # One, or a prefill pool and a decode pool
    joules_per_output_token: float
    joules_per_token: float  # Of prompts and answers alike
    joules_per_request: float
    source: str  # What the power of the GPUs is known from: one of `predict.estimate.SOURCES`, the weakest of all pools

    def _words(self) -> str:
        token = f"{self.joules_per_output_token:.3g} J per output token"
        return f"{format_gpus(self.gpus)}, {self.mean_watts:.0f} W each on average, {token}, {self.source}"

    @property
    def watt_hours_per_million_output_tokens(self) -> float:
        """The same as joules of an output token, in the unit of electricity bills."""
        watt_hour = 3600.0
        return self.joules_per_output_token * 1e6 / watt_hour

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval as factors of the joules."""
        return self.low / self.joules, self.high / self.joules


def energy_of(forecast: SimulatedRun) -> Energy | None:
    pools = [(pool.deployment, pool.pool.timer, pool.records) for pool in forecast.pools]
    if any(deployment.gpu.stages for deployment, *_ in pools):
        return None  # stages on different GPUs have no steps of one board
    window, rates = forecast.window, (forecast.requests_per_second, forecast.output_tokens_per_second)
    seconds = forecast.duration if window is None else window[1] - window[0]
    return energy_of_pools(pools, forecast.workload, forecast.clients, seconds, rates=None if window is None else rates)


def energy_of_pools(
    pools: Iterable[Drawing], workload: Workload, clients: Record | ServedRequests, duration: float,
    version: Version = (), rates: tuple[float, float] | None = None,
) -> Energy | None:  # fmt: skip
    """The same from the records of pools; ``rates``: requests and output tokens per second of the part that counts."""
    drawn = [pool_energy(*pool, workload, duration, version) for pool in pools]
    joules = sum(pool.joules for pool in drawn)
    if joules <= 0:
        return None
    # Pools of one kind of GPU are off alike, so what they are off by is added up.
    width = sum(pool.joules * pool.half_width for pool in drawn) / joules
    gpus = sum(pool.gpus for pool in drawn)
    requests: float = len(workload.requests)
    outputs: float = int(clients.num_output.sum())
    inputs: float = sum([request.num_input for request in workload.requests])
    if rates is not None:
        inputs *= rates[0] * duration / requests
        requests, outputs = rates[0] * duration, rates[1] * duration
    parts: dict[str, float] = {}
    for pool in drawn:
        for name, value in pool.by_part.items():
            parts[name] = parts.get(name, 0.0) + value
    return Energy(
        joules=joules, low=joules * exp(-width), high=joules * exp(width), mean_watts=joules / duration / gpus,
        peak_watts=max(pool.peak_watts for pool in drawn), idle_watts=max(pool.board.idle_watts for pool in drawn),
        limit_watts=max(pool.board.limit_watts for pool in drawn), gpus=gpus,
        by_part=dict(sorted(parts.items(), key=lambda part: -part[1])), phases=tuple(_phases(drawn)),
        pools=tuple(PoolPower(pool.gpus, pool.joules / duration / pool.gpus, pool.peak_watts) for pool in drawn),
        joules_per_output_token=joules / max(outputs, 1), joules_per_token=joules / max(outputs + inputs, 1),
        joules_per_request=joules / requests, source=max((pool.board.source for pool in drawn), key=SOURCES.index),
    )  # fmt: skip


def _phases(pools: Iterable[PoolEnergy]) -> Iterable[PhaseEnergy]:
    found: dict[str, list[tuple[int, PhaseTotals, StepsEnergy]]] = {}
    pools = list(pools)
    limit = max((pool.board.limit_watts for pool in pools), default=0.0)
    for pool in pools:
        for name, several in pool.phases.items():
            found.setdefault(name, []).extend((pool.tensor, *each) for each in several)
    for name, of_all in found.items():
        joules = sum(tensor * energy.joules for tensor, _, energy in of_all)
        seconds = sum(tensor * energy.kernel_seconds for tensor, _, energy in of_all)
        steps, tokens = (sum(getattr(totals, what) for _, totals, _ in of_all) for what in ("steps", "tokens"))
        watts = joules / max(seconds, 1e-12)
        yield PhaseEnergy(name, steps, tokens, joules, min(watts, limit), watts)
