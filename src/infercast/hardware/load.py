"""GPUs by name or from a TOML file, kernel facts of each architecture, and the networks and servers around."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from infercast.bundled import DATA, read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError, near_names, reading
from infercast.hardware.gpu import TOPOLOGIES, Gpu
from infercast.hardware.host import MEASURED, host_cpus
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.units import GIB, GIGA, KIB, MIB, MICRO, TERA

TENSOR_DTYPES = ("tf32", "bf16", "fp16", "fp8", "int8", "fp4")
"""Formats of a tensor table. Plain fp32 is not one of them: it follows from the FMA lanes."""
FOLDER = DATA / "gpus"
OWN_FILE_HINT = " (or give the path of a TOML file that describes yours)"
Fact = TypeVar("Fact")
MEGA = 1e6
DRIVER_SHARE = 0.985  # Share of nominal memory that a driver reports if a file says none; HBM parts show 0.98 to 0.995
NOT_INHERITED = ("name", "title", "aliases", "sources", "announced")
"""What belongs to the base alone: a chip made from it is another chip."""


def _is_number(value: object) -> bool:
    # TOML has true, inf, nan and integers of any length, none of which is a size; Python counts a bool as an int.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


Rule = tuple[str, Callable[[Any], bool]]
TEXT: Rule = ("a non-empty string", lambda value: isinstance(value, str) and bool(value.strip()))
TEXTS: Rule = (
    "a list of non-empty strings",
    lambda value: isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value),
)
SMALLEST = 1e-4  # No field of a chip is smaller, in the units of its file: less is nothing in bytes or cycles
POSITIVE: Rule = (f"a finite number of at least {SMALLEST:g}", lambda value: _is_number(value) and value >= SMALLEST)
NOT_NEGATIVE: Rule = ("zero or a positive finite number", lambda value: _is_number(value) and value >= 0)
COUNT: Rule = ("a positive whole number", lambda value: _is_number(value) and isinstance(value, int) and value > 0)
RATES: Rule = ("a table of rates by format", lambda value: isinstance(value, dict) and bool(value))
ON_CHIP_FIELDS: dict[str, Rule] = {
    **dict.fromkeys(("fp32_lanes_per_sm", "registers_per_sm"), COUNT),
    **dict.fromkeys(("special_ops_per_sm_clock", "l2_bytes_per_clock", "l2_bytes_per_sm_clock"), POSITIVE),
    "shared_memory_kib_per_sm": POSITIVE,
    "tensor_flops_per_sm_clock": RATES,
}  # Facts of an architecture; a GPU file may replace any of them
TOPOLOGY: Rule = (f"one of {', '.join(TOPOLOGIES)}", lambda value: isinstance(value, str) and value in TOPOLOGIES)
MEMORY: Rule = ("hbm (stacked) or gddr", lambda value: value in ("hbm", "gddr"))
ARCHITECTURE_FIELDS: dict[str, Rule] = {
    **dict.fromkeys(("vendor", "compute_capability", "kernels"), TEXT), "memory": MEMORY, **ON_CHIP_FIELDS,
}  # fmt: skip
FACTS: Rule = ("a table of facts", lambda value: isinstance(value, dict) and bool(value))
"""What is known of the kernels that an architecture runs; only a new architecture brings its own."""
CLOCKS = ("boost_clock_mhz", "sustained_clock_mhz", "max_clock_mhz", "held_clock_mhz")
SIZES = ("dram_gib", "driver_mib", "dram_gb_per_s", "l2_mib", "pcie_gb_per_s", "tdp_w")
GPU_FIELDS: dict[str, Rule] = {
    **dict.fromkeys(("base", "name", "title", "architecture", "announced", "cpu"), TEXT),
    **dict.fromkeys(("sms", "nvlink_gpus", "gpus_per_node"), COUNT), **dict.fromkeys((*CLOCKS, *SIZES), POSITIVE),
    "nvlink_gb_per_s": NOT_NEGATIVE, "pcie_topology": TOPOLOGY, **dict.fromkeys(("aliases", "sources"), TEXTS),
    "tensor_tflops": RATES, **ARCHITECTURE_FIELDS,
}  # fmt: skip
REQUIRED_GPU_FIELDS = (
    "architecture", "sms", "boost_clock_mhz", "sustained_clock_mhz", "dram_gib", "dram_gb_per_s", "l2_mib",
    "pcie_gb_per_s", "tdp_w",
)  # fmt: skip
"""What a GPU file without a base must say itself; the rest has a rule or a plain default."""


def read_table(file: Path, shown: object) -> dict[str, Any]:
    if not file.exists():
        raise FileFormatError(shown, "no such file")
    if file.is_dir():  # which Windows reports as a permission error
        raise FileFormatError(shown, "is a directory, not a TOML file")
    with reading(shown, "a TOML file"):
        text = file.read_text("utf-8")
    import tomllib  # noqa: PLC0415 - bundled files are kept compiled

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        raise FileFormatError(
            shown, f"not valid TOML: {problem}", int(line[1]) if line else text.count("\n") + 1
        ) from None


def check_table(table: Mapping[str, Any], fields: Mapping[str, Rule], shown: object, inside: str = "") -> None:
    """Refuse unknown fields and values of the wrong kind, naming the field, the value and what is expected."""
    for key, value in table.items():
        if key not in fields:
            raise FileFormatError(shown, _unknown(f"field {inside + key!r}", key, fields))
        expected, holds = fields[key]
        if not holds(value):
            raise FileFormatError(shown, f"{inside}{key} must be {expected}, not {value!r}")
        if fields[key] is RATES:
            check_table(value, dict.fromkeys(TENSOR_DTYPES, POSITIVE), shown, f"{inside}{key}.")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = near_names(name, known, most=1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return f"unknown {what}; {suggestion}known: {', '.join(known)}"


def inherit(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``base``; what follows from a changed field moves along, and another architecture keeps nothing."""
    kept = {key: value for key, value in base.items() if key not in NOT_INHERITED}
    if own.get("architecture", base["architecture"]) != base["architecture"]:
        for key in ("tensor_tflops", *ARCHITECTURE_FIELDS):
            kept.pop(key, None)
    clock = own.get("boost_clock_mhz", base["boost_clock_mhz"]) / base["boost_clock_mhz"]
    size = own.get("sms", base["sms"]) / base["sms"]
    kept["sustained_clock_mhz"] *= clock
    for name in {"max_clock_mhz", "held_clock_mhz"} & kept.keys():
        kept[name] *= clock
    if "driver_mib" in kept:
        kept["driver_mib"] *= own.get("dram_gib", base["dram_gib"]) / base["dram_gib"]
    if "tensor_tflops" in kept:
        restated = own.get("tensor_flops_per_sm_clock", {})
        scaled = {dtype: rate * clock * size for dtype, rate in kept["tensor_tflops"].items() if dtype not in restated}
        kept["tensor_tflops"] = scaled | own.get("tensor_tflops", {})
    return kept | {key: value for key, value in own.items() if key != "tensor_tflops" or key not in kept}


