"""Write the flags of an engine's releases to `src/infercast/data/engines/*/arguments.json`.

    python benchmarks/arguments/read.py vllm --sources FOLDER

A release that FOLDER does not have is fetched from the package registry; of its archive only Python files are kept.
A flag has a line for every span of releases in which its definition is the same: `since` is the first of them that was
read, `until` the first after them. New flags need a class in `classes.toml` (`tests/engines/test_arguments.py`).
"""

import argparse
import io
import json
import re
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from definitions import READERS, Definition

RELEASES = {
    "vllm": [
        "0.6.6", "0.7.3", "0.8.5", "0.9.0", "0.9.2", "0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.12.0",
        "0.13.0", "0.14.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0",
        "0.25.0", "0.26.0", "0.27.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
    ],
    "sglang": [
        "0.4.3.post4", "0.4.6.post5", "0.4.9", "0.5.1", "0.5.3", "0.5.5", "0.5.7", "0.5.9", "0.5.11", "0.5.13",
        "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
    ],
}  # fmt: skip
INDEX = "https://pypi.org/simple"
DATA = Path(__file__).parents[2] / "src" / "infercast" / "data" / "engines"
COLUMNS = ("flag", "others", "takes", "type", "default", "choices", "since", "until")


def fetch(family: str, version: str, folder: Path) -> None:
    """The Python files of a package, from its source archive or, where it has none, a wheel."""
    with urllib.request.urlopen(f"{INDEX}/{family}/") as page:
        links = re.findall(r'href="([^"#]*)', page.read().decode())
    archive = [link for link in links if link.endswith(f"/{family}-{version}.tar.gz")]
    wheel = [link for link in links if f"/{family}-{version}-" in link and link.endswith(".whl")]
    with urllib.request.urlopen((archive or wheel)[0]) as answer:
        content = io.BytesIO(answer.read())
    for name, text in _files(content, is_wheel=not archive):
        parts = PurePosixPath(name).parts
        if name.endswith(".py") and family in parts[:3]:
            path = folder.joinpath(*parts[parts.index(family) :])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)


def _files(content: io.BytesIO, *, is_wheel: bool) -> Iterator[tuple[str, bytes]]:
    if is_wheel:
        with zipfile.ZipFile(content) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(fileobj=content) as archive:
        for member in archive:
            found = archive.extractfile(member)
            if found is not None:
                yield member.name, found.read()


def spans(by_release: dict[str, list[Definition]]) -> list[list[object]]:
    """One row for every span of releases in which a flag is defined alike."""
    rows: list[list[object]] = []
    under_way: dict[str, list[object]] = {}
    for version, definitions in by_release.items():
        now = {each.names[0]: _row(each) for each in definitions}
        for name, row in list(under_way.items()):
            if now.get(name) != row[:6]:
                row[7] = version
                del under_way[name]
        for name, content in now.items():
            if name not in under_way:
                under_way[name] = [*content, version, ""]
                rows.append(under_way[name])
    return sorted(rows, key=lambda row: (str(row[0]), list(by_release).index(str(row[6]))))


def _row(each: Definition) -> list[object]:
    name, *others = each.names
    return [name[2:], others, each.takes, each.type, each.default, sorted(each.choices)]


def write(family: str, rows: list[list[object]], releases: list[str]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({"releases": releases, "columns": COLUMNS})[:-1]
    (DATA / family / "arguments.json").write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=list(READERS))
    parser.add_argument("--sources", type=Path, required=True, help="folder of the releases' Python files")
    given = parser.parse_args()
    found = {}
    for version in RELEASES[given.engine]:
        folder = given.sources / f"{given.engine}-{version}"
        if not folder.is_dir():
            fetch(given.engine, version, folder)
        found[version] = READERS[given.engine](folder)
        print(f"{given.engine} {version}: {len(found[version])} flags")
    rows = spans(found)
    write(given.engine, rows, RELEASES[given.engine])
    print(f"{len({str(row[0]) for row in rows})} flags in {len(rows)} rows")


if __name__ == "__main__":
    main()
