"""Write data/prices/*.toml, one file a provider, from a digest of the price catalogue of SkyPilot.

The digest is a CSV with one row for each name of a GPU and each provider: ``acceleratorname``, ``cloud``, ``offers``
(regions x instance types), lowest and median $ per GPU-hour on demand (``od_min``, ``od_median``) and spot
(``spot_min``, ``spot_median``), ``max_count`` (GPUs of the largest instance), ``source``, ``commit``, ``date`` and
``licence``. Run: ``python from_catalogue.py gpu_prices.csv``.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

from infercast.bundled import DATA

NAMES = {
    "A10": "a10", "A10G": "a10g", "A30": "a30", "A40": "a40", "A100": "a100-sxm-40gb", "A100-80GB": "a100-sxm",
    "A100-80GB-SXM": "a100-sxm", "A100-80G-PCIe": "a100-pcie-80gb", "B200": "b200-sxm", "B300": "b300-sxm",
    "GH200": "gh200-96gb", "H100": "h100-sxm", "H100-SXM": "h100-sxm", "H100-NVLINK": "h100-sxm",
    "H100-80G-SXM5": "h100-sxm", "H100-80G-PCIe": "h100-pcie", "H100-NVL": "h100-nvl", "H200": "h200-sxm",
    "H200-SXM": "h200-sxm", "L4": "l4", "L40": "l40", "L40S": "l40s", "MI300X": "mi300x", "P100": "p100", "T4": "t4",
    "V100": "v100-sxm-16gb", "V100-32GB": "v100-sxm", "RTX3090": "rtx-3090", "RTX4090": "rtx-4090",
    "RTX5090": "rtx-5090", "RTX6000-Ada": "rtx-6000-ada", "RTX6000Ada": "rtx-6000-ada", "A6000": "rtx-a6000",
    "RTX-A6000": "rtx-a6000", "RTXA6000": "rtx-a6000", "RTXPRO6000": "rtx-pro-6000-server",
    "RTXPro6000": "rtx-pro-6000-server", "RTX-PRO-6000": "rtx-pro-6000-server",
    "RTX PRO Server 6000": "rtx-pro-6000-server", "RTX PRO 6000 96GB": "rtx-pro-6000-server",
    "RTXPRO4500": "rtx-pro-4500", "RTX5070": "rtx-5070",
    "RTXPRO6000-WK": "rtx-pro-6000", "RTXPRO6000WS": "rtx-pro-6000",
}  # fmt: skip
"""Our names of those of the catalogue. A name that may stand for two chips (RTX6000) is left out, and so is a second
name of the same chip at one provider (H100-MEGA)."""
OF_PROVIDER = {
    ("runpod", "A100-80GB"): "a100-pcie-80gb",
    ("runpod", "H100"): "h100-pcie",
    ("scaleway", "H100"): "h100-pcie",
}
"""A provider that lists an SXM card by that name means the PCIe card by the plain name; Scaleway's largest has two."""
NOT_PRICES = ("mithril",)
"""What this one lists is where bids start."""


def main() -> None:
    """Write the files anew."""
    folder = DATA / "prices"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.toml"):
        old.unlink()
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["cloud"] not in NOT_PRICES and _our_name(row) is not None:
                found[row["cloud"]].append(row)
    for provider, rows in found.items():
        (folder / f"{provider}.toml").write_text(_written(provider, rows), encoding="utf-8")


def _our_name(row: dict[str, str]) -> str | None:
    return OF_PROVIDER.get((row["cloud"], row["acceleratorname"]), NAMES.get(row["acceleratorname"]))


def _written(provider: str, rows: list[dict[str, str]]) -> str:
    first = rows[0]
    lines = [
        "# $ per GPU-hour over all offers (regions and instance types) of one provider: the median, and the lowest.",
        f'provider = "{provider}"',
        f'date = "{first["date"]}"',
        f'source = "{first["source"]}, commit {first["commit"]}"',
        f'licence = "{first["licence"]}"',
    ]
    lines.append("")
    for row in sorted(rows, key=lambda row: _our_name(row) or ""):
        facts = [f'catalogue_name = "{row["acceleratorname"]}"']
        # Where the catalogue knows no spot price it says 0, or the price on demand once more.
        kinds = [("on_demand", "od"), *([("spot", "spot")] if row["spot_median"] != row["od_median"] else [])]
        for kind, short in kinds:
            for name, column in ((kind, "median"), (f"{kind}_lowest", "min")):
                dollars = float(row[f"{short}_{column}"] or 0.0)
                facts += [f"{name} = {dollars}"] if dollars > 0 else []
        lines.append(f"{_our_name(row)} = {{ {', '.join(facts)} }}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