def build_gpu(name: str, table: Mapping[str, Any], architectures: Mapping[str, Any], shown: object) -> Gpu:
    missing = [key for key in REQUIRED_GPU_FIELDS if key not in table]
    if missing:
        raise FileFormatError(shown, f"missing {', '.join(missing)} (or start from a bundled GPU with 'base')")
    if held := table.get("held_clock_mhz"):  # boards run above the clock that they are rated at, and all rates with it
        sustained = table["sustained_clock_mhz"]
        table = {**table, **inherit(table, {"boost_clock_mhz": held}), "sustained_clock_mhz": sustained}
    own = [name for name, facts in architectures.items() if facts["kernels"] == name]
    for field, known in (("architecture", architectures), ("kernels", own)):
        if field in table and table[field] not in known:
            unknown = UnknownNameError("architecture", table[field], known)
            raise FileFormatError(shown, f"field {field!r}: {unknown}; name the nearest and override what differs")
    chip = {**architectures[table["architecture"]], **{key: table[key] for key in ARCHITECTURE_FIELDS if key in table}}
    sms, boost_clock = table["sms"], table["boost_clock_mhz"] * MEGA
    fma_flops = 2.0 * chip["fp32_lanes_per_sm"] * sms * boost_clock
    dram_bytes = round(table["dram_gib"] * GIB)
    taken, rates = chip["l2_bytes_per_sm_clock"] * sms, chip["tensor_flops_per_sm_clock"]
    node = table.get("gpus_per_node", 1)
    gpu = Gpu(
        name=name,
        title=table.get("title", name),
        vendor=chip["vendor"],
        architecture=table["architecture"],
        compute_capability=chip["compute_capability"],
        kernels=chip["kernels"],
        memory=chip["memory"],
        sms=sms,
        boost_clock=boost_clock,
        sustained_clock=table["sustained_clock_mhz"] * MEGA,
        tensor_flops={"fp32": fma_flops, **_tensor_flops(table, chip, sms * boost_clock)},
        whole_tensor_flops=float(rates.get("bf16") or rates.get("fp16", 0.0)) * sms * boost_clock,
        fma_flops=fma_flops,
        special_rate=float(chip["special_ops_per_sm_clock"] * sms * boost_clock),
        dram_bytes=dram_bytes,
        driver_bytes=round(table["driver_mib"] * MIB) if "driver_mib" in table else round(DRIVER_SHARE * dram_bytes),
        dram_bandwidth=table["dram_gb_per_s"] * GIGA,
        l2_bytes=round(table["l2_mib"] * MIB),
        # What the cache's slices give together, or what the SMs can take.
        l2_bandwidth=float(min(taken, chip.get("l2_bytes_per_clock", taken))) * boost_clock,
        shared_memory_per_sm=round(chip["shared_memory_kib_per_sm"] * KIB),
        registers_per_sm=chip["registers_per_sm"],
        nvlink_bandwidth=table.get("nvlink_gb_per_s", 0) * GIGA,
        pcie_bandwidth=table["pcie_gb_per_s"] * GIGA,
        cpu=table.get("cpu", MEASURED),
        pcie_topology=table.get("pcie_topology", ""),
        gpus_per_node=node,
        tdp=float(table["tdp_w"]),
        nvlink_gpus=int(table.get("nvlink_gpus", node)) if table.get("nvlink_gb_per_s", 0) else 0,
        max_clock=table.get("max_clock_mhz", 0) * MEGA,
        announced=table.get("announced", ""),
        aliases=tuple(table.get("aliases", ())),
        sources=tuple(table.get("sources", ())),
    )
    _check_sense(gpu, table, shown)
    return gpu


