"""Launch configurations of routed experts: predicted ranking, measured trials, an engine's file (docs/tuning.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from infercast.engines.base import FILE_KEYS, Configuration, Engine, ExpertLaunches, engine_named
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.lazy_classes import dataclass, replace
from infercast.models.layout import ParallelLayout
from infercast.models.lower import token_calls
from infercast.models.spec import ModelConfig, check_layout
from infercast.ops import MoE
from infercast.predict.expert_launch import ALIGNED, ExpertTiles, Times, all_tiles, excluded, tiles_of, time_tiles

TOKENS = (1, 16, 64, 256, 512, 1024, 2048, 4096)
RELIABLE = 1.2  # Gain from which a change is recommended untried: four of five held-out gains were off by less
PROVED_ON = "hopper"  # the architecture that the constants were fitted and the ranking was tried on
Row = Mapping[str, Any]  # A measured run: sizes, ``configuration`` (None: the engine's), ``ran`` and ``latency_us``
TunedFile = dict[str, dict[str, int]]  # a configuration by number of tokens, in the words of its file
PIPES = {
    "tensor": "the tensor cores", "feed": "the road from L2", "latency": "the latency of one tile after the other",
    "dram": "memory bandwidth",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ranked:
    configuration: Configuration
    seconds: float
    speedup: float
    reason: str


@dataclass(frozen=True, slots=True)
class TunedShape:
    op: MoE
    tokens: int
    default: Ranked  # What the engine runs by its rules of thumb
    best: tuple[Ranked, ...]
    estimated: int
    excluded: dict[str, int]  # Configurations that cannot run, by the first word of why


@dataclass(frozen=True, slots=True)
class Tuning:
    model: ModelConfig
    gpu: Gpu
    layout: ParallelLayout
    op: MoE
    has_file: bool  # Whether the engine brings a file tuned for this layer; its rules of thumb are then not what runs
    shapes: tuple[TunedShape, ...]
    engine: Engine

    @property
    def launches(self) -> ExpertLaunches:
        return launches_of(self.engine)

    @property
    def needs_trial(self) -> str:
        """Why nothing is recommended untried; empty where forecasts may be enough."""
        if self.has_file:
            return f"{self.engine.title} runs a file that was tuned for this layer, and what it holds is not modelled"
        if self.gpu.kernels != PROVED_ON:
            return f"rankings were compared with measurements on {PROVED_ON.title()} GPUs only"
        return ""

    def recommended(self, shape: TunedShape) -> Ranked:
        """What to run if nothing can be tried: the default unless the first of the ranking should be far better."""
        change = bool(shape.best) and shape.best[0].speedup >= RELIABLE and not self.needs_trial
        return shape.best[0] if change else shape.default


def tune_model(
    model: ModelConfig, gpu: Gpu, *, tensor_parallel_size: int = 1, enable_expert_parallel: bool = False,
    tokens: Sequence[int] = TOKENS, top: int = 5, engine: Engine | None = None,
) -> Tuning:  # fmt: skip
    chosen = engine or engine_named()
    launches = launches_of(chosen)
    if gpu.vendor != "NVIDIA":
        raise InputError(f"launches are modelled on NVIDIA GPUs only, and {gpu.name} is none")
    layout = ParallelLayout(tensor_parallel_size, experts=enable_expert_parallel)
    check_layout(model, layout)
    op = experts_of(model, layout)
    if op is None:
        raise InputError(f"{model.name} has no routed experts, so there is nothing to tune")
    if not is_tunable(op, launches):
        known = ", ".join(launches.formats)
        raise InputError(f"experts of {model.name} are {op.weight_dtype}; Triton's kernel is modelled in {known}")
    shapes = tuple(tune_shape(replace(op, tokens=count), gpu, top, launches) for count in tokens)
    has_file = launches.has_tuned_file(op.num_local, op.inter, op.dtype, gpu)
    return Tuning(model, gpu, layout, op, has_file, shapes, chosen)


def experts_of(model: ModelConfig, layout: ParallelLayout) -> MoE | None:
    return next((call.op for call in token_calls(model, layout, 1) if isinstance(call.op, MoE)), None)


def is_tunable(op: MoE, launches: ExpertLaunches | None) -> bool:
    return launches is not None and op.dtype in launches.formats and (op.weight_dtype or op.dtype) == op.dtype


def launches_of(engine: Engine) -> ExpertLaunches:
    if engine.expert_launches is None:
        raise InputError(f"how {engine.title} launches routed experts is not modelled, so there is nothing to tune")
    return engine.expert_launches


def tune_shape(op: MoE, gpu: Gpu, top: int, launches: ExpertLaunches) -> TunedShape:
    tokens = int(op.tokens)
    usual = launches.rule_of_thumb(tokens, op.num_local, op.dtype)
    tiles, reasons = runnable(op, gpu)
    usual_estimate, estimates = time_tiles(op, gpu, tiles_of([usual])), time_tiles(op, gpu, tiles)
    base = float(usual_estimate.seconds[0])
    best = tuple(
        Ranked(
            Configuration(*tiles.one(number)),
            float(estimates.seconds[number]),
            base / float(estimates.seconds[number]),
            _why(op, usual, usual_estimate, Configuration(*tiles.one(number)), estimates, number),
        )
        for number in _choose(tiles, estimates, usual, top)
    )
    default = Ranked(usual, base, 1.0, f"waits most for {_slowest(usual_estimate)}")
    return TunedShape(op, tokens, default, best, len(tiles.rows), reasons)


def runnable(op: MoE, gpu: Gpu) -> tuple[ExpertTiles, dict[str, int]]:
    """Configurations that can run, and how many cannot, by why."""
    tiles = all_tiles()
    why = excluded(tiles, op.dtype, (op.hidden, op.inter), gpu)
    kinds = ("shared memory", "registers", "warps", "step")
    counts = Counter(next(kind for kind in kinds if kind in reason) for reason in why if reason)
    return tiles.take(np.array([not reason for reason in why])), dict(counts)


def _choose(tiles: ExpertTiles, estimates: Times, usual: Configuration, top: int) -> list[int]:
    """The fastest. Of equals the one nearest to the default, and no more than two of the same rows and columns."""
    far = np.sum([np.abs(np.log2(field / value)) for field, value in zip(tiles, usual, strict=True)], axis=0)
    order = np.lexsort((far, np.round(np.log(estimates.seconds), 3)))
    taken: list[int] = []
    same_tile: Counter[tuple[int, ...]] = Counter()
    same_step: set[tuple[int, ...]] = set()
    most_of_a_tile = 2  # configurations with the same rows and columns among the best: others are more informative
    for number in order:
        one = tiles.one(int(number))
        step = (*one[:3], *one[4:])  # all but the group
        if one == tuple(usual) or same_tile[one[:2]] == most_of_a_tile or step in same_step:
            continue
        taken.append(int(number))
        same_tile[one[:2]] += 1
        same_step.add(step)
        if len(taken) == top:
            break
    return taken


def _slowest(estimates: Times) -> str:
    return PIPES[max(PIPES, key=lambda name: float(getattr(estimates, name)[0]))]


def _why(op: MoE, usual: Configuration, base: Times, other: Configuration, estimates: Times, number: int) -> str:
    """What changes, largest saving of a pipe first, in words."""
    saved = {name: float(getattr(base, name)[0] - getattr(estimates, name)[number]) for name in PIPES}
    pipe = max(saved, key=lambda name: saved[name])
    ratio = float(getattr(base, pipe)[0] / max(getattr(estimates, pipe)[number], 1e-12))
    if ratio < 1.02:
        return "about the same by every measure"
    if pipe == "feed" and op.inter % ALIGNED and other.depth < usual.depth:
        what = (
            f"{other.depth} instead of {usual.depth} values a step, where rows of {op.inter} are loaded value by value"
        )
    else:
        what = _change(usual, other, pipe, base, estimates, number)
    return f"{what}: {PIPES[pipe]} takes {ratio:.1f} times less".replace("cores takes", "cores take")


def _change(usual: Configuration, other: Configuration, pipe: str, base: Times, estimates: Times, number: int) -> str:
    held = int(base.resident[0]), int(estimates.resident[number])
    if pipe == "latency" and held[1] > held[0]:
        return f"{held[1]} instead of {held[0]} thread blocks on an SM at once"
    if pipe == "dram" and other.group != usual.group:
        return f"{other.group} instead of {usual.group} row blocks share weights before the next are read"
    if pipe in ("feed", "dram") and other.rows > usual.rows:
        less = float(base.weight_reads[0] / estimates.weight_reads[number])
        return f"{other.rows} instead of {usual.rows} rows a tile, weights are read {less:.1f} times less often"
    if pipe == "tensor" and other.rows < usual.rows:
        padding = float(base.padding[0]), float(estimates.padding[number])
        return (
            f"{other.rows} instead of {usual.rows} rows a tile, {padding[1]:.1f} computed for one, not {padding[0]:.1f}"
        )
    if other.columns != usual.columns:
        return f"{other.columns} instead of {usual.columns} columns a tile"
    names = ("rows a tile", "columns", "values a step", "row blocks together", "warps", "stages")
    pairs = zip(other, usual, names, strict=True)
    return next(f"{new} instead of {old} {name}" for new, old, name in pairs if new != old)


@dataclass(frozen=True, slots=True)
class Tried:
    configuration: Configuration
    rank: int  # Its place in the ranking, from 1; 0 is the engine's own choice
    predicted: float
    measured: float | None  # Seconds; None if it did not run


@dataclass(frozen=True, slots=True)
class Trial:
    shape: TunedShape
    tried: tuple[Tried, ...]
    noise: float  # How far two measurements of the default lie apart, as a share

    @property
    def default(self) -> Tried:
        return next(each for each in self.tried if each.rank == 0)

    @property
    def fastest(self) -> Tried:
        """Of those that the ranking proposed, the default among them: what a user ends with."""
        ran = (each for each in self.tried if each.measured is not None)
        return min(ran, key=lambda each: each.measured or np.inf)

    @property
    def recommended(self) -> Tried:
        """The fastest that was proposed, if it is clearly faster than the default."""
        clear = 0.03  # a gain below this is chance: two runs of one configuration lay up to 2.6 % apart in our trial
        return self.fastest if self.speedup > 1.0 + max(self.noise, clear) else self.default

    @property
    def speedup(self) -> float:
        return (self.default.measured or np.nan) / (self.fastest.measured or np.nan)

    @property
    def first_speedup(self) -> float | None:
        """Of the first of the ranking alone, untried, as measured; None if it did not run."""
        first = next((each for each in self.tried if each.rank == 1), None)
        return None if first is None or not first.measured else (self.default.measured or np.nan) / first.measured


def layer_of(shape: TunedShape) -> dict[str, Any]:
    op = shape.op
    sizes = {"tokens": shape.tokens, "hidden": op.hidden, "inter": op.inter, "experts": op.num_local, "topk": op.topk}
    return sizes | {"dtype": op.dtype, "routing": op.routing}


def judge(shape: TunedShape, gpu: Gpu, rows: Iterable[Row]) -> Trial | None:
    """Compare a shape's measured rows with the prediction; None if the default did not run."""
    layer = layer_of(shape)
    own = [row for row in rows if all(row[name] == value for name, value in layer.items())]
    usual = [row for row in own if row["configuration"] is None]
    if not usual:
        return None
    seconds = {_configuration(row["configuration"]): 1e-6 * row["latency_us"] for row in own if row["configuration"]}
    times = [1e-6 * row["latency_us"] for row in usual]
    running = _configuration(usual[0]["ran"]) if "ran" in usual[0] else shape.default.configuration
    asked = [(each.configuration, rank) for rank, each in enumerate(shape.best, start=1)]
    tried = [Tried(running, 0, _seconds(shape, gpu, running), float(np.mean(times)))]
    tried += [Tried(each, rank, _seconds(shape, gpu, each), seconds.get(each)) for each, rank in asked]
    return Trial(shape, tuple(tried), max(times) / min(times) - 1.0)


