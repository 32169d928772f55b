"""Which of our models, GPUs and weight formats a published row means."""

from __future__ import annotations

import re
from functools import cache

from infercast.errors import InfercastError
from infercast.hardware import load_gpu
from infercast.models.library import bundled_config, bundled_name, model_names
from infercast.validate.published.load import RowReader
from infercast.validate.published.run import GPUS

FORMATS = {
    "fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp4": "nvfp4", "awq-int4": "awq", "awq": "awq", "gptq": "gptq",
    "gptq-int4": "gptq", "int4": "int4", "uint4": "int4", "w4a16": "int4", "int8": "int8", "w8a8": "int8",
    "bf16": "", "bfloat16": "", "": "", "fp16": "", "float16": "", "half": "", "auto": "", "unset": "",
}  # fmt: skip
"""How a checkpoint was quantised, where its own config does not say; nothing for the checkpoint's own format."""
BLOCKS, IN_BLOCKS = "fp8_block", ("qwen/",)
"""Whose checkpoints in fp8 have a scale for each block of weights."""
SUFFIX = re.compile(
    r"-(instruct|chat|it|base|thinking|reasoning|omni|0528|2507|bf16|fp8|fp4|nvfp4|mxfp4|awq|gptq|int4|4bit|w4a16|hf|v1"
    r"|dynamic|pt)\b"
)
"""Ends of names of checkpoints that leave the shape of a model as it is."""
SPELLINGS = (
    (re.compile(r"^(?:meta-)?llama[ _-]?(\d)[._](\d)[ _-](\d+)b"), r"llama-\1.\2-\3b"),
    (re.compile(r"^(?:meta-)?llama[ _-]?2[ _-](\d+)b"), r"llama-2-\1b"),
)
"""``llama3_1-70b-fp8_dyn``, ``Llama 3.1 8B Instruct FP8``."""
SAME_SHAPE = {"step-3.5-flash": "step-3.7-flash", "deepseek-math-v2": "deepseek-v3.2"}
"""Models that were trained from another one, or before it, with the same shape."""


@cache
def known_model(name: str) -> str | None:
    """The bundled model that a published name means, by itself or without what quantising and tuning add to it."""
    plain = name.strip().lower()
    if not plain:
        return None
    short = plain.rpartition("/")[2].replace("_quantized", "").replace("-quantized.", "-")
    for pattern, spelling in SPELLINGS:
        if found := pattern.match(short):
            short = found.expand(spelling)
    short = short.removeprefix("nvidia-")
    candidates = [plain, short]
    while (shorter := SUFFIX.sub("", short, count=1)) != short:
        short = shorter
        candidates.append(short)
    found_names = (bundled_name(each) or _by_last_part().get(each) for each in candidates)
    return next((found for found in found_names if found is not None), None)


@cache
def _by_last_part() -> dict[str, str]:
    """Bundled models by what published names have behind the slash, without what quantising and tuning add to it."""
    names = {name: bundled_config(name)["infercast"]["aliases"] for name in model_names()}
    found: dict[str, str] = {}
    for name, aliases in names.items():
        for alias in aliases:
            last = alias.lower().rpartition("/")[2].removeprefix("nvidia-")
            found.setdefault(last, name)
            if name == last or not _is_quantised(last):
                found.setdefault(SUFFIX.sub("", last), name)
    return found


def _is_quantised(name: str) -> bool:
    return name.endswith(("fp8", "fp4", "awq", "gptq", "int4"))


def model_of(row: RowReader) -> tuple[str, str]:
    """Our name of the row's model, and the format of its weights where its config does not say it.

    The published name comes first, then what the table has, which is then assumed to be alike. A checkpoint that is
    bundled in the stated format stands before one that is quantised while loading.
    """
    published, listed, wanted = row.text("model"), row.text("infercast_model"), format_of(row)
    found = known_model(published)
    short = published.lower().rpartition("/")[2]
    if found is None:
        found = next((ours for name, ours in SAME_SHAPE.items() if short.startswith(name)), None)
        if found is None and listed and _looks_alike(published, listed):
            found = listed
        if found is not None:
            row.assume(f"{published} has the shape of {found}")
    stored = "fp8" if wanted == BLOCKS else wanted
    if found is not None and wanted and bundled_name(f"{found}-{stored}"):
        return f"{found}-{stored}", ""
    return found or published or listed, wanted


def _looks_alike(published: str, listed: str) -> bool:
    """Whether a table's own match can be: GLM-4.5V is no GLM-4.6, which shares but its first letters."""
    words = re.findall(r"\d+(?:\.\d+)?[a-z]?", listed.lower())
    plain = published.lower().replace("_", ".")
    return all(word in plain for word in words) or not published


def gpu_of(row: RowReader) -> str:
    """Our name of the row's GPU."""
    listed, stated = row.text("infercast_gpu"), row.text("gpu")
    if listed:
        return GPUS.get(listed, listed)
    plain = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\b\d+ ?gb\b|nvidia|geforce|amd|instinct", "", stated.lower())).strip(
        "-"
    )
    for name in (GPUS.get(stated, ""), plain, plain.replace("ti-", "ti")):
        if name and _is_gpu(name):
            return name
    return plain or stated


@cache
def _is_gpu(name: str) -> bool:
    try:
        load_gpu(name)
    except InfercastError:
        return False
    return True


def format_of(row: RowReader) -> str:
    """The format that weights are in, by the names of `quantization`; nothing where the checkpoint's config says it."""
    stated, published = row.text("precision").lower(), row.text("model").lower()
    if "native" in stated:
        return ""
    wanted = FORMATS.get(stated.split(" ")[0].strip("()"))
    if wanted is None:
        row.assume(f"precision {stated!r}: weights as the checkpoint has them")
        return ""
    if stated in ("", "unset") and "fp8" in published:
        row.assume("precision is not stated: fp8 by the name of the checkpoint")
        return "fp8"
    return BLOCKS if wanted == "fp8" and published.startswith(IN_BLOCKS) else wanted
