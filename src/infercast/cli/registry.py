"""What ``infercast`` can be asked: where each command lives and what the help says of it, in the order of the help.

The sentences are those of the commands themselves, written here once more so that help loads none of them.
"""

from __future__ import annotations

OLD_NAMES = {"price": "estimate"}
"""Commands that have another name since; 1.0 goes without the old ones."""
COMMANDS = {
    "simulate": "Simulate a served workload: TTFT, TPOT, throughput, load, and where GPU time goes.",
    "plan": "Find the deployment that keeps an SLO at the least cost: GPUs, layout, replicas, formats and settings.",
    "explain-command": (
        "Explain a command that starts an engine: every flag, what fits, a forecast, and advice by simulated gain."
    ),
    "calibrate": "Learn factors of host, API server and GPU from your own benchmark results, for every forecast.",
    "kernels": "Estimate one step kernel by kernel: launches, time, share, what bounds each, and how close it comes.",
    "diagnose": "Rank kernels by what users would gain if each were as good as the best of its shape.",
    "tune": "Rank launch configurations of Triton's kernel for routed experts, and say which are worth a change.",
    "memory": "Show what fits: weights, KV bytes per token, KV blocks, the longest context, the most sequences.",
    "layouts": "Compare tensor, pipeline, data and expert parallelism: what fits, TTFT, TPOT and throughput per GPU.",
    "disaggregate": (
        "Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did."
    ),
    "sweep": (
        "Sweep a rate, a number of clients or a setting: TTFT, TPOT, throughput, goodput, cost, knee and saturation."
    ),
    "energy": (
        "Find the power limit or the clock that saves most energy while an SLO holds: joules per token and latencies."
    ),
    "speculate": (
        "Find the load at which speculative decoding stops paying: tokens/s and TPOT with and without it, by clients."
    ),
    "capacity": "Plan a day of traffic: replicas over time by three policies, what they cost, and minutes out of SLO.",
    "report": "Compare runs that were saved with --json: every number side by side, what differs, and one page of all.",
    "web": "Serve a page to play with forecasts, and an HTTP API; only to this machine by default.",
    "estimate": (
        "Estimate the latency and the power of one kernel, or of a CSV of shapes: 80 % interval, source and bound."
    ),
    "gpus": "List the GPUs that are known, or show one with the source of its numbers.",
    "models": "List the models that are bundled, or show how one config.json is understood.",
    "hosts": "List the CPUs that --host knows by name, and how fast one thread of each is.",
    "validate": "Re-run measured runs with their own arrivals, lengths and prefixes, and print the errors.",
    "measure": (
        "Time the kernels of this machine's GPU at shapes tied to no model, and write a table per kernel family."
    ),
    "fit": "Fit kernel efficiencies to measured latencies and write an artefact that every command can use.",
    "evaluate": (
        "Score predictions on measured kernels: mean, median and 90th percentile error, and how often intervals hold."
    ),
}
TOGETHER = {
    "gpus": "catalog:gpus",
    "models": "catalog:models",
    "hosts": "catalog:hosts",
    "fit": "fit:fit",
    "evaluate": "fit:evaluate",
    "disaggregate": "simulate:disaggregate_command",
    "energy": "sweep:energy_command",
    "speculate": "sweep:speculate_command",
    "layouts": "plan:layouts_command",
    "diagnose": "kernels:diagnose_command",
    "estimate": "kernels:estimate_command",
}
"""``module:function`` of commands that share a module; others are the function ``command`` of their own module."""
WITH_ENGINE = (
    "simulate",
    "kernels",
    "diagnose",
    "memory",
    "layouts",
    "disaggregate",
    "tune",
    "sweep",
    "energy",
    "speculate",
    "capacity",
    "calibrate",
)
"""Commands that take the flags of an engine."""
