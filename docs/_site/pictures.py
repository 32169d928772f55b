"""The pictures of docs/concepts.md: ``python docs/_site/pictures.py`` writes them to docs/images.

Numbers in them are those of commands that the page shows; what is only a sketch says so.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
INK, SOFT, LINE = "#1f2937", "#6b7280", "#cbd5e1"
BLUE, GREEN, ORANGE, RED, VIOLET = "#4f6bdc", "#2f9e6e", "#e08a1e", "#d1495b", "#8e5bd0"
PALE = {BLUE: "#e3e9fb", GREEN: "#dcf3e8", ORANGE: "#fcecd6", VIOLET: "#efe5fa", RED: "#fae0e4"}


class Picture:
    """An SVG of one size on a white ground, so that it reads on light and dark pages."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self.title = title
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        """A rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self, x: float, y: float, words: str, size: int = 14, fill: str = INK, at: str = "start", bold: bool = False
    ) -> None:
        """One line of text."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{at}"{weight}'
        self.parts.append(f"<text {place}>{escape(words)}</text>")

    def line(self, *points: tuple[float, float], stroke: str = LINE, width: float = 1.5, dash: str = "") -> None:
        """Straight lines from point to point."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashes}/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, stroke: str = SOFT) -> None:
        """A line that ends in a head; level or upright."""
        self.line((x, y), (to_x, to_y), stroke=stroke)
        if y == to_y:
            back = -7 if to_x > x else 7
            head = f"{to_x + back:g},{to_y - 4:g} {to_x:g},{to_y:g} {to_x + back:g},{to_y + 4:g}"
        else:
            back = -7 if to_y > y else 7
            head = f"{to_x - 4:g},{to_y + back:g} {to_x:g},{to_y:g} {to_x + 4:g},{to_y + back:g}"
        self.parts.append(f'<polyline points="{head}" fill="none" stroke="{stroke}" stroke-width="1.5"/>')

    def span(self, x: float, to_x: float, y: float, words: str, colour: str) -> None:
        """A measured stretch: a line with ends and its name below."""
        self.line((x, y), (to_x, y), stroke=colour, width=2)
        for end in (x, to_x):
            self.line((end, y - 5), (end, y + 5), stroke=colour, width=2)
        self.text((x + to_x) / 2, y + 18, words, 13, colour, "middle", bold=True)

    def write(self, name: str) -> None:
        """Save it among the images of the documents."""
        body = "\n".join(self.parts)
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="100%" height="100%" rx="8" fill="#fff"/>\n{body}\n</svg>\n'
        )
        (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")


def pipeline() -> None:
    """From files to an answer."""
    picture = Picture(880, 250, "From a config.json and a datasheet to TTFT and TPOT, in four stages")
    stages = (
        ("Kernels", "what each layer", "asks of the GPU,", "and how long it takes", BLUE),
        ("Steps", "one forward pass:", "kernels, launches,", "work of the host", GREEN),
        ("Serving", "queue, batches,", "KV cache, clock,", "request by request", ORANGE),
        ("Answer", "TTFT, TPOT, tokens/s,", "cost, bottleneck,", "with 80 % intervals", VIOLET),
    )
    for at, (title, *words, colour) in enumerate(stages):
        x = 30 + 212 * at
        picture.box(x, 90, 184, 118, PALE[colour], colour)
        picture.text(x + 92, 116, title, 17, colour, "middle", bold=True)
        for row, line in enumerate(words):
            picture.text(x + 92, 143 + 20 * row, line, 13, INK, "middle")
        if at:
            picture.arrow(x - 28, 149, x - 2, 149)
    inputs = (
        ("config.json", 66),
        ("GPU datasheet", 178),
        ("engine settings", 334),
        ("traffic, SLO", 546),
        ("prices", 758),
    )
    for words, x in inputs:
        picture.text(x, 38, words, 13, SOFT, "middle", bold=True)
        picture.arrow(x, 48, x, 86)
    picture.text(440, 236, "Each stage is tested against measurements of its own.", 13, SOFT, "middle")
    picture.write("concept_pipeline")


def request() -> None:
    """One request on the clock."""
    picture = Picture(880, 230, "A request on the clock: queue, prefill, then one token per step")
    picture.text(30, 36, "One request on the clock (sketch)", 15, INK, bold=True)
    parts = ((40, 110, "queue", ORANGE), (150, 170, "prefill: the prompt", BLUE))
    for x, width, words, colour in parts:
        picture.box(x, 62, width - 3, 44, PALE[colour], colour)
        picture.text(x + width / 2, 89, words, 13, colour, "middle", bold=True)
    for token in range(10):
        x = 320 + 48 * token
        picture.box(x, 62, 45, 44, PALE[GREEN], GREEN)
        picture.text(x + 22, 89, f"step {token + 1}" if token < 3 else "…", 12, GREEN, "middle")
        picture.arrow(x + 1, 106, x + 1, 128, GREEN)
    picture.arrow(800, 106, 800, 128, GREEN)
    picture.text(560, 145, "output tokens reach the client", 13, GREEN, "middle")
    picture.line((40, 62), (40, 190), stroke=SOFT, dash="3 3")
    picture.text(44, 54, "request sent", 12, SOFT)
    picture.span(40, 320, 172, "TTFT: time to first token", RED)
    picture.span(324, 800, 172, "TPOT: mean of these gaps", VIOLET)
    picture.write("concept_request")


def batching() -> None:
    """Continuous batching: what each sequence computes in each step."""
    picture = Picture(880, 300, "Continuous batching: sequences join and leave between steps")
    picture.text(30, 34, "Tokens that each sequence computes, step by step (sketch)", 15, INK, bold=True)
    rows = {
        "A": ["300", "1", "1", "1", "1", "", "", "", ""],
        "B": ["", "500", "1", "1", "1", "1", "1", "1", "1"],
        "C": ["", "", "wait", "900", "1", "1", "1", "1", "1"],
        "D": ["", "", "", "", "2,000", "1,200", "1", "1", "1"],
    }
    for step in range(9):
        picture.text(126 + 84 * step, 64, f"step {step + 1}", 12, SOFT, "middle")
    for row, (name, cells) in enumerate(rows.items()):
        y = 74 + 44 * row
        picture.text(36, y + 25, name, 15, INK, bold=True)
        for step, words in enumerate(cells):
            if not words:
                continue
            colour = ORANGE if words == "wait" else GREEN if words == "1" else BLUE
            picture.box(88 + 84 * step, y, 78, 38, PALE[colour], colour)
            picture.text(127 + 84 * step, y + 24, words, 13, colour, "middle", bold=True)
    legend = (
        (88, BLUE, "prompt tokens (prefill)"),
        (300, GREEN, "one output token (decode)"),
        (536, ORANGE, "waits: no room"),
    )
    for x, colour, words in legend:
        picture.box(x, 262, 16, 16, PALE[colour], colour)
        picture.text(x + 24, 275, words, 13)
    picture.write("concept_batching")


def memory() -> None:
    """What fills the memory of an H200 with llama-3.1-8b."""
    picture = Picture(880, 190, "Memory of one H200 with llama-3.1-8b: weights, KV cache and the rest")
    picture.text(30, 36, "infercast memory llama-3.1-8b --gpu h200-sxm", 15, INK, bold=True)
    parts = (
        (10.7, "weights", "14.96 GiB", BLUE),
        (1.2, "", "", VIOLET),
        (80.2, "KV cache", "112.11 GiB: 57,401 blocks of 16 tokens", GREEN),
        (8.0, "left free", "11.18", ORANGE),
    )
    x = 30.0
    for share, words, size, colour in parts:
        width = share * 8.2
        picture.box(x, 58, width - 2, 60, PALE[colour], colour)
        if words:
            picture.text(x + width / 2, 84, words, 13, colour, "middle", bold=True)
            picture.text(x + width / 2, 104, size, 12, INK, "middle")
        x += width
    picture.text(30, 150, "The thin part holds activations, CUDA graphs and libraries.", 13, SOFT)
    picture.text(30, 172, "Each token of each running sequence takes 128 KiB of the KV cache.", 13, SOFT)
    picture.write("concept_memory")


LOADS = (
    (5, 34.3, 5.45), (10.7, 40.2, 6.35), (16.4, 44.8, 7.70), (22.1, 53.1, 9.63),
    (27.9, 65.6, 12.8), (33.6, 86.6, 20.2), (39.3, 153, 43.9), (45, 273, 67.1),
)  # fmt: skip
"""Rate, TTFT p50 and TPOT p50 in milliseconds, as `infercast sweep` prints them."""
KNEE, SATURATION = 28.6, 40.3


def load_curve() -> None:
    """Latency along the rate, with the knee and saturation."""
    picture = Picture(880, 330, "Median TTFT and TPOT of llama-3.1-8b on one H200 along the request rate")
    picture.text(30, 34, "llama-3.1-8b on one H200: medians along the request rate", 15, INK, bold=True)
    left, bottom, wide, high = 80, 280, 760, 220

    def at(rate: float, milliseconds: float) -> tuple[float, float]:
        return left + wide * rate / 48, bottom - high * milliseconds / 280

    for mark in (0, 100, 200):
        picture.line(at(0, mark), at(48, mark), width=1)
        picture.text(left - 8, at(0, mark)[1] + 4, f"{mark} ms", 12, SOFT, "end")
    for rate in (0, 10, 20, 30, 40):
        picture.text(at(rate, 0)[0], bottom + 20, f"{rate}", 12, SOFT, "middle")
    picture.text(left + wide, bottom + 38, "requests per second", 12, SOFT, "end")
    for rate, words, colour in ((KNEE, "knee", ORANGE), (SATURATION, "saturation", RED)):
        x = at(rate, 0)[0]
        picture.line((x, bottom), (x, bottom - high), stroke=colour, dash="4 4")
        picture.text(x - 6, bottom - high + 12, f"{words} {rate:g}/s", 13, colour, "end", bold=True)
    for column, words, colour in ((1, "TTFT p50", BLUE), (2, "TPOT p50", GREEN)):
        points = [at(row[0], row[column]) for row in LOADS]
        picture.line(*points, stroke=colour, width=2.5)
        for x, y in points:
            picture.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{colour}"/>')
        picture.text(points[-1][0] + 8, points[-1][1] + 4, words, 12, colour, bold=True)
    picture.write("concept_load")


KERNELS = (
    ("gate_up_proj", 3.82), ("attention", 3.28), ("down_proj", 3.31),
    ("qkv_proj", 3.20), ("o_proj", 2.69), ("lm_head", 3.91),
)  # fmt: skip
"""TB/s that kernels of a decode step reach, as `infercast kernels` prints them."""


def kernels() -> None:
    """How close the kernels of a decode step come to the memory's bandwidth."""
    picture = Picture(880, 300, "Kernels of a decode step against the memory bandwidth of an H200")
    picture.text(30, 34, "A decode step of 32 sequences on an H200: bandwidth that kernels reach", 15, INK, bold=True)
    left, scale = 170, 125
    for row, (name, rate) in enumerate(KERNELS):
        y = 58 + 34 * row
        picture.text(left - 10, y + 18, name, 13, INK, "end")
        picture.box(left, y, rate * scale, 26, PALE[BLUE], BLUE)
        picture.text(left + rate * scale - 8, y + 18, f"{rate:.2f} TB/s", 13, BLUE, "end", bold=True)
    limit = left + 4.8 * scale
    picture.line((limit, 50), (limit, 266), stroke=RED, width=2)
    picture.text(limit + 60, 284, "4.80 TB/s: limit of the hardware", 13, RED, "end", bold=True)
    picture.write("concept_kernels")


if __name__ == "__main__":
    for draw in (pipeline, request, batching, memory, load_curve, kernels):
        draw()
