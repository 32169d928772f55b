"""A compose file: a service for each replica, a profile for each machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.report.plan_files.started import Place, StartedPool
from infercast.report.plan_files.yaml_writer import yaml_text


def compose_file(pools: Sequence[StartedPool], model: str, title: str) -> str | None:
    """``compose.yaml``; None where a replica spans machines, which compose does not start."""
    if any(pool.nodes > 1 for pool in pools):
        return None
    services = {place.name: _service(pool, place, model) for pool in pools for place in pool.places}
    machines = sorted({place.machine for pool in pools for place in pool.places})
    how = "\n".join(f"docker compose --profile {machine} up" for machine in machines)
    return yaml_text(
        {"services": services, "volumes": {"huggingface": {}}}, comment=f"{title}\nOn each machine its own:\n{how}"
    )


def _service(pool: StartedPool, place: Place, model: str) -> dict[str, Any]:
    environment = {"HF_TOKEN": "${HF_TOKEN:-}"}
    if "port_variable" in (known := pool.commands.disaggregated) and pool.disaggregated:
        environment |= {
            known["port_variable"]: str(place.side_port),
            known["host_variable"]: "${HOST_ADDRESS:-127.0.0.1}",
        }
    devices = {"driver": "nvidia", "device_ids": [str(each) for each in place.devices], "capabilities": ["gpu"]}
    return {
        "profiles": [place.machine],
        "image": pool.image,
        "command": pool.container_words(model, place.port),
        "environment": environment,
        "network_mode": "host",
        "ipc": "host",
        "volumes": ["huggingface:/root/.cache/huggingface"],
        "deploy": {"resources": {"reservations": {"devices": [devices]}}},
        "restart": "unless-stopped",
    }
