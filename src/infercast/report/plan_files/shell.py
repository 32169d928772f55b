"""The command lines, as a script that starts one replica on the machine it is called on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from infercast.report.plan_files.started import Place, StartedPool

HEAD = """#!/usr/bin/env bash
# {title}
# Usage: {usage}
# MODEL may name another checkpoint of the same model.
set -euo pipefail
MODEL="${{MODEL:-{model}}}"
"""
SEVERAL = """RANK="${2:-0}"  # of this machine among those of the replica
LEADER="${3:-127.0.0.1}"  # address of the machine of rank 0
"""


def serve_script(pools: Sequence[StartedPool], model: str, title: str) -> str:
    """``serve.sh``."""
    several = any(pool.nodes > 1 for pool in pools)
    usage = "bash serve.sh REPLICA [RANK LEADER_ADDRESS]" if several else "bash serve.sh REPLICA"
    text = HEAD.format(title=title, usage=usage, model=model) + (SEVERAL if several else "")
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
    """The case of one replica."""
    where = f"on {place.machine}" if pool.nodes == 1 else f"on {pool.nodes} machines from {place.machine} on"
    lines = [f"{place.name})  # {where}"]
    lines.append(f"  export CUDA_VISIBLE_DEVICES={','.join(map(str, place.devices))}")
    if "port_variable" in (known := pool.commands.disaggregated) and pool.disaggregated:
        lines.append(f"  export {known['port_variable']}={place.side_port}")
        lines.append(f'  export {known["host_variable"]}="${{HOST_ADDRESS:-127.0.0.1}}"')
    if pool.nodes == 1:
        lines.append(f"  exec {_command(pool, place, [])}")
    else:
        start = f"$((RANK * {pool.copies_a_node}))"
        first, other = (list(pool.node_flags("$RANK", start, "$LEADER", first=each)) for each in (True, False))
        lines.append(f'  if [ "$RANK" = 0 ]; then\n    exec {_command(pool, place, first)}\n  fi')
        lines.append(f"  exec {_command(pool, place, other)}")
    return "\n".join([*lines, "  ;;\n"])


def _command(pool: StartedPool, place: Place, further: Sequence[str]) -> str:
    """One command line; words with a variable keep it."""
    words = [*pool.commands.serve, '"$MODEL"', *map(shlex.quote, pool.flags)]
    words += [f'"{word}"' if "$" in word else shlex.quote(word) for word in further]
    return " ".join([*words, "--port", str(place.port)])


def command_lines(pools: Sequence[StartedPool], model: str) -> list[str]:
    """One line a pool, as people read it."""
    return [shlex.join([*pool.commands.serve, model, *pool.flags]) for pool in pools]