def _configuration(values: Mapping[str, int]) -> Configuration:
    return Configuration(*(int(values.get(name, 0)) for name in FILE_KEYS))


def _seconds(shape: TunedShape, gpu: Gpu, configuration: Configuration) -> float:
    return float(time_tiles(replace(shape.op, tokens=shape.tokens), gpu, tiles_of([configuration])).seconds[0])


def untried_file(tuning: Tuning) -> TunedFile:
    """The recommendation by forecast alone, for every number of tokens that an engine looks up."""
    if tuning.needs_trial:
        raise InputError(f"--out needs --try here: {tuning.needs_trial}")
    asked = {shape.tokens: shape for shape in tuning.shapes}
    written = {}
    for tokens in sorted({*asked, *tuning.launches.file_tokens(tuning.op.num_local, tuning.op.dtype)}):
        shape = asked.get(tokens) or tune_shape(replace(tuning.op, tokens=tokens), tuning.gpu, 1, tuning.launches)
        written[str(tokens)] = tuning.recommended(shape).configuration.as_file()
    return written


def tried_file(tuning: Tuning, trials: Sequence[Trial]) -> TunedFile:
    """What was measured best; elsewhere the default, unless the engine brings a file with other ones."""
    op, launches = tuning.op, tuning.launches
    others = () if tuning.has_file else launches.file_tokens(op.num_local, op.dtype)
    chosen = {tokens: launches.rule_of_thumb(tokens, op.num_local, op.dtype) for tokens in others}
    chosen |= {trial.shape.tokens: trial.recommended.configuration for trial in trials}
    return {str(tokens): chosen[tokens].as_file() for tokens in sorted(chosen)}
