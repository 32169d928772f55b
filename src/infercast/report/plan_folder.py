"""The output folder of a plan: what starts it, benchmark script, candidates, Pareto chart and question."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from infercast.bundled import DATA, read_data
from infercast.engines.base import Engine, engine_named, package_of
from infercast.engines.settings import EngineCommands
from infercast.errors import InputError
from infercast.forecast.plan.candidate import Candidate, Row
from infercast.forecast.plan.evaluate import BenchmarkCheck, checks_of
from infercast.forecast.plan.question import Plan, deployed
from infercast.forecast.system import DECODE, PREFILL
from infercast.hardware import Gpu, load_gpu
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.report.deployment import flag_words, repository_of
from infercast.report.files import write_whole
from infercast.report.plan import candidates_csv
from infercast.units import GIB, MILLI, format_gpus, format_many, format_percent, format_seconds, json_text

SERVER, AMD = "server", "AMD"
PORTS = {SERVER: 0, PREFILL: 100, DECODE: 200}  # added to the engine's own port, so that pools may share a machine
SIDE_CHANNEL = 5600  # port on which pools exchange keys and values; further replicas use those above it
BLANK = re.compile(r"<(\w+)>")  # what is filled into a template
SCRIPTS = "scripts.toml"
MODEL = '"$MODEL"'
ROLES = {"server": (), "prefill": ("--is-prefill-worker",), "decode": ("--is-decode-worker",)}
SECRET = "hf-token"
START_SECONDS, EVERY = 3600, 10  # large weights take long to load: so long, asked every so often
CORES, HOST_GIB = 4, 16  # Cores of a GPU's share, and host memory beyond that of the weights, which pass through it
DRIVER_NAME = re.compile(r"(NVIDIA|Tesla|AMD) .*")


class Place:
    def __init__(self, pool: StartedPool, number: int) -> None:
        self.name = f"{pool.name}-{number}"
        side_by_side = max(1, pool.node_gpus // pool.gpus_per_machine)
        seat = number % side_by_side
        self.machine = f"{pool.name}-machine-{number * pool.nodes if pool.nodes > 1 else number // side_by_side}"
        """The machine it runs on, the first of several."""
        self.devices = range(seat * pool.gpus_per_machine, (seat + 1) * pool.gpus_per_machine)
        self.port = pool.port + seat
        self.side_port = SIDE_CHANNEL + seat * pool.gpus_per_machine


@dataclass(frozen=True, slots=True)
class StartedPool:
    name: str
    candidate: Candidate
    engine: Engine
    gpu: Gpu
    flags: tuple[str, ...]  # Of every replica, but for the model and the port
    disaggregated: bool

    def side_channel(self, port: int, host: Any) -> dict[str, Any]:
        """Variables for the exchange of keys and values between pools; empty for one pool."""
        known = self.commands.disaggregated
        if not self.disaggregated or "port_variable" not in known:
            return {}
        return {known["port_variable"]: str(port), known["host_variable"]: host}

    @property
    def commands(self) -> EngineCommands:
        return self.engine.commands

    @property
    def image(self) -> str:
        return f"{self.commands.image}:{self.commands.tag.format(version=self.engine.name.partition('@')[2])}"

    def container_words(self, model: str, port: int) -> list[str]:
        """Arguments of the container that runs one replica on one machine."""
        serve = ["--model"] if self.commands.image_serves else [*self.commands.serve]
        return [*serve, model, *self.flags, "--port", str(port)]

    @property
    def port(self) -> int:
        return self.commands.port + PORTS[self.name]

    @property
    def node_gpus(self) -> int:
        return self.gpu.gpus_per_node

    @property
    def nodes(self) -> int:
        return -(-self.candidate.layout.gpus // self.node_gpus)

    @property
    def gpus_per_machine(self) -> int:
        return -(-self.candidate.layout.gpus // self.nodes)

    @property
    def places(self) -> list[Place]:
        return [Place(self, number) for number in range(self.candidate.replicas)]

    def node_flags(self, rank: str, start: str, leader: str, *, first: bool) -> Iterator[str]:
        """Flags for one machine of several; ``rank`` and ``start`` may be shell expressions."""
        layout, known = self.candidate.layout, self.commands.several_nodes
        by_copies = layout.data > 1 and layout.replica_gpus <= self.node_gpus
        local = self.gpus_per_machine // layout.replica_gpus if by_copies else 0
        values = {"nodes": self.nodes, "rank": rank, "start": start, "leader": leader, "local": local}
        for word in known.get("copies" if by_copies else "stages", ()):
            yield word.format(**values)
        if not first:
            yield from known.get("others", ())

    @property
    def copies_per_machine(self) -> int:
        """Copies of the model that share experts on each machine."""
        return max(1, self.gpus_per_machine // self.candidate.layout.replica_gpus)

    @property
    def resource(self) -> str:
        """The name that Kubernetes gives these GPUs by ..."""
        return f"{'amd' if self.gpu.vendor == AMD else 'nvidia'}.com/gpu"

    @property
    def product(self) -> tuple[str, str] | None:
        """... and the label that nodes with them have, by the driver's name; None where that is not known."""
        name = next((alias for alias in self.gpu.aliases if DRIVER_NAME.fullmatch(alias)), None)
        label = f"{self.resource}.product{'-name' if self.gpu.vendor == AMD else ''}"
        return None if name is None else (label, name.replace(" ", "_" if self.gpu.vendor == AMD else "-"))

    @property
    def needed_format(self) -> str | None:
        """The format that the checkpoint itself must have, because the engine does not make it."""
        wanted = self.candidate.quantization
        return None if wanted is None or wanted in self.commands.on_the_fly else wanted


