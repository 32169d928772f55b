"""Tables of figures: computed from bundled data within seconds, or recorded in measured runs and by others' tools."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import DATA, read_data
from infercast.errors import DoesNotFitError, InputError, UnknownNameError
from infercast.forecast.cost import price_of
from infercast.forecast.deploy import deploy
from infercast.forecast.estimate import estimate, list_kernels
from infercast.forecast.explain.breakdown import explain
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape, step_calls
from infercast.forecast.simulate import simulate
from infercast.forecast.variants import estimate_variants, variant_grid
from infercast.hardware import load_gpu
from infercast.lab.validate.compare import CLASSES, PARTS, PREFIX
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.predict.ceilings import default_ceilings
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import launch_floor, limit_seconds
from infercast.units import MILLI

Cell = str | float | None


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def cell(self, row: str, column: str) -> Cell:
        """The cell of a row that begins with these words, with bars between those of several columns."""
        words, place = row.split("|"), list(self.columns).index(column)
        for cells in self.rows:
            if [str(cell) for cell in cells[: len(words)]] == words:
                return cells[place]
        raise InputError(f"there is no row {row}")

    def only(self, places: Sequence[int], keep: Sequence[str]) -> Table:
        """The same with some of its columns, and with rows that have one of some values in a column."""
        shown = places or range(len(self.columns))
        rows = self.rows
        if keep:
            at = list(self.columns).index(keep[0])
            rows = [row for row in rows if row[at] in keep[1:]]
        return Table([self.columns[place] for place in shown], [[row[place] for place in shown] for row in rows])

    def with_median(self, name: str) -> Table:
        columns = (
            [value for row in self.rows if (value := number(row[place])) is not None]
            for place in range(1, len(self.columns))
        )
        return Table(self.columns, [*self.rows, [name, *(median(each) for each in columns)]])

    @property
    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def number(cell: Cell) -> float | None:
    """The first number of a cell, such as the mean of ``mean / median / 90th percentile``."""
    if cell is None or isinstance(cell, float | int):
        return cell
    found = re.match(r"[-+]?\d[\d,]*\.?\d*", cell)
    return None if found is None else float(found[0].replace(",", ""))


def written(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if isinstance(cell, int) or abs(cell) >= 1000 else f"{cell:.3g}"


Rows = Sequence[dict[str, Any]]
QUANTITIES = ("TTFT", "TPOT", "tokens/s")
WAYS = {"whole": "", "unseen": " unseen"}
FAMILIES = {
    "Llama 3.1": "llama", "Qwen3": r"qwen3-(0|4|8|14)", "Qwen3, experts": r"qwen3(\.5)?-(30|35)", "Gemma": "gemma",
    "Mistral": "mistral", "DeepSeek V2": "deepseek", "others": "",
}  # fmt: skip


@cache
def records() -> dict[str, Any]:
    """What benchmarks/papers/record.py wrote: runs, and tables of pages."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / "papers" / "recorded.json.gz").read_bytes()))
    return found


def runs() -> Rows:
    found: Rows = records()["runs"]
    return found


def page(figure: str) -> Table:
    return Table(**records()["tables"][figure])


def family_of(row: dict[str, Any]) -> str:
    return next(family for family, pattern in FAMILIES.items() if re.match(pattern, row["file"]))


def errors_of(rows: Rows, way: str) -> list[Cell]:
    """Median absolute errors in per cent: TTFT p50, TPOT p50, tokens a second."""
    found: list[Cell] = []
    for place in range(len(QUANTITIES)):
        pairs = [(row[way][place], row["measured"][place]) for row in rows if row["measured"][place]]
        errors = [abs(forecast / measured - 1.0) for forecast, measured in pairs]
        found.append(round(100.0 * float(np.median(errors)), 1) if errors else None)
    return found


def by_family() -> Table:
    groups = {family: [row for row in runs() if family_of(row) == family] for family in FAMILIES} | {"all": runs()}
    columns = ["models", "runs", *(f"{quantity}{tier}" for tier in WAYS.values() for quantity in QUANTITIES)]
    rows = [[name, len(rows), *(e for way in WAYS for e in errors_of(rows, way))] for name, rows in groups.items()]
    return Table(columns, rows)