def _check_sense(gpu: Gpu, table: Mapping[str, Any], shown: object) -> None:
    """Refuse what is of the right kind but cannot be meant."""
    if gpu.cpu != MEASURED and gpu.cpu not in host_cpus():
        raise FileFormatError(shown, f"field 'cpu': {UnknownNameError('host', gpu.cpu, host_cpus())}")
    for name, is_off, problem in (
        ("sustained_clock_mhz", gpu.sustained_clock > gpu.boost_clock, "is above boost_clock_mhz {boost_clock_mhz:g}"),
        ("max_clock_mhz", 0 < gpu.max_clock < gpu.boost_clock, "is below boost_clock_mhz {boost_clock_mhz:g}"),
        ("driver_mib", gpu.driver_bytes > gpu.dram_bytes, "is more than dram_gib {dram_gib:g} holds"),
    ):
        if is_off:
            raise FileFormatError(shown, f"{name} {table[name]:g} {problem.format(**table)}")
    if not {"bf16", "fp16"} & gpu.tensor_flops.keys():
        raise FileFormatError(shown, "tensor_tflops must name bf16 or fp16: models are served in nothing wider")


def _tensor_flops(table: Mapping[str, Any], chip: Mapping[str, Any], sm_clocks: float) -> dict[str, float]:
    """Datasheet rates where the file has them, else FLOP an SM and clock times SM-clocks a second."""
    stated = {dtype: rate * TERA for dtype, rate in table.get("tensor_tflops", {}).items()}
    per_clock = chip["tensor_flops_per_sm_clock"] if not stated else table.get("tensor_flops_per_sm_clock", {})
    return {dtype: rate * sm_clocks for dtype, rate in per_clock.items()} | stated


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A bundled GPU by name or alias (``h200-sxm``, ``H200``, ``NVIDIA H200``), or one described in a TOML file."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        path = Path(name_or_path)
        table = read_table(path, path)
        check_table(table, GPU_FIELDS, path)
        if "base" in table:
            base = _canonical(table["base"])
            if base is None:
                known = UnknownNameError("bundled GPU", table["base"], gpu_names())
                raise FileFormatError(path, f"field 'base': {known}")
            table = inherit(_bundled_table(base), table)
        table.setdefault("sources", [f"described in {path.name}"])
        return build_gpu(table.get("name", path.stem), table, architectures(), path)
    name = _canonical(text)
    if name is None:
        raise UnknownNameError("GPU", text, gpu_names(), OWN_FILE_HINT)
    return _load_bundled(name)


