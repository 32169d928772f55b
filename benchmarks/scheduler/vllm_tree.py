"""vLLM's Python files, as its wheel has them: enough to run its scheduler on a CPU, with nothing compiled.

What vLLM imports has to be installed: `pip install torch torchvision transformers` and the rest of its requirements.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from infercast.bundled import read_data

RELEASES: list[str] = read_data("engines/vllm/releases.toml")["releases"]
WHEELS = {version: f"{version}.0" for version in RELEASES}
"""The package of each release."""
PLATFORM = ("--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--only-binary=:all:")


def find(version: str, given: Path | None) -> Path:
    """A folder with the package ``vllm``: the one given, or the wheel's, fetched once and kept."""
    if given is not None:
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "infercast" / f"vllm-{WHEELS[version]}"
    if not cache.exists():
        fetch(WHEELS[version], cache)
    return cache


def fetch(version: str, folder: Path) -> None:
    """Download a wheel from the package registry and keep its Python files."""
    with tempfile.TemporaryDirectory() as below:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *PLATFORM, "-d", below]
        subprocess.run([*command, f"vllm=={version}"], check=True)
        (wheel,) = Path(below).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            files = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(folder, files)


def use(folder: Path) -> None:
    """Let ``import vllm`` find this one; it is silent."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.path.insert(0, str(folder))
