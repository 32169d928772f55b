"""Builds a wheel whose simulation loop is compiled by mypyc, where ``INFERCAST_COMPILE`` is set; else nothing.

    INFERCAST_COMPILE=1 pip install .

The source is the same and so are the results: Python takes a compiled module before the file that it was made of. What
is copied, pickled or built on the fly in `serve` (records, shapes of steps, offload) stays as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "loop", "timeline", "cache/blocks", "cache/kv_cache", "cache/radix_cache", "scheduler/adapters",
    "scheduler/admission", "scheduler/base", "scheduler/cohort", "scheduler/drafts", "scheduler/prefill_scheduler",
    "scheduler/scheduler", "workload/clients", "fleet/pool", "fleet/router",
)  # fmt: skip


class CompiledLoop(BuildHookInterface[Any]):
    """Compiles `MODULES` of ``infercast.serve``."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.18", "setuptools>=70", "numpy>=2.0"] if os.environ.get("INFERCAST_COMPILE") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not os.environ.get("INFERCAST_COMPILE") or version == "editable":
            return
        from mypyc.build import mypycify  # noqa: PLC0415 - a pure wheel needs neither
        from setuptools import Distribution  # noqa: PLC0415

        os.chdir(self.root)
        folder = Path(self.root, "build", "compiled")
        sources = [f"src/infercast/serve/{module}.py" for module in MODULES]
        made = mypycify(["--config-file=pyproject.toml", *sources], target_dir=str(folder), group_name="infercast")
        command = Distribution({"name": "infercast", "ext_modules": made}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
        command.ensure_finalized()
        command.run()
        files = [path for path in (folder / "lib").rglob("*") if path.suffix in (".so", ".pyd")]
        build_data["force_include"].update({str(path): str(path.relative_to(folder / "lib")) for path in files})
        build_data.update(pure_python=False, infer_tag=True)
