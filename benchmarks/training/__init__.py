"""How the bundled artefacts are fitted and judged: tables of others, and every family of kernels."""

import subprocess
from pathlib import Path


def revision() -> str:
    """The commit of this checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