def pools_of(candidate: Candidate) -> list[StartedPool]:
    roles = (SERVER,) if candidate.prefill is None else (PREFILL, DECODE)
    return [_started(pool, role, len(roles) > 1) for pool, role in zip(candidate.pools, roles, strict=True)]


def _started(candidate: Candidate, name: str, disaggregated: bool) -> StartedPool:
    engine = engine_named(candidate.engine)
    flags: list[str] = list(engine.commands.always)
    for option, value in candidate.options().items():
        if option == "quantization":
            if value in engine.commands.on_the_fly:
                flags += [f"--{option}", engine.commands.on_the_fly[value]]
        else:
            flags += flag_words({option: value})
    if disaggregated:
        flags += [f"--{engine.commands.disaggregated['flag']}", engine.commands.disaggregated[name]]
    return StartedPool(name, candidate, engine, load_gpu(candidate.gpu), tuple(flags), disaggregated)


def plain_name(model: str) -> str:
    """A model's name as Kubernetes allows names: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")[:40].rstrip("-") or "model"


@cache
def _templates() -> Any:
    import yaml  # noqa: PLC0415 - most plans write no files

    return yaml.safe_load((DATA / "manifests.yaml").read_text(encoding="utf-8"))


def filled(template: str, **values: Any) -> dict[str, Any]:
    """A template of data/manifests.yaml with these values; what is not given is left out."""
    made: dict[str, Any] = _filled(_templates()[template], values)
    return made


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        blank = BLANK.fullmatch(part)
        return values.get(blank[1]) if blank else BLANK.sub(lambda found: str(values[found[1]]), part)
    if isinstance(part, dict):
        found = {key: _filled(each, values) for key, each in part.items()}
        return {key: each for key, each in found.items() if each is not None}
    if isinstance(part, list):
        entries = [(each, _filled(each, values)) for each in part]
        return [
            item for each, made in entries for item in (made if each != made and isinstance(made, list) else [made])
        ]
    return part


def yaml_text(*documents: Any, comment: str = "") -> str:
    import yaml  # noqa: PLC0415 - most plans write no files

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Without references to what occurs twice, and with scripts as they are typed."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    options = {"sort_keys": False, "allow_unicode": True, "width": 10_000}
    return head + "---\n".join(yaml.dump(each, Dumper=Dumper, **options) for each in documents)


def serve_script(pools: Sequence[StartedPool], model: str, title: str) -> str:
    several = any(pool.nodes > 1 for pool in pools)
    usage = "bash serve.sh REPLICA [RANK LEADER_ADDRESS]" if several else "bash serve.sh REPLICA"
    scripts = read_data(SCRIPTS)
    text = str(scripts["serve"]).format(title=title, usage=usage, model=model)
    text += scripts["serve_nodes"] if several else ""
    for pool in pools:
        if pool.needed_format is not None:
            text += f"# The forecast is of {pool.needed_format} weights: MODEL must be a checkpoint in that format.\n"
        if (watts := pool.candidate.power_limit) is not None:
            text += f"# The forecast holds each GPU at {watts:g} W: sudo nvidia-smi -pl {watts:g}\n"
    text += '\ncase "${1:-}" in\n'
    for pool in pools:
        for place in pool.places:
            text += _branch(pool, place)
    names = " ".join(place.name for pool in pools for place in pool.places)
    return text + f'*)\n  echo "say which replica: {names}" >&2\n  exit 2\n  ;;\nesac\n'


def _branch(pool: StartedPool, place: Place) -> str:
    where = f"on {place.machine}" if pool.nodes == 1 else f"on {pool.nodes} machines from {place.machine} on"
    lines = [f"{place.name})  # {where}"]
    lines.append(f"  export CUDA_VISIBLE_DEVICES={','.join(map(str, place.devices))}")
    channel = pool.side_channel(place.side_port, '"${HOST_ADDRESS:-127.0.0.1}"')
    lines += [f"  export {name}={value}" for name, value in channel.items()]
    if pool.nodes == 1:
        lines.append(f"  exec {_command(pool, MODEL, place.port)}")
    else:
        start = f"$((RANK * {pool.copies_per_machine}))"
        first, other = (list(pool.node_flags("$RANK", start, "$LEADER", first=each)) for each in (True, False))
        lines.append(f'  if [ "$RANK" = 0 ]; then\n    exec {_command(pool, MODEL, place.port, first)}\n  fi')
        lines.append(f"  exec {_command(pool, MODEL, place.port, other)}")
    return "\n".join([*lines, "  ;;\n"])


def _command(pool: StartedPool, model: str, port: int, further: Iterable[str] = ()) -> str:
    """One command line; ``further`` words with a variable keep it."""
    words = [*pool.commands.serve, model, *map(shlex.quote, pool.flags)]
    words += [f'"{word}"' if "$" in word else shlex.quote(word) for word in further]
    return " ".join([*words, "--port", str(port)])


def command_lines(plan: Plan) -> list[str]:
    pools = pools_of(plan.winner.candidate) if plan.winner else []
    model = repository_of(plan.question.model)
    return [f"pip install {package_of(engine_named(pool.candidate.engine))} && "
            + shlex.join([*pool.commands.serve, model, *pool.flags]) for pool in pools]  # fmt: skip


def manifests(pools: Sequence[StartedPool], model: str, name: str, title: str, weights: float) -> str:
    """``kubernetes.yaml``; ``weights``: bytes of the checkpoint."""
    documents = []
    for pool in pools:
        common: dict[str, Any] = {"name": f"{name}-{pool.name}", "cache": f"{name}-cache", "labels": {}}
        common["labels"] = {"app": common["name"]}
        leader, several = {**common["labels"], "role": "leader"}, pool.nodes > 1
        command = (
            shell_command(pool, model, first=True) if several else {"args": pool.container_words(model, pool.port)}
        )
        values = {**common, "replicas": pool.candidate.replicas, "pod": _pod(pool, weights, {**common, **command})}
        if several:
            other = _pod(pool, weights, {**common, **shell_command(pool, model, first=False)}, answers=False)
            values |= {"nodes": pool.nodes, "leader_labels": leader, "worker": other}
        documents.append(filled("leader_worker_set" if several else "deployment", **values))
        ports = {"public_port": pool.commands.port, "port": pool.port}
        documents.append(filled("service", **common, **ports, selector=leader if several else common["labels"]))
    comment = f"{title}\nkubectl create secret generic {SECRET} --from-literal=HF_TOKEN=...\nkubectl apply -f FILE"
    return yaml_text(*documents, _claim(pools, name, weights), comment=comment)


def _claim(pools: Sequence[StartedPool], name: str, weights: float) -> dict[str, Any]:
    """Where pods keep the checkpoint, so that only the first downloads it."""
    one = sum(pool.candidate.replicas * pool.nodes for pool in pools) == 1
    access = "ReadWriteOnce" if one else "ReadWriteMany"
    return filled("claim", cache=f"{name}-cache", access=access, size=_room(weights))


def _room(weights: float) -> str:
    return f"{max(1, round(1.5 * weights / GIB))}Gi"


def shell_command(pool: StartedPool, model: str, *, first: bool) -> dict[str, Any]:
    """One pod of a group, which finds its place in the variables that a LeaderWorkerSet gives it."""
    start = f"$((LWS_WORKER_INDEX * {pool.copies_per_machine}))"
    further = pool.node_flags("$LWS_WORKER_INDEX", start, "$LWS_LEADER_ADDRESS", first=first)
    command = _command(pool, shlex.quote(model), pool.port, further)
    return {"command": ["/bin/sh", "-c"], "args": [f"exec {command}"]}


def _pod(pool: StartedPool, weights: float, values: Mapping[str, Any], *, answers: bool = True) -> dict[str, Any]:
    """One pod; ``answers``: whether it takes requests."""
    told = {**values, "pool": pool.name, "image": pool.image, "secret": SECRET, "resource": pool.resource}
    told |= {"side_channel": _side_channel(pool), "node_selector": pool.product and dict([pool.product])}
    if answers:
        probe = {"httpGet": {"path": pool.commands.health, "port": pool.port}, "periodSeconds": EVERY}
        told["ports"] = [{"containerPort": pool.port, "name": "http"}]
        told["startup"] = {**probe, "failureThreshold": START_SECONDS // EVERY}
        told |= {"readiness": probe, "liveness": {**probe, "timeoutSeconds": EVERY, "failureThreshold": 6}}
    share = {"cpu": str(CORES * pool.gpus_per_machine), "memory": f"{HOST_GIB + round(weights / pool.nodes / GIB)}Gi"}
    return filled("pod", **told, resources=_resources(pool, **share))


def _resources(pool: StartedPool, **others: str) -> dict[str, Any]:
    gpus = {pool.resource: str(pool.gpus_per_machine)}
    return {"limits": gpus, "requests": {**gpus, **others}}


def _side_channel(pool: StartedPool) -> list[dict[str, Any]]:
    variables = pool.side_channel(SIDE_CHANNEL, {"fieldRef": {"fieldPath": "status.podIP"}})
    keys = ("value", "valueFrom")
    return [{"name": name, key: value} for key, (name, value) in zip(keys, variables.items(), strict=False)]


def compose_file(pools: Sequence[StartedPool], model: str, title: str) -> str | None:
    """``compose.yaml``; None where a replica spans machines, which compose does not start."""
    if any(pool.nodes > 1 for pool in pools):
        return None
    services = {place.name: _compose_service(pool, place, model) for pool in pools for place in pool.places}
    machines = sorted({place.machine for pool in pools for place in pool.places})
    how = "\n".join(f"docker compose --profile {machine} up" for machine in machines)
    tree = {"services": services, "volumes": {"huggingface": {}}}
    return yaml_text(tree, comment=f"{title}\nOn each machine its own:\n{how}")


def _compose_service(pool: StartedPool, place: Place, model: str) -> Any:
    environment = {"HF_TOKEN": "${HF_TOKEN:-}", **pool.side_channel(place.side_port, "${HOST_ADDRESS:-127.0.0.1}")}
    args, devices = pool.container_words(model, place.port), [str(each) for each in place.devices]
    told = {"machine": place.machine, "image": pool.image, "port": place.port, "health": pool.commands.health}
    return filled("compose_service", **told, args=args, environment=environment, devices=devices)


def llm_d_values(pools: Sequence[StartedPool], model: str, weights: float, title: str) -> str | None:
    """``llm-d-values.yaml``; None for an engine that llm-d does not start. ``weights``: bytes of the checkpoint."""
    if any("llm_d_image" not in pool.commands.elsewhere for pool in pools):
        return None
    two = len(pools) > 1
    values = filled(
        "llm_d", multinode=any(pool.nodes > 1 for pool in pools), model=model, plain=plain_name(model), secret=SECRET,
        size=_room(weights), public_port=pools[0].commands.port, disaggregated=two, decode=_pool(pools[-1], model),
        prefill=_pool(pools[0], model) if two else {"create": False},
        brand={"type": "amd"} if pools[0].gpu.vendor == AMD else None,
    )  # fmt: skip
    return yaml_text(values, comment=f"{title}\nhelm install NAME llm-d-modelservice/llm-d-modelservice -f FILE")


def _pool(pool: StartedPool, model: str) -> Any:
    layout, product = pool.candidate.layout, pool.product
    told = {"pool": pool.name, "replicas": pool.candidate.replicas, "tensor": layout.tensor, "data": layout.data}
    return filled(
        "llm_d_pool", **told, **_llm_d_command(pool, model), workers=pool.nodes if pool.nodes > 1 else None,
        accelerator=product and {"labelKey": product[0], "labelValues": [product[1]]}, resources=_resources(pool),
        image=f"{pool.commands.elsewhere['llm_d_image']}:latest", side_channel_list=_side_channel(pool),
        ports=[{"containerPort": SIDE_CHANNEL, "name": "side-channel"}] if pool.disaggregated else [],
    )  # fmt: skip


def _llm_d_command(pool: StartedPool, model: str) -> dict[str, Any]:
    """What the chart starts by itself, or over several nodes a command of our own."""
    if pool.nodes == 1:
        return {"model_command": pool.commands.elsewhere["llm_d_command"], "args": _without_sizes(pool.flags)}
    first, other = (shell_command(pool, model, first=each)["args"][0] for each in (True, False))
    sidecar_port = 8200  # where an engine listens behind the chart's proxy
    port = pool.commands.port if pool.name == PREFILL or not pool.disaggregated else sidecar_port
    first, other = (text.replace(f"--port {pool.port}", f"--port {port}") for text in (first, other))
    script = f'if [ "${{LWS_WORKER_INDEX:-0}}" = 0 ]; then\n  {first}\nfi\n{other}\n'
    return {"model_command": "custom", "command": ["/bin/sh", "-c"], "args": [script]}


def _without_sizes(flags: Sequence[str]) -> list[str]:
    chart_sets = ("--tensor-parallel-size", "--data-parallel-size")  # flags that the chart makes of ``parallelism``
    return [word for before, word in zip(("", *flags), flags, strict=False) if not {before, word} & {*chart_sets}]


def dynamo_graph(pools: Sequence[StartedPool], model: str, name: str, title: str, weights: float) -> str | None:
    """``dynamo.yaml``; None for an engine that Dynamo does not start. ``weights``: bytes of the checkpoint."""
    if any("dynamo_module" not in pool.commands.elsewhere for pool in pools):
        return None
    image = f"{pools[0].commands.elsewhere['dynamo_image']}:${{VERSION}}"
    workers = {f"{pool.name.title()}Worker": _worker(pool, model, f"{name}-cache") for pool in pools}
    graph = filled("dynamo", name=name, services={"Frontend": filled("dynamo_frontend", image=image), **workers})
    comment = f"{title}\nVERSION=... envsubst '$VERSION' < FILE | kubectl apply -f -"
    return yaml_text(graph, _claim(pools, name, weights), comment=comment)


def _worker(pool: StartedPool, model: str, cache: str) -> Any:
    known = pool.commands.elsewhere
    transfer = f"--{pool.commands.disaggregated.get('flag', '')}"
    words = list(pool.flags[len(pool.commands.always) :])  # Dynamo is what clients reach
    roles = list(ROLES[pool.name])
    if "dynamo_keeps_flags" in known:
        roles = []
    elif transfer in words:  # Dynamo joins its pools itself
        at = words.index(transfer)
        del words[at : at + 2]
    return filled(
        "dynamo_worker", secret=SECRET, replicas=pool.candidate.replicas, gpus=str(pool.gpus_per_machine), cache=cache,
        role=pool.name if pool.disaggregated else None, image=f"{known['dynamo_image']}:${{VERSION}}",
        multinode={"nodeCount": pool.nodes} if pool.nodes > 1 else None, args=["--model", model, *words, *roles],
        node_selector=pool.product and dict([pool.product]), command=["python3", "-m", known["dynamo_module"]],
        gpu_type=pool.resource if pool.gpu.vendor == AMD else None,
    )  # fmt: skip


KEYS = {"p50": "median", "p99": "p99", "mean": "mean"}  # as the benchmark names them


def bench_script(checks: Sequence[BenchmarkCheck], commands: EngineCommands, model: str, title: str) -> str:
    bench = shlex.join(commands.bench)
    scripts = read_data(SCRIPTS)
    text = str(scripts["bench"]).format(title=title, port=commands.port, model=model)
    for check in checks:
        values = {name: getattr(check, name) for name in ("rate", "requests", "num_input", "num_output")}
        name = f"rate-{check.rate:g}.json"
        text += scripts["bench_run"].format(bench=bench, flags=commands.bench_flags.format(name=name), **values)
    forecasts = {f"{check.rate:g}": _rows(check, commands.bench_end_to_end) for check in checks}
    return text + str(scripts["bench_compare"]).format(forecasts=json_text(forecasts))


def _rows(check: BenchmarkCheck, end_to_end: str) -> list[tuple[str, float, float, float, str]]:
    """Name, forecast, the ends of its interval, and the benchmark's key."""
    forecast, intervals = check.forecast, check.intervals
    rows = []
    for name, values, band in (
        ("ttft", forecast.ttft, intervals.ttft),
        ("tpot", forecast.tpot, intervals.tpot),
        (end_to_end, forecast.end_to_end, intervals.end_to_end),
    ):
        if values is None or band is None:
            continue
        for which, key in KEYS.items():
            ends = (getattr(each, which) / MILLI for each in (values, band.low, band.high))
            middle, low, high = (round(each, 3) for each in ends)
            rows.append((f"{name} {which} ms", middle, low, high, f"{key}_{name}_ms"))
    rates = (forecast.output_tokens_per_second, *intervals.output_tokens_per_second)
    middle, low, high = (round(check.times * each, 1) for each in rates)
    rows.append(("output tokens/s", middle, low, high, "output_throughput"))
    return rows


WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP, BELOW = 960, 420, 70, 64, 370, 90, 60
DEEP = HEIGHT - TOP - BELOW


class LogAxis(NamedTuple):
    """A logarithmic axis, from pixel ``begin`` to pixel ``end``."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.begin + share * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[float]:
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        ticks = (1.0, 2.0, 5.0)
        digits = ticks if self.high > 10 * self.low else range(1, 10)
        found = [digit * 10.0**power for power in powers for digit in digits]
        return [tick for tick in found if self.low <= tick <= self.high]


def pareto_svg(plan: Plan) -> str | None:
    """``pareto.svg``; None where nothing was simulated."""
    rows = [row for row in plan.rows if row.figures is not None and row.figures.state != "overloaded"]
    if not rows:
        return None
    (across, label), question = _across(plan, rows), plan.question
    ring = "" if plan.winner is None else f"; ringed: {plan.winner.candidate}"
    legend = f"{len(rows):,} simulated candidates; blue: no other is better in all{ring}"
    title = f"{question.model}, {question.rate:.3g} requests/s, {question.slo}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Candidates of a plan: {label} against TTFT and TPOT">',
        f"<style>{read_data(SCRIPTS)['pareto_style']}</style>",
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text class="small" x="{LEFT}" y="42">{escape(legend)}</text>',
    ]
    for number, name in enumerate(("ttft", "tpot")):
        parts += _panel(plan, rows, across, label, name, LEFT + number * (PANEL + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(plan: Plan, rows: Sequence[Row]) -> tuple[Callable[[Row], float], str]:
    """What is spent: energy where that is the objective, else money, or GPUs where a price is not known."""
    goal = plan.question.goal
    if goal.name == "energy" and all(row.figures is not None and row.figures.drawn is not None for row in rows):
        return goal.value, "J per output token at the wall"
    if all(row.cost is not None for row in rows):
        return (lambda row: row.cost or 0.0), "$ per hour"
    return (lambda row: float(row.gpus)), "GPUs"


def _panel(
    plan: Plan, rows: Sequence[Row], across: Callable[[Row], float], label: str, name: str, left: float
) -> Iterator[str]:
    limits = [limit for limit in plan.question.slo.limits if limit.quantity == name]
    which = "p99" if not limits or limits[0].percentile is None else f"p{limits[0].percentile:g}"
    which = which if which in ("p50", "p90", "p95", "p99") else "p99"

    def up(row: Row) -> float | None:
        values = None if row.figures is None else getattr(row.figures, name)
        return None if values is None else float(getattr(values, which))

    points = [(across(row), height, row) for row in rows if (height := up(row))]
    if not points:
        return
    heights = [height for _, height, _ in points] + [limit.seconds for limit in limits]
    wide = LogAxis(*_around([each for each, _, _ in points]), left, left + PANEL)
    tall = LogAxis(*_around(heights), TOP + DEEP, TOP)
    yield from _frame(wide, tall, label, f"{name.upper()} {which}", left)
    for limit in limits:
        y = tall.at(limit.seconds)
        tip = f"<title>{escape(str(limit))}</title>"
        yield f'<line class="limit" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}">{tip}</line>'
    best = {row.candidate for row in plan.front}
    front = [(each, height, row) for each, height, row in points if row.candidate in best]
    most_named = 6  # fronts with more points than this are not labelled
    for each, height, row in points:
        kind = "front" if row.candidate in best else "other"
        tip = escape(f"{row.candidate}: {label} {each:.4g}, {format_seconds(height)}")
        yield f'<circle class="{kind}" cx="{wide.at(each)}" cy="{tall.at(height)}" r="4"><title>{tip}</title></circle>'
        if kind == "front" and len(front) <= most_named:
            name_of = escape(f"{row.candidate.replicas} x {row.candidate.layout} {row.candidate.gpu}")
            yield f'<text class="small" x="{wide.at(each) + 8}" y="{tall.at(height) - 8}">{name_of}</text>'
    if len(front) > 1:
        path = " ".join(f"{wide.at(each)},{tall.at(height)}" for each, height, _ in sorted(front, key=lambda p: p[:2]))
        yield f'<polyline class="line" points="{path}"/>'
    for each, height, row in points:
        if plan.winner is not None and row.candidate == plan.winner.candidate:
            yield f'<circle class="winner" cx="{wide.at(each)}" cy="{tall.at(height)}" r="8"/>'


def _frame(wide: LogAxis, tall: LogAxis, label: str, title: str, left: float) -> Iterator[str]:
    bottom = TOP + DEEP
    for tick in tall.ticks:
        y = tall.at(tick)
        yield f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}"/>'
        yield f'<text class="small" x="{left - 6}" y="{y + 4}" text-anchor="end">{format_seconds(tick)}</text>'
    for tick in wide.ticks:
        x = wide.at(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="small" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
    yield f'<path class="axis" d="M{left} {TOP} V{bottom} H{left + PANEL}"/>'
    yield f'<text x="{left + PANEL / 2}" y="{bottom + 36}" text-anchor="middle">{label}</text>'
    yield f'<text x="{left}" y="{TOP - 6}">{title}</text>'


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low / 1.3, high * 1.3) if high > 1.5 * low else (low / 2.0, high * 2.0)


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder that holds something else, before a long search and not after it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError(f"--out {folder} is not empty; name another folder, or pass --force to write into it")


def write_plan(plan: Plan, folder: Path, command: str, *, force: bool = False) -> list[Path]:
    """Write all files of a plan; each appears whole or not at all. ``command`` asks the same question again."""
    check_folder(folder, force=force)
    files = plan_files(plan, command)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"--out {folder} cannot be made: {problem.strerror or problem}") from None
    written = []
    for name, text in files.items():
        path = folder / name
        write_whole(path, [text] if isinstance(text, str) else text)
        if path.suffix == ".sh":
            os.chmod(path, 0o755)
        written.append(path)
    return written


def plan_files(plan: Plan, command: str) -> dict[str, str | Iterable[str]]:
    """Names and texts; what starts something only where there is a winner."""
    files: dict[str, str | Iterable[str] | None] = {}
    if plan.winner is not None:
        files |= _starting(plan, plan.winner)
    files["candidates.csv"] = candidates_csv(plan)
    files["pareto.svg"] = pareto_svg(plan)
    files["again.sh"] = f"#!/usr/bin/env bash\n# Asks the same question again.\nset -euo pipefail\n{command}\n"
    kept = {name: text for name, text in files.items() if text is not None}
    return {"README.md": _read_me(plan, list(kept)), **kept}


def _starting(plan: Plan, winner: Row) -> Mapping[str, str | None]:
    question, candidate = plan.question, winner.candidate
    pools, model = pools_of(candidate), repository_of(question.model)
    name, title = plain_name(question.model), f"{question.model}: {candidate}"
    memories = [deployed(question.shared, pool.unit).memory for pool in candidate.pools]
    weights = max(
        memory.weights * pool.layout.replica_gpus for memory, pool in zip(memories, candidate.pools, strict=True)
    )
    return {
        "serve.sh": serve_script(pools, model, title),
        "compose.yaml": compose_file(pools, model, title),
        "kubernetes.yaml": manifests(pools, model, name, title, weights),
        "llm-d-values.yaml": llm_d_values(pools, model, weights, title),
        "dynamo.yaml": dynamo_graph(pools, model, name, title, weights),
        "bench.sh": bench_script(checks_of(question, candidate), pools[-1].commands, model, title),
    }


def _read_me(plan: Plan, names: list[str]) -> str:
    question, winner, scripts, lines = plan.question, plan.winner, read_data(SCRIPTS), command_lines(plan)
    text = f"# {question.model} for {question.rate:.3g} requests/s within {question.slo}\n\n"
    text += f"Requests: {question.workload.description or format_many(len(question.workload.requests), 'request')}.\n\n"
    if winner is None or winner.figures is None:
        text += "No candidate keeps the SLO.\n\n"
    else:
        figures = winner.figures
        cost = "" if winner.cost is None else f", ${winner.cost:,.2f} per hour"
        sure = "" if figures.odds is None else f" The SLO holds with a probability of {format_percent(figures.odds)}."
        tpot = "" if figures.tpot is None else f", TPOT p99 {format_seconds(figures.tpot.p99)}"
        text += f"Chosen: {winner.candidate}, {format_gpus(winner.gpus)}{cost}.{sure}\n"
        text += f"Forecast: TTFT p99 {format_seconds(figures.ttft.p99)}{tpot}; limited by: {figures.bottleneck}.\n\n"
    text += f"{plan.why}\n\n" if plan.why else ""
    text += "".join(f"- {sentence}\n" for sentence in plan.changes) + ("\n" if plan.changes else "")
    if lines:
        text += "```sh\n" + "\n".join(lines) + "\n```\n\n"
        if len(lines) > 1:
            text += f"{scripts['proxy']}\n\n"
        elif winner is not None and winner.candidate.replicas > 1:
            text += f"{scripts['balancer']}\n\n"
    table = "".join(f"| `{name}` | {scripts['about'][name]} |\n" for name in names)
    return f"{text}| file | |\n| --- | --- |\n{table}"
