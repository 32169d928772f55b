"""Which of our models, GPUs and weight formats a published row means."""

from __future__ import annotations

import re
from functools import cache

from infercast.errors import InfercastError
from infercast.hardware import load_gpu
from infercast.models.library import bundled_name
from infercast.validate.published.load import RowReader
from infercast.validate.published.run import GPUS

FORMATS = {
    "fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp4": "nvfp4", "awq-int4": "awq", "awq": "awq", "gptq": "gptq",
    "gptq-int4": "gptq", "int4": "int4", "uint4": "int4", "w4a16": "int4", "int8": "int8", "w8a8": "int8",
    "bf16": "", "bfloat16": "", "": "", "fp16": "", "float16": "", "half": "", "auto": "", "unset": "",
}  # fmt: skip
"""How a checkpoint was quantised, where its own config does not say; nothing for the checkpoint's own format."""
SUFFIX = re.compile(
    r"-(instruct|chat|it|base|thinking|0528|2507|fp8|fp4|nvfp4|mxfp4|awq|gptq|int4|4bit|w4a16|hf|v1|dynamic)\b"
)
"""Ends of names of checkpoints that leave the shape of a model as it is."""
SPELLINGS = (
    (re.compile(r"^(?:meta-)?llama[ _-]?(\d)[._](\d)[ _-](\d+)b"), r"llama-\1.\2-\3b"),
    (re.compile(r"^(?:meta-)?llama[ _-]?2[ _-](\d+)b"), r"llama-2-\1b"),
)
"""``llama3_1-70b-fp8_dyn``, ``Llama 3.1 8B Instruct FP8``."""


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
    candidates = [plain, short]
    while (shorter := SUFFIX.sub("", short, count=1)) != short:
        short = shorter
        candidates.append(short)
    found_names = (bundled_name(each) for each in candidates)
    return next((found for found in found_names if found is not None), None)


def model_of(row: RowReader) -> str:
    """Our name of the row's model: by its published name, or as the table has it, which is then assumed to be alike."""
    published, listed = row.text("model"), row.text("infercast_model")
    found = known_model(published)
    if (own := _checkpoint(row, found or listed)) is not None:
        row.assume(f"{published} in {_stated_format(row)} is {own}")
        return own
    if found is None and listed and _looks_alike(published, listed):
        row.assume(f"{published} has the shape of {listed}")
        return listed
    return found or published or listed


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


def _checkpoint(row: RowReader, model: str) -> str | None:
    """The bundled checkpoint of a model that its publisher offers in four bits, whose config says what is left wider."""
    stated = _stated_format(row)
    return bundled_name(f"{model}-{stated}") if stated in ("mxfp4", "nvfp4") else None


def _stated_format(row: RowReader) -> str:
    """The first word of the published precision."""
    return row.text("precision").lower().split(" ")[0].strip("()")


def format_of(row: RowReader) -> str:
    """The format that weights are in, by the names of `quantization`; nothing where the checkpoint's config says it."""
    stated = row.text("precision").lower()
    if "native" in stated:
        return ""
    if _checkpoint(row, known_model(row.text("model")) or row.text("infercast_model")) is not None:
        return ""
    wanted = FORMATS.get(_stated_format(row))
    if wanted is None:
        row.assume(f"precision {stated!r}: weights as the checkpoint has them")
        return ""
    return wanted
