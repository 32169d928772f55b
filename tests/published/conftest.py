"""Benchmarks, which hold what is tested here, are not part of a source distribution."""

from pathlib import Path

collect_ignore_glob = [] if (Path(__file__).parents[2] / "benchmarks").is_dir() else ["test_*.py"]