def by_part() -> Table:
    """Errors of all runs, and of those with arrivals over time, with one part turned off at a time."""
    rows = runs()
    loaded = [row for row in rows if row["load"]]
    columns = ["forecast", *QUANTITIES, *(f"{what}, loaded" for what in QUANTITIES)]
    ways = {"whole": "whole", "roofline": "kernels by the roofline", "unseen": "kernels of A100 and L40S"}
    ways |= {part: f"without {part}" for part in PARTS if part in rows[0]}
    return Table(columns, [[name, *errors_of(rows, way), *errors_of(loaded, way)] for way, name in ways.items()])


def by_load() -> Table:
    """Errors by the rate at which requests arrive, with their signs' median: below 0, forecasts are too fast."""
    columns = ["load", "runs", *QUANTITIES, "TTFT, bias", "TTFT inside"]
    found = []
    for name in (*(name for _, name in CLASSES), PREFIX):
        group = [row for row in runs() if row["load"] == name]
        if group:
            bias = np.median([row["whole"][0] / row["measured"][0] - 1.0 for row in group])
            inside = np.mean([row["inside"][0] for row in group])
            ends = [round(100.0 * float(each), 1) for each in (bias, inside)]
            found.append([name, len(group), *errors_of(group, "whole"), *ends])
    return Table(columns, found)


def scatter() -> Table:
    """Every run: forecast and measured."""
    columns = ["engine", "models", "run", *(f"{what}, {side}" for what in QUANTITIES for side in ("measured", "ours"))]
    rows: list[list[Cell]] = []
    for row in runs():
        values = [row[side][place] for place in range(len(QUANTITIES)) for side in ("measured", "whole")]
        rows.append([row["engine"], family_of(row), row["label"], *values])
    return Table(columns, rows)


# Pages: ours beside ideas and tools of others.


IDEAS = ("roofline x a factor", "nearest shapes", "throughput curves", "tile network", "pipe network")


def against() -> Table:
    """Means over kernel families of a roofline, of the best other idea for each family, and of ours."""
    names = {"measured H200": "measured", "unseen B200": "unseen-b200"}
    rows: list[list[Cell]] = []
    for title, name in names.items():
        lines = {str(row[0]): [number(cell) or np.inf for cell in row[1:]] for row in page(name).rows}
        waves, ours = lines["roofline, whole waves"], lines["infercast"]
        others = [min(column) for column in zip(*(lines[idea] for idea in IDEAS), strict=True)]
        rows.append(_compared(title, *(float(np.mean(each)) for each in (waves, others, ours))))
        rows.append(_compared(f"{title}, bf16", waves[0], lines["tile network"][0], ours[0]))
    return Table(("rows of", "roofline", "other", "ours", "roofline / ours", "others / ours", "less, %"), rows)


def _compared(name: str, waves: float, others: float, ours: float) -> list[Cell]:
    return [name, waves, others, ours, waves / ours, others / ours, 100.0 * (1.0 - ours / others)]


def by_gpu() -> Table:
    """Mean errors of each GPU by a model of its own rows, and by one of all other GPUs."""
    columns, rows = page("unseen")
    found: list[list[Any]] = []
    for gpu in dict.fromkeys(row[0] for row in rows):
        own = next(row for row in rows if row[0] == gpu and row[1] == "itself")
        unseen = next(row for row in rows if row[0] == gpu and row[2] == "nothing (unseen)")
        found.append([gpu, *map(number, own[3:]), number(unseen[-1])])
    means = [float(np.mean([row[place] for row in found])) for place in range(1, len(found[0]))]
    return Table(("GPU", *columns[3:], "unseen"), [*found, ["mean of five", *means]])


