"""The machines that are known, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from infercast.hardware import Gpu
from infercast.hardware.host import HostCpu
from infercast.report.terminal import (
    SCREEN,
    Facts,
    Field,
    FittingTable,
    Grid,
    Paragraph,
    Printable,
    Renderers,
    Section,
    styled,
)
from infercast.units import GIB, GIGA, TERA, format_bytes, format_rate

if TYPE_CHECKING:
    from infercast.forecast.estimate import KnownKernel


def _flops(dtype: str) -> Callable[[Gpu], str]:
    def cell(gpu: Gpu) -> str:
        name = "fp16" if dtype == "bf16" and dtype not in gpu.tensor_flops else dtype
        return f"{gpu.tensor_flops[name] / TERA:,.0f}" if name in gpu.tensor_flops else "-"

    return cell


GPU_FIELDS: tuple[Field[Gpu], ...] = (
    Field("", lambda gpu: gpu.name, "name"),
    Field("", lambda gpu: gpu.architecture, "architecture", rank=4, words=True),
    Field("", lambda gpu: f"{gpu.sms}", "SMs", rank=2), Field("", _flops("bf16"), "16-bit"),
    Field("", _flops("fp8"), "fp8"), Field("", _flops("fp4"), "fp4", rank=1),
    Field("", lambda gpu: f"{gpu.driver_bytes / GIB:,.0f}", "GiB"),
    Field("", lambda gpu: f"{gpu.dram_bandwidth / TERA:.2f}", "TB/s"),
    Field("", lambda gpu: f"{gpu.nvlink_bandwidth / GIGA:,.0f}" if gpu.nvlink_bandwidth else "-", "link GB/s", rank=1),
    Field("", lambda gpu: f"{gpu.tdp:,.0f}", "W", rank=3),
)  # fmt: skip


def brief_names(known: Iterable[Any]) -> list[Printable]:
    alike = groupby((each.name for each in known), lambda name: name.partition("-")[0])
    text = ", ".join(_in_braces(begin, [*names]) for begin, names in alike)
    return [Paragraph(text, SCREEN), styled("with a NAME: one of them in full; --full: a table of all", style="dim")]


def _in_braces(begin: str, names: list[str]) -> str:
    rest = [name[len(begin) + 1 :] for name in names]
    return f"{begin}-{{{', '.join(rest)}}}" if len(names) > 1 and all(rest) else ", ".join(names)


def render_gpus(gpus: Iterable[Gpu]) -> list[Printable]:
    legend = "16-bit, fp8, fp4: dense TFLOP/s. GiB and TB/s: memory and its bandwidth. link: one way between GPUs."
    return [FittingTable(GPU_FIELDS, list(gpus)), styled(legend, style="dim")]


def render_hosts(presets: Iterable[HostCpu]) -> list[Printable]:
    rows = [(each.name, f"{each.single_thread_speed:.2f}", each.title) for each in presets]
    legend = (
        "speed: of one thread, relative to the measured machines, by PassMark's single-thread ratings (sources with "
        "--json). The rating of the measured machines is an assumption. `infercast measure --host` measures yours."
    )
    return [Grid(("name", "speed", "CPU"), rows, notes_at=(2,)), styled(legend, style="dim")]


def render_gpu(gpu: Gpu) -> list[Printable]:
    rows = [
        *((("announced", gpu.announced),) if gpu.announced else ()),
        ("architecture", f"{gpu.architecture}, compute capability {gpu.compute_capability}"),
        ("multiprocessors", f"{gpu.sms}"),
        ("clock", f"{gpu.boost_clock / GIGA:.3f} GHz boost, {gpu.sustained_clock / GIGA:.3f} GHz sustained"),
        *((f"dense {name}", format_rate(rate, "FLOP/s")) for name, rate in gpu.tensor_flops.items()),
        ("special functions", format_rate(gpu.special_rate, "op/s")),
        ("memory", f"{format_bytes(gpu.driver_bytes)} usable, {format_rate(gpu.dram_bandwidth, 'B/s')}"),
        ("L2 cache", f"{format_bytes(gpu.l2_bytes)}, {format_rate(gpu.l2_bandwidth, 'B/s')}"),
        ("shared memory per SM", format_bytes(gpu.shared_memory_per_sm)),
        ("registers per SM", f"{gpu.registers_per_sm:,}"),
        ("NVLink", f"{format_rate(gpu.nvlink_bandwidth, 'B/s')} one way" if gpu.nvlink_bandwidth else "none"),
        ("PCIe", f"{format_rate(gpu.pcie_bandwidth, 'B/s')} one way"), ("GPUs per node", f"{gpu.gpus_per_node}"),
        ("power", f"{gpu.tdp:,.0f} W"), ("also known as", ", ".join(gpu.aliases)),
        *(("source", source) for source in gpu.sources),
    ]  # fmt: skip
    return [Section(f"{gpu.title} ({gpu.name})", Facts(rows)), _render_kernels(gpu), _render_prices(gpu.name)]


def _render_kernels(gpu: Gpu) -> Printable:
    columns = ("kernels", "of", "known as", "learned from", "error, %")
    rows = [
        (each.kind, each.kernel or "-", each.words, ", ".join(each.chips) or "-", f"{100 * each.error:.0f}")
        for each in _kernels(gpu)
    ]
    title = "Kernels: what estimates rest on, and the mean error to be expected of them"
    return Section(title, Grid(columns, rows, text_columns=4, notes_at=(3,)))


def _kernels(gpu: Gpu) -> list[KnownKernel]:
    from infercast.forecast.estimate import kernel_basis  # noqa: PLC0415 - lists of machines do without

    return kernel_basis(gpu)


def _render_prices(gpu: str) -> Printable:
    from infercast.forecast.cost import PRICES, Tariff, offers_of  # noqa: PLC0415 - lists of machines do without

    offers = offers_of(gpu)
    if not offers:
        return Section("Prices", styled(Tariff().unknown(gpu)))
    columns = ("provider", "on demand", "lowest", "spot", "lowest", "date")
    rows = [
        (provider, *(f"${entry[kind]:.2f}" if kind in entry else "-" for kind in PRICES), date)
        for provider, date, entry in offers
    ]
    return Section("Prices, $ per GPU-hour: the median and the lowest of a provider's offers", Grid(columns, rows))


def priced_gpu_dict(gpu: Gpu) -> dict[str, Any]:
    """The same with the basis of kernel estimates and providers' prices in dollars per hour."""
    from infercast.forecast.cost import PRICES, offers_of  # noqa: PLC0415 - lists of machines do without

    prices = [
        {"provider": provider, "date": date, **{kind: entry.get(kind) for kind in PRICES}}
        for provider, date, entry in offers_of(gpu.name)
    ]
    kernels = [{**each._asdict(), "chips": list(each.chips)} for each in _kernels(gpu)]
    return {**asdict(gpu), "kernel_estimates": kernels, "usd_per_hour": prices}


RENDERERS = {"Gpu": Renderers(priced_gpu_dict, render_gpu)}