def gpu_from_driver_name(driver_name: str) -> Gpu:
    name = _aliases().get(_normal(driver_name))
    if name is None:
        raise UnknownNameError("GPU driver name", driver_name, _aliases(), OWN_FILE_HINT)
    return _load_bundled(name)


@cache
def gpu_names() -> tuple[str, ...]:
    """The names of all bundled GPUs, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def _normal(name: str) -> str:
    """How names are compared: ``H100_SXM`` and ``h100 sxm`` are ``h100-sxm``."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _canonical(name: str) -> str | None:
    """The bundled name that ``name`` stands for. All files are read only where the plain name misses."""
    normal = _normal(name)
    return normal if normal in gpu_names() else _aliases().get(normal)


@cache
def _aliases() -> dict[str, str]:
    return {_normal(alias): name for name in gpu_names() for alias in _bundled_table(name).get("aliases", ())}


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """On-chip facts, and what is known of kernels, by architecture."""
    tables = read_data("architectures.toml")
    for name, table in tables.items():
        check_table(table, {**ARCHITECTURE_FIELDS, "facts": FACTS}, "architectures.toml", f"{name}.")
    return tables


def _bundled_table(name: str) -> dict[str, Any]:
    table = read_data(FOLDER / f"{name}.toml")
    check_table(table, GPU_FIELDS, f"{name}.toml")
    return table


@cache
def _load_bundled(name: str) -> Gpu:
    # Safe to share: a Gpu is frozen, and the bundled files do not change while a program runs.
    return build_gpu(name, _bundled_table(name), architectures(), f"{name}.toml")


class KernelFacts(NamedTuple):
    """What kernel physics asks of an architecture; architectures.toml says where each comes from."""

    vendor: str
    attention: str  # Which attention kernels engines run, by the name that their physics has
    l2_partitions: int  # Parts of L2 that may hold a copy of a line each
    wide_multiply: bool  # Whether Triton's kernels multiply by four warps at once, which read shared memory themselves
    fp8_products: str  # The library with fp8 products that are known kernel by kernel; empty: none
    misaligned_experts: float  # How many times longer loads of experts' rows take if their length is no multiple of 16
    switch_share: float  # What reducing switches make of the links, against those it was fitted on; 0: none reduces
    flag_delay: float  # How many times longer a flag takes to a peer and back than on the GPUs it was fitted on
    threads_per_sm: int = 2048  # Threads that an SM holds at once
    launch: float = 1.0  # How long a launch in a graph takes, against one on the chips that physics was fitted on
    mma_sync: float = 1.0
    """Share of the tensor cores' peak that the multiply instruction of Ampere reaches, which newer chips still have."""


@cache
def _facts() -> dict[str, KernelFacts]:
    tables = {name: table for name, table in architectures().items() if "facts" in table}
    return {name: KernelFacts(table["vendor"], **table["facts"]) for name, table in tables.items()}


def is_modelled(gpu: Gpu) -> bool:
    """Whether physics knows the kernels that this GPU runs; others are estimated by what is typical."""
    facts = _facts().get(gpu.kernels)
    return facts is not None and facts.vendor == gpu.vendor


def facts_of(gpu: Gpu) -> KernelFacts:
    return by_kernels(_facts(), gpu)


def by_kernels(facts: Mapping[str, Fact], gpu: Gpu) -> Fact:
    """The fact of this GPU's kernels; a clear error where the table does not name them."""
    try:
        return facts[gpu.kernels]
    except KeyError:
        raise InputError(
            f"{gpu.name} runs kernels of {gpu.kernels!r}, of which too little is known; known: {', '.join(facts)}"
        ) from None