def tools() -> Table:
    """Errors of other tools on static batches, and their TTFT's over ours."""
    rows: list[list[Any]] = [[*row] for row in page("tools").rows if number(row[1]) is not None]
    errors = [[number(part) for part in re.split(" / ", row[1])] for row in rows]
    ours = errors[0][0] or 1.0
    cells = [[row[0], *each, (each[0] or 0.0) / ours, row[4]] for row, each in zip(rows, errors, strict=True)]
    return Table(("tool", *QUANTITIES, "TTFT, times ours", "models of 7"), cells)


RECORDED: dict[str, Callable[[], Table]] = {
    "families": by_family, "parts": by_part, "load": by_load, "scatter": scatter,
    "against": against, "gpus": by_gpu, "tools": tools,
}  # fmt: skip


# Single kernels: by name, the cost of a prediction, waves, links, rooflines and generations.

HEADS: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
TERA = 1e12


def custom_kernels() -> Table:
    """Kernels that can be asked for by name, with the error on hidden shapes."""
    rows = [each for each in list_kernels() if each["family"] in ("prefill", "decode", "moe", "gemm") and each["rows"]]
    shown = sorted(rows, key=lambda row: (row["family"], row["error"]))
    cells: list[list[Cell]] = [
        [row["family"], row["kernel"], row["formats"], row["rows"], 100 * row["error"]] for row in shown
    ]
    attention = [row["error"] for row in rows if row["family"] in ("prefill", "decode") and row["kernel"] != "math"]
    ends: list[list[Cell]] = [["attention", name, "", "", 100 * float(pick(attention))] for name, pick in RANGE.items()]
    return Table(("family", "kernel", "formats", "rows", "error, %"), [*cells, *ends])


RANGE: dict[str, Callable[[list[float]], Any]] = {"best": min, "median": np.median, "worst": max}


def cost_of_predictions() -> Table:
    """Processor time of one estimate by a public call, and of one among a hundred thousand in one call."""
    random = np.random.default_rng(0)
    one, many = 500, 100_000
    kernels: dict[str, Callable[[Any], dict[str, Any]]] = {
        "gemm": lambda size: {"m": size, "n": 4096, "k": 4096},
        "prefill": lambda size: {"batch": 1, "q_len": size, **HEADS},
        "decode": lambda size: {"batch": 32, "kv_len": size, **HEADS},
        "moe": lambda size: {"tokens": size, "hidden": 2048, "inter": 768, "experts": 128, "topk": 8},
    }
    rows: list[list[Cell]] = []
    for name, sizes in kernels.items():
        drawn = random.integers(1, 16_384, one + many)
        start = time.process_time()
        for size in drawn[:one].tolist():
            estimate(name, "h200-sxm", **sizes(size))
        between = time.process_time()
        estimate(name, "h200-sxm", **sizes(drawn[one:]))
        each = (between - start) / one, (time.process_time() - between) / many
        rows.append([name, *(seconds / MILLI for seconds in each)])
    mean = [float(np.mean([row[place] for row in rows])) for place in (1, 2)]
    return Table(("kernel", "one call, ms", "of 100,000, ms"), [*rows, ["mean", *mean]])


def variants() -> Table:
    """Models that do not exist, ranked by their step."""
    count = 1_000_000
    sizes = {"layers": [*range(8, 97, 4)], "hidden": [*range(1024, 8193, 256)], "heads": [16, 32, 64], "kv_heads": [8]}
    grid: Any = variant_grid({**sizes, "inter": [*range(2048, 28673, 1024)]}, count, 0)
    rows: list[list[Cell]] = []
    steps: dict[str, dict[str, Any]] = {"decode, batch 1": {"context": 1024}, "prompt of 1,024": {"prompt": 1024}}
    for what, shape in steps.items():
        start = time.process_time()
        found: Any = estimate_variants("h200-sxm", **shape, **grid)
        rows.append([what, len(found.columns()["layers"]), time.process_time() - start])
    return Table(("step", "models", "CPU seconds"), rows)


