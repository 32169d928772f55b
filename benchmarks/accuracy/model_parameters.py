"""Parameters of every architecture that the transformers library has, counted there and here.

    python benchmarks/accuracy/model_parameters.py [--write]

Needs torch and transformers; models are made on the meta device, so nothing is downloaded and no memory is taken. Each
architecture of vLLM's registry is made as the library makes it by default, and shapes of published models
(tests/data/published_shapes.json) on top. The table goes to benchmarks/results/models.md with ``--write``. The exit
status is 1 if a count differs by more than 1 % without a reason among `KNOWN`.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from infercast.errors import InfercastError
from infercast.models.read import read_model
from infercast.models.spec import parameter_count

sys.modules["torchvision"] = None  # type: ignore[assignment]  # a version that does not fit torch must not stand in the way
ROOT = Path(__file__).parents[2]
SHAPES, NAMES = (ROOT / "tests/data" / name for name in ("published_shapes.json", "vllm_architectures.json"))
RESULT = ROOT / "benchmarks/results/models.md"
MOST = 0.01
KNOWN = {
    "Glm4MoeForCausalLM": "the default has no head_dim; published files have 128, which is assumed",
}
"""Why counts of defaults differ."""
MAPPINGS = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
)


class Row(NamedTuple):
    name: str
    architecture: str
    theirs: int
    ours: int | None
    why: str = ""

    @property
    def error(self) -> float:
        return 0.0 if self.ours is None else self.ours / self.theirs - 1

    @property
    def is_wrong(self) -> bool:
        return abs(self.error) > MOST and not self.why


def count(architecture: str, kind: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Parameters of a model that the library makes, shared ones once, and its whole config."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    config = transformers.CONFIG_MAPPING[kind](**fields)
    with torch.device("meta"):
        model = getattr(transformers, architecture)._from_config(config)
    model.tie_weights()
    sizes = {id(each): each.numel() for each in model.parameters()}
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    return sum(sizes.values()), {**whole, "architectures": [architecture], "model_type": kind}


def ours(name: str, theirs: int, config: dict[str, Any]) -> Row:
    architecture = config["architectures"][0]
    try:
        model = read_model(config)
        why = next((note for note in model.notes if "left out" in note), KNOWN.get(architecture, ""))
        encoder = model.vision.parameters if model.vision else 0
        return Row(name, architecture, theirs, parameter_count(model) + encoder, why)
    except InfercastError as refusal:
        return Row(name, architecture, theirs, None, str(refusal).partition("; the nearest")[0])


def rows() -> Iterator[Row]:
    from transformers.models.auto import modeling_auto  # noqa: PLC0415

    kinds = {}
    for mapping in MAPPINGS:
        for kind, names in getattr(modeling_auto, mapping).items():
            kinds.update(dict.fromkeys([names] if isinstance(names, str) else names, kind))
    for group in json.loads(NAMES.read_text(encoding="utf-8")).values():
        for architecture in (name for names in group.values() for name in names if name in kinds):
            try:
                theirs, config = count(architecture, kinds[architecture], {})
            except Exception as problem:
                print(f"{architecture}: not made by default ({type(problem).__name__})", file=sys.stderr)
                continue
            yield ours("default", theirs, config)
    for name, shape in json.loads(SHAPES.read_text(encoding="utf-8")).items():
        yield ours(name, shape["parameters"], shape["config"])


def table(found: list[Row]) -> str:
    read = [row for row in found if row.ours is not None]
    within = sum(abs(row.error) <= MOST for row in read)
    lines = [
        "# Parameters of architectures",
        "",
        "Counted by the transformers library on the meta device (its default configs), or published, and counted by "
        f"infercast: {within} of {len(read)} within 1 %, {len(found) - len(read)} refused. "
        "`python benchmarks/accuracy/model_parameters.py --write` makes this table.",
        "",
        "| architecture | shape | parameters | here | difference | |",
        "| --- | --- | --: | --: | --: | --- |",
    ]
    for row in sorted(found, key=lambda row: (row.architecture.lower(), row.name)):
        here, error = ("-", "-") if row.ours is None else (f"{row.ours:,}", f"{row.error:+.2%}")
        lines.append(f"| {row.architecture} | {row.name} | {row.theirs:,} | {here} | {error} | {row.why} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    found = list(rows())
    text = table(found)
    print(text)
    if "--write" in sys.argv:
        RESULT.write_text(text, encoding="utf-8")
    return int(any(row.is_wrong for row in found))


if __name__ == "__main__":
    sys.exit(main())
