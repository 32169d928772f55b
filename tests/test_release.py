"""What a release says of itself agrees."""

import re
from pathlib import Path

import infercast

ROOT = Path(__file__).parents[1]


def test_version_changelog_and_citation_agree() -> None:
    first = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert cited is not None
    assert first[1] == cited[1] == infercast.__version__