def waves() -> Table:
    """A product with blocks that fill the last wave of an H200 more and less: Eq. 2 with tiles of 128 x 256."""
    gpu, n, k = load_gpu("h200-sxm"), 4096, 4096
    m = np.arange(512, 4097, 256)
    blocks = (m // 128) * (n // 256)
    count = -(-blocks // gpu.sms)
    filled = blocks / (count * gpu.sms)
    reached = 2.0 * m * n * k / np.asarray(estimate("gemm", gpu, m=m, n=n, k=k).seconds) / TERA
    by_waves = reached.max() * filled / filled[reached.argmax()]
    columns = (m, blocks, count, 100.0 * filled, by_waves, reached)
    rows = [list(row) for row in zip(*(each.tolist() for each in columns), strict=True)]
    return Table(("m", "blocks", "waves", "filled, %", "TFLOP/s by Eq. 2", "TFLOP/s, ours"), rows)


def links() -> Table:
    """All-reduces of eight GPUs: the share of the link's bandwidth that a message of each size reaches."""
    gpus = ("a100-sxm", "h200-sxm", "b200-sxm", "l40s")
    rows: list[list[Cell]] = []
    for power in range(12, 31, 2):
        row: list[Cell] = [2**power / 2**20]
        for gpu in map(load_gpu, gpus):
            op = Collective("all_reduce", np.array([2**power]), 8)
            seconds = float(np.ravel(estimate(op, gpu, condition="engine").seconds)[0])
            row.append(100.0 * op.link_share * 2**power / seconds / gpu.link_bandwidth(8))
        rows.append(row)
    titles = [f"{gpu} ({'NVLink' if load_gpu(gpu).is_linked(8) else 'PCIe'}), %" for gpu in gpus]
    return Table(("MiB", *titles), rows)


def roofline() -> Table:
    """Kernels of a prompt's and of a decode step: what they do for each byte, reach, and could reach."""
    deployment = deploy("qwen3-8b", "h200-sxm")
    rows: list[list[Cell]] = []
    ceilings, gpu = default_ceilings(), deployment.gpu
    for step, shape in {"prompt": prefill_shape(2048), "decode": decode_shape(64, 2048)}.items():
        calls = {call.name: call.op for call in step_calls(deployment, shape).all}
        for kernel in estimate_step(deployment, shape).kernels:
            op, seconds = calls[kernel.name], float(kernel.estimate.seconds)
            flops, moved = (float(np.ravel(each)[0]) for each in (op.flops, op.bytes_read + op.bytes_written))
            if kernel.family not in ("gemm", "attention", "lm_head"):
                continue
            limit = float(np.ravel(limit_seconds(op, gpu))[0])
            ceiling = float(np.ravel(ceilings.seconds(op, gpu))[0]) if ceilings.knows(op) else None
            share = ceiling and 100.0 * min(1.0, ceiling / seconds)
            rates = (flops / each / TERA for each in (seconds, limit))
            rows.append([step, kernel.name, flops / moved, *rates, 100.0 * limit / seconds, share])
    columns = ("step", "kernel", "FLOP/byte", "TFLOP/s", "limit", "of the limit, %", "of the ceiling, %")
    return Table(columns, rows)


def generations() -> Table:
    """The share of the hardware's limit that kernels of one shape reach on each generation of GPUs."""
    shapes: dict[str, Callable[[int], Op]] = {
        "product, bf16": lambda size: Gemm(size, 4096, 4096),
        "attention, prompt": lambda size: Attention(np.array([[size]]), np.array([[size]]), **HEADS, value_dim=128),
        "attention, decode": lambda size: Attention(
            np.ones((1, 1), dtype=int), np.array([[size]]), sequences=np.array([[32]]), **HEADS, value_dim=128
        ),
        "experts, bf16": lambda size: MoE(size, 2048, 768, 128, 8),
    }
    predictor = make_predictor("learned")
    rows: list[list[Cell]] = []
    for (name, make), size in product(shapes.items(), (256, 1024, 4096, 16384)):
        row: list[Cell] = [name, size]
        for gpu in map(load_gpu, GENERATIONS):
            op = make(size)
            seconds = float(np.ravel(predictor.seconds(op, gpu))[0])
            row.append(100.0 * (float(np.ravel(limit_seconds(op, gpu))[0]) + launch_floor(gpu)) / seconds)
        rows.append(row)
    return Table(("kernel", "tokens", *(f"{gpu}, %" for gpu in GENERATIONS)), rows)


GENERATIONS = ("a100-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "rubin-announced")


# Served requests: what a token is made of, and parallel plans against a heuristic.

LEAST = 0.005  # share of a token from which a kernel family has a column


def token_by_place() -> Table:
    """Kernel families in a token of Qwen3-8B on a GB200, by its place in the answer."""
    load: dict[str, Any] = {"rate": 4.0, "num_requests": 60, "input_len": 1000, "output_len": 2000}
    ranges = explain("qwen3-8b", gpu="gb200", **load).composition
    assert ranges is not None, "answers have second tokens"
    parts = [name for name in ranges[0].families if any(each.families[name] > LEAST * each.seconds for each in ranges)]
    rows: list[list[Cell]] = [
        [f"{each.first} to {each.last}", each.seconds / MILLI, *(each.families[name] / MILLI for name in parts)]
        for each in ranges
    ]
    return Table(("token", "all, ms", *parts), rows)


class Case(NamedTuple):
    model: str
    gpu: str
    gpus: int
    load: str
    num_requests: int
    input_len: int
    output_len: int
    network: str | None = None


LOADS = {"chats": (128, 1024, 128), "summaries": (64, 4096, 64), "long answers": (96, 256, 384)}
CASES = (
    *(Case("llama-3.1-70b", "h100-sxm", 8, name, *load) for name, load in LOADS.items()),
    *(Case("qwen3-30b-a3b", "h100-sxm", 8, name, *LOADS[name]) for name in ("chats", "summaries")),
    Case("llama-3.1-405b", "h100-sxm", 16, "chats", *LOADS["chats"], "infiniband-ndr"),
)
NODE = 8


class Run(NamedTuple):
    """One parallel plan over one load."""

    tensor: int
    pipeline: int
    data: int
    seconds: float  # Until the last request has its last token
    joules: float  # An output token
    cpu_seconds: float

    @property
    def plan(self) -> str:
        sizes = {"TP": self.tensor, "PP": self.pipeline, "DP": self.data}
        return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1)


@cache
def runs_of(case: Case) -> tuple[Run, ...]:
    """Every plan over all GPUs with tensors within a node, quickest first."""
    return tuple(sorted(_runs(case), key=lambda run: run.seconds))


def _runs(case: Case) -> Iterator[Run]:
    for tensor in (1, 2, 4, 8):
        for pipeline in (1, 2, 4):
            data, rest = divmod(case.gpus, tensor * pipeline)
            if rest or not data:
                continue
            sizes: dict[str, Any] = {
                "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "data_parallel_size": data,
            }  # fmt: skip
            network = case.network if tensor * pipeline > NODE else None
            start = time.process_time()
            try:
                deployment = deploy(case.model, case.gpu, network=network, **sizes)
            except (DoesNotFitError, InputError):
                continue
            lengths: dict[str, Any] = {"input_len": case.input_len, "output_len": case.output_len}
            found = simulate(deployment, arrival="burst", num_requests=case.num_requests, **lengths)
            joules = float("nan") if found.energy is None else found.energy.joules_per_output_token
            yield Run(tensor, pipeline, data, found.duration, joules, time.process_time() - start)


def plans() -> Table:
    """The quickest of all plans against tensor parallelism in a node and pipeline stages across nodes."""
    rows: list[list[Cell]] = []
    for case in CASES:
        found = runs_of(case)
        usual = next(run for run in found if run.tensor == NODE and run.data == 1)
        best, least = found[0], min(found, key=lambda run: run.joules)
        saved = 100.0 * (1.0 - least.joules / best.joules)
        quicker = usual.seconds / best.seconds
        rows.append(
            [case.model, case.load, usual.plan, usual.seconds, best.plan, best.seconds, quicker, least.plan, saved]
        )
    most = [max(float(row[place] or 0.0) for row in rows) for place in (6, 8)]
    rows.append(["most", "", "", None, "", None, most[0], "", most[1]])
    heads = ("model", "load", "heuristic", "s", "best", "s of it", "times", "least J", "saves, %")
    return Table(heads, rows)


def cost_of_plans() -> Table:
    """GPU time and money that simulating each case on a processor saves, all of its plans together."""
    rows: list[list[Cell]] = []
    for case in CASES:
        found = runs_of(case)
        on_gpus, here = sum(run.seconds for run in found), sum(run.cpu_seconds for run in found)
        price = price_of(case.gpu)
        core_hour = 0.05  # dollars of one virtual CPU of a cloud
        cheaper = None if price is None else on_gpus * case.gpus * price.per_hour / (here * core_hour)
        rows.append([case.model, case.load, len(found), on_gpus, here, on_gpus / here, cheaper])
    sums = [sum(float(row[place] or 0.0) for row in rows) for place in (2, 3, 4)]
    cheapest = min(float(row[6] or 0.0) for row in rows)
    rows.append(["all", "", int(sums[0]), *sums[1:], sums[1] / sums[2], cheapest])
    heads = ("model", "load", "plans", "s on GPUs", "CPU s here", "times quicker", "times cheaper")
    return Table(heads, rows)


COMPUTED: dict[str, Callable[[], Table]] = {
    "custom": custom_kernels, "cost": cost_of_predictions, "variants": variants, "waves": waves, "links": links,
    "roofline": roofline, "generations": generations, "token": token_by_place, "plans": plans,
    "planning": cost_of_plans,
}  # fmt: skip


class Claim(NamedTuple):
    what: str
    unit: str
    theirs: str
    ours: Sequence[tuple[str, str, str]]  # Figure, row and column of each part of ours
    differs: str  # In a few words

    @property
    def value(self) -> str:
        return "/".join(written(number(table_of(name).cell(row, column))) for name, row, column in self.ours)


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    title: str
    differs: str  # From what the paper shows
    command: str = ""  # Makes a recorded table again
    page: str = ""  # Where a recorded table is from, ...
    under: str = ""  # ... the heading that it is under ...
    head: str = ""  # ... and how its head begins.
    columns: Sequence[int] = ()  # Those that are shown; empty: all
    keep: Sequence[str] = ()  # A column and its values in rows that are shown; empty: all
    median: str = ""  # The name of a last row with the median of each column, if there is one
    chart: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_computed(self) -> bool:
        return self.name in COMPUTED

    @property
    def table(self) -> Table:
        return table_of(self.name).only(self.columns, self.keep)


class Paper(NamedTuple):
    name: str
    title: str
    source: str
    claims: Sequence[Claim]
    figures: Sequence[Figure]

    def figure(self, name: str) -> Figure:
        found = {each.name: each for each in self.figures}
        if name not in found:
            raise UnknownNameError(f"figure of {self.title}", name, found)
        return found[name]


@cache
def figures_declared() -> dict[str, Figure]:
    return {name: Figure(name, **each) for name, each in read_data("papers.toml")["figures"].items()}


@cache
def papers() -> dict[str, Paper]:
    declared = read_data("papers.toml")
    figures = figures_declared()
    found = {}
    for each in declared["papers"]:
        claims, shown = [Claim(**row) for row in each["claims"]], [figures[name] for name in each["figures"]]
        found[each["name"]] = Paper(**{**each, "claims": claims, "figures": shown})
    return found


def paper_named(name: str) -> Paper:
    if name not in papers():
        raise UnknownNameError("paper", name, papers())
    return papers()[name]


@cache
def table_of(figure: str) -> Table:
    """A figure's numbers: computed now, summed up from what was recorded, or as a page has them."""
    summed = COMPUTED | RECORDED
    if figure in summed:
        return summed[figure]()
    found, median = page(figure), figures_declared()[figure].median
    return found.with_median(median) if median else found