# What surrounds the GPUs: networks between nodes, and the power that servers draw.

BASEBOARD, CARDS, RACK = "baseboard", "cards", "rack"


class Network(NamedTuple):
    """What one GPU gets of its node's network, in one direction."""

    bandwidth: float
    latency: float  # Seconds of one message
    levels: tuple[tuple[int, float], ...] = ()  # GPUs that a switch joins, and the share that more of them have


@cache
def networks() -> dict[str, Network]:
    tables = read_data("networks.toml")
    return {name: Network(table["gb_per_s"] * GIGA, table["latency_us"] * MICRO) for name, table in tables.items()}


def _rates(value: Any) -> list[float]:
    found = value if isinstance(value, list) else [value]
    return found if all(map(POSITIVE[1], found)) else []


def _read_network(path: Path, node: int) -> Network:
    """A file like networks.toml's tables, with what leaves a switch, and nodes whose adapters differ."""
    known: dict[str, Rule] = {
        **{"title": TEXT, "gb_per_s": ("a rate, or a list of one for each node", lambda each: _rates(each) != []),
           "latency_us": NOT_NEGATIVE, "levels": ("tables [[levels]]", lambda each: isinstance(each, list))},
    }  # fmt: skip
    table = read_table(path, path)
    check_table(table, known, path)
    if missing := [name for name in ("gb_per_s", "latency_us") if name not in table]:
        raise FileFormatError(path, f"needs {missing[0]}")
    rates = _rates(table["gb_per_s"])
    level_fields: dict[str, Rule] = {
        "gpus": COUNT,
        "oversubscription": ("a number of at least 1", lambda each: each >= 1),
    }
    levels = [(node * number, min(rates[: number + 1]) / rates[0]) for number in range(1, len(rates))]
    for level in table.get("levels", ()):
        check_table(level, level_fields, path, "levels.")
        levels.append((level.get("gpus", node), 1.0 / level.get("oversubscription", 1.0)))
    return Network(rates[0] * GIGA, table["latency_us"] * MICRO, tuple(levels))


def with_network(gpu: Gpu, name: str | None) -> Gpu:
    if name is None:
        return gpu
    if name.endswith(".toml"):
        found = _read_network(Path(name), gpu.gpus_per_node)
    elif name in networks():
        found = networks()[name]
    else:
        raise UnknownNameError("network", name, networks(), " (or a TOML file of your own)")
    return replace(gpu, network_bandwidth=found.bandwidth, network_latency=found.latency, network_levels=found.levels)


@dataclass(frozen=True, slots=True)
class Server:
    """Watts at the wall are ``base_watts`` and ``factor`` times those of all GPU boards in it."""

    kind: str
    title: str
    gpus: int  # GPUs that it holds
    base_watts: float  # CPUs, memory, switches, network adapters and fans at rest
    factor: float  # What fans that speed up, converters and power supplies make of each watt of a board
    spread: float  # Standard deviation of the logarithm of the watts at the wall, for known boards
    fitted: bool  # On measurements at the wall; stated otherwise
    sources: tuple[str, ...] = ()
    whole: bool = False  # Whether a deployment that leaves some of its GPUs free has all of it to itself
    names: tuple[str, ...] = ()  # GPUs that are found in it whatever joins them

    def base_of(self, gpus: int) -> float:
        """The base watts of these GPUs: their share of a server, or whole ones."""
        return self.base_watts * (ceil(gpus / self.gpus) if self.whole else gpus / self.gpus)


@cache
def servers() -> dict[str, Server]:
    return {kind: Server(kind=kind, **table) for kind, table in read_data("server_power.toml").items()}


def server_of(gpu: Gpu, kind: str | None = None) -> Server:
    known = servers()
    if kind is not None:
        if kind not in known:
            raise UnknownNameError("server", kind, known)
        return known[kind]
    for server in known.values():
        if gpu.name in server.names:
            return server
    linked = gpu.nvlink_gpus if gpu.nvlink_bandwidth > 0 else 0
    largest = known[BASEBOARD].gpus
    return known[RACK if linked > largest else BASEBOARD if linked >= largest else CARDS]
