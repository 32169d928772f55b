"""Images in prompts: the tokens that each takes by its processor's own rule, and the kernels of its encoder."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from infercast.errors import InputError, require
from infercast.lazy_classes import NamedTuple
from infercast.ops import Call, Collective, EncoderAttention, Gemm
from infercast.ops.op import bytes_of, copy, gated_activation, norm, plain_activation, rope, strided_copy, weighted_sum


class Picture(NamedTuple):
    """What a processor makes of an image."""

    grid: tuple[int, int, int]  # Pictures (the image, or its tiles), and rows and columns of patches of each
    num_tokens: int  # Of the prompt, with those that mark begin, rows and end ...
    num_embeds: int  # ... and those of them that the encoder computes.


class ImageRule(NamedTuple):
    name: str
    patch: int  # Pixels along the side of a patch
    merge: int  # Patches along the side of a token
    most: int = 0  # Pixels, tokens or tiles of an image, or pixels along its side
    least: int = 0


class ImageEncoder(NamedTuple):
    """What an encoder computes, besides the count and the width of its layers."""

    rule: ImageRule
    heads: int
    inter: int  # Width of the feed-forward
    patch_values: int
    projector: tuple[tuple[int, int], ...]  # Inputs and outputs of its products to the language model
    gated: bool = False
    window: int = 0  # Patches along the side of the windows that attention stays in ...
    whole: int = 0  # ... and layers that see all of an image.

    def picture(self, width: int, height: int) -> Picture:
        rules = {
            "area": _by_area, "side": _by_side, "square": _as_square, "tokens": _by_tokens, "patches": _by_patches,
            "canvas": _by_canvas, "crops": _by_crops,
        }  # fmt: skip
        return rules[self.rule.name](self.rule, width, height)

    @property
    def most_embeds(self) -> int:
        """Of the largest image that its processor lets through."""
        name, patch, merge, most, least = self.rule
        unit = patch * merge
        squares = {"side": most, "square": most}.get(name, 0) // unit
        # Kimi pads rows and columns.
        by_name = {"area": most // unit**2, "tokens": most, "patches": most // merge**2 + least}
        return squares**2 or by_name.get(name) or (most + 1) * (least // unit) ** 2


def _merged(rule: ImageRule, rows: int, columns: int, marks: int = 2) -> Picture:
    tokens = rows * columns
    return Picture((1, rows * rule.merge, columns * rule.merge), tokens + marks, tokens)


def _by_area(rule: ImageRule, width: int, height: int) -> Picture:
    """Qwen: both sides to whole tokens, within a least and a largest area."""
    unit = rule.patch * rule.merge
    if max(width, height) > 200 * min(width, height):
        raise InputError(f"an image of {width}x{height} is refused: one side may be 200 times the other at most")
    rows, columns = round(height / unit), round(width / unit)
    if rows * columns * unit**2 > rule.most:
        smaller = math.sqrt(height * width / rule.most)
        rows, columns = (max(1, math.floor(side / smaller / unit)) for side in (height, width))
    elif rows * columns * unit**2 < rule.least:
        larger = math.sqrt(rule.least / (height * width))
        rows, columns = (math.ceil(side * larger / unit) for side in (height, width))
    return _merged(rule, rows, columns)


def _by_side(rule: ImageRule, width: int, height: int) -> Picture:
    """Pixtral: the longer side is bounded; every row ends with a mark, the last one with that of the end."""
    shrink, unit = max(1.0, height / rule.most, width / rule.most), rule.patch * rule.merge
    if shrink > 1:
        height, width = int(height / shrink), int(width / shrink)
    rows, columns = ((side - 1) // unit + 1 for side in (height, width))
    return _merged(rule, rows, columns, marks=rows)


def _as_square(rule: ImageRule, width: int, height: int) -> Picture:
    """Gemma 3: every image becomes one square, between two marks and two empty lines."""
    side = rule.most // (rule.patch * rule.merge)
    return _merged(rule, side, side, marks=4)


def _by_tokens(rule: ImageRule, width: int, height: int) -> Picture:
    """Gemma 4: as large as a number of tokens allows, larger than the image, too."""
    unit = rule.patch * rule.merge
    scale = math.sqrt(rule.most * unit**2 / (width * height))
    rows, columns = (math.floor(scale * side / unit) for side in (height, width))
    if not (rows or columns):
        raise InputError(f"an image of {width}x{height} is refused: it would be resized to nothing")
    rows, columns = rows or 1, columns or 1
    if rows == 1 and scale * height < unit:
        columns = min(width // height, rule.most)
    elif columns == 1 and scale * width < unit:
        rows = min(height // width, rule.most)
    return _merged(rule, rows, columns)


def _by_patches(rule: ImageRule, width: int, height: int) -> Picture:
    """Kimi: never larger, within a number of patches, padded to whole tokens; four marks."""
    count = max(1, height // rule.patch) * max(1, width // rule.patch)
    side = rule.least * rule.patch  # Most pixels along a side
    scale = min(1.0, math.sqrt(rule.most / count), side / height, side / width)
    unit = rule.patch * rule.merge
    rows, columns = (-(-min(max(1, int(each * scale)), side) // unit) for each in (height, width))
    return _merged(rule, rows, columns, marks=4)


def _tiles(rule: ImageRule, rows: int, columns: int, tile: int, marks: int) -> Picture:
    """Tiles and, of several, the whole image as one more."""
    pictures = rows * columns + (rows * columns > 1)
    side = tile // rule.patch
    embeds = pictures * (side // rule.merge) ** 2
    return Picture((pictures, side, side), embeds + marks, embeds)


def _by_canvas(rule: ImageRule, width: int, height: int) -> Picture:
    """Llama 4: the tiles on which it is enlarged least, else shrunk least; of these as few as possible."""
    tile, grids = rule.least, [(a, b) for a in range(1, rule.most + 1) for b in range(1, rule.most // a + 1)]
    # Ratios in single precision, as the processor compares them: equal ones are equal there.
    scales = {grid: min(_single(grid[0] * tile / height), _single(grid[1] * tile / width)) for grid in grids}
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    rows, columns = min((grid for grid, scale in scales.items() if scale == chosen), key=math.prod)
    marks = 3 + (rows * columns if rows * columns > 1 else 0)  # Begin, image, end; one after each tile
    return _tiles(rule, rows, columns, tile, marks)


def _single(value: float) -> float:
    import struct  # noqa: PLC0415 - few models have tiles

    return float(struct.unpack("f", struct.pack("f", value))[0])


def _by_crops(rule: ImageRule, width: int, height: int) -> Picture:
    """InternVL: the tiles of the nearest shape, of equal shapes the larger while the image fills half of them."""
    tile, best, nearest = rule.least, (1, 1), math.inf
    sizes = range(1, rule.most + 1)
    grids = sorted(((a, b) for a in sizes for b in sizes if a * b <= rule.most), key=math.prod)
    for columns, rows in grids:
        apart = abs(width / height - columns / rows)
        if apart < nearest or (apart == nearest and width * height > 0.5 * tile**2 * columns * rows):
            nearest, best = apart, (columns, rows)
    return _tiles(rule, best[1], best[0], tile, marks=2)


def parse_images(text: str) -> list[tuple[float, int, int]]:
    """Read ``2:1024x768,0.5:512x512``: images of each request, on average where not whole, with width and height."""
    found = []
    for part in text.lower().split(","):
        match = re.fullmatch(r"\s*(?:(\d+(?:\.\d*)?|\.\d+):)?(\d{1,9})x(\d{1,9})\s*", part)
        if match is None:
            raise InputError(f"images {text!r} must be COUNT:WIDTHxHEIGHT, such as 1:1024x1024 or 0.3:512x512")
        count, width, height = float(match[1] or 1), int(match[2]), int(match[3])
        require(0 < count <= 1000, f"images {text!r}: the count", "be above 0 and up to 1000", match[1])
        is_size = min(width, height) >= 1 and max(width, height) <= 65_536
        require(is_size, f"images {text!r}: the size", "be 1 to 65536 pixels a side", f"{width}x{height}")
        found.append((count, width, height))
    return found


# Kernels of the encoder, launched one by one: over all images of a step together, attention within each.


def encoder_calls(
    encoder: ImageEncoder, layers: int, hidden: int, tensor: int, grids: Iterable[tuple[int, int, int]], dtype: str
) -> list[Call]:
    """The kernels of ``layers`` of width ``hidden``, split over ``tensor`` GPUs, for images of these grids."""
    images = Counter(grids)
    patches = sum(count * pictures * rows * columns for (pictures, rows, columns), count in images.items())
    share, inter = -(-encoder.heads // tensor), -(-encoder.inter // tensor)
    head = hidden // encoder.heads
    attended = Counter[tuple[int, int]]()  # Attention calls by pictures and tokens, with the layers of each
    for (pictures, rows, columns), count in images.items():
        whole, side = encoder.whole if encoder.window else layers, encoder.window
        attended[count * pictures, rows * columns] += whole
        if side:
            windows = -(-rows // side) * -(-columns // side)
            attended[count * pictures * windows, -(-rows * columns // windows)] += layers - whole
    wide = 2 * inter if encoder.gated else inter
    activation = (gated_activation if encoder.gated else plain_activation)(patches, inter, dtype)
    calls = [
        Call("patch_embedding", Gemm(patches, hidden, encoder.patch_values, dtype)),
        Call("norm", norm(patches, hidden, residual=False, dtype=dtype), 2 * layers),
        Call("qkv_proj", Gemm(patches, 3 * share * head, hidden, dtype), layers),
        Call("split_heads", strided_copy(patches, 2 * share * head * bytes_of(dtype)), layers),
        Call("rope", rope(patches, 2 * share, head, dtype), layers),
        *(
            Call("attention", EncoderAttention(count, tokens, heads=share, head_dim=head, dtype=dtype), of_layers)
            for (count, tokens), of_layers in attended.items()
        ),
        Call("o_proj", Gemm(patches, hidden, share * head, dtype), layers),
        Call("up_proj", Gemm(patches, wide, hidden, dtype), layers),
        Call("activation", activation, layers),
        Call("down_proj", Gemm(patches, hidden, inter, dtype), layers),
        Call("residual", weighted_sum(patches, hidden, 2, dtype), 2 * layers),
    ]
    embeds = max(1, patches // encoder.rule.merge**2)
    for inputs, outputs in encoder.projector:
        calls.append(Call("projector", Gemm(embeds, -(-outputs // tensor), inputs, dtype)))
        calls.append(Call("projector_activation", plain_activation(embeds, -(-outputs // tensor), dtype)))
    if tensor > 1:
        calls.append(Call("all_reduce", Collective("all_reduce", patches * hidden * 2, tensor), 2 * layers))
    width = encoder.projector[-1][1] * bytes_of(dtype)
    return [*calls, Call("merge_embeddings", copy(embeds, width))]
