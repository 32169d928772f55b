"""The commands of ``infercast``: where each is, and what the help says of it, in the order of the help.

The sentences are those of the commands themselves, written here once more so that help loads none of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command."""

    home: str
    """``module:function`` in `infercast.cli.commands`."""
    help: str
    engine_flags: bool = False
    """Whether it takes the flags of an engine in its own spelling."""


OLD_NAMES = {"price": "estimate"}
"""Commands that have another name since; 1.0 goes without the old ones."""
# fmt: off
COMMANDS = {
    "simulate": Command("simulate:command", engine_flags=True, help=
        "Simulate a served workload: TTFT, TPOT, throughput, load, and where GPU time goes."),
    "plan": Command("plan:command", help=
        "Find the deployment that keeps an SLO at the least cost: GPUs, layout, replicas, formats and settings."),
    "explain-command": Command("explain_command:command", help=
        "Explain a command that starts an engine: every flag, what fits, a forecast, and advice by simulated gain."),
    "calibrate": Command("calibrate:command", engine_flags=True, help=
        "Learn factors of host, API server and GPU from your own benchmark results, for every forecast."),
    "kernels": Command("kernels:command", engine_flags=True, help=
        "Estimate one step kernel by kernel: launches, time, share, what bounds each, and how close it comes."),
    "diagnose": Command("kernels:diagnose_command", engine_flags=True, help=
        "Rank kernels by what users would gain if each were as good as the best of its shape."),
    "tune": Command("tune:command", engine_flags=True, help=
        "Rank launch configurations of Triton's kernel for routed experts, and say which are worth a change."),
    "memory": Command("memory:command", engine_flags=True, help=
        "Show what fits: weights, KV bytes per token, KV blocks, the longest context, the most sequences."),
    "layouts": Command("plan:layouts_command", engine_flags=True, help=
        "Compare tensor, pipeline, data and expert parallelism: what fits, TTFT, TPOT and throughput per GPU."),
    "disaggregate": Command("simulate:disaggregate_command", engine_flags=True, help=
        "Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did."),
    "sweep": Command("sweep:command", engine_flags=True, help=
        "Sweep a rate, a number of clients or a setting: TTFT, TPOT, throughput, goodput, cost, knee and saturation."),
    "energy": Command("sweep:energy_command", engine_flags=True, help=
        "Find the power limit or the clock that saves most energy while an SLO holds: joules per token and latencies."),
    "speculate": Command("sweep:speculate_command", engine_flags=True, help=
        "Find the load at which speculative decoding stops paying: tokens/s and TPOT with and without it, by clients."),
    "capacity": Command("capacity:command", engine_flags=True, help=
        "Plan a day of traffic: replicas over time by three policies, what they cost, and minutes out of SLO."),
    "report": Command("report:command", help=
        "Compare runs that were saved with --json: every number side by side, what differs, and one page of all."),
    "web": Command("web:command", help=
        "Serve a page to play with forecasts, and an HTTP API; only to this machine by default."),
    "estimate": Command("kernels:estimate_command", help=
        "Estimate the latency and the power of one kernel, or of a CSV of shapes: 80 % interval, source and bound."),
    "gpus": Command("catalog:gpus", help=
        "List the GPUs that are known, or show one with the source of its numbers."),
    "models": Command("catalog:models", help=
        "List the models that are bundled, or show how one config.json is understood."),
    "hosts": Command("catalog:hosts", help=
        "List the CPUs that --host knows by name, and how fast one thread of each is."),
    "validate": Command("validate:command", help=
        "Re-run measured runs with their own arrivals, lengths and prefixes, and print the errors."),
    "measure": Command("measure:command", help=
        "Time the kernels of this machine's GPU at shapes tied to no model, and write a table per kernel family."),
    "fit": Command("fit:fit", help=
        "Fit kernel efficiencies to measured latencies and write an artefact that every command can use."),
    "evaluate": Command("fit:evaluate", help=
        "Score predictions on measured kernels: mean, median and 90th percentile error, and how often intervals hold."),
}
