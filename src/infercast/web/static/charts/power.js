// Energy per output token by power limit, with TPOT beside it.

import { bottomAxis, canvas, label, leftAxis, line, round } from "../lib/chart.js";
import { shape } from "../lib/dom.js";
import { briefTime, digits, plain, time } from "../lib/format.js";
import { extent, linear, logarithmic } from "../lib/scale.js";
import { hint } from "../lib/tip.js";

const LEFT = 48,
  RIGHT = 14,
  TOP = 20,
  UPPER = 110,
  LOWER = 70,
  GAP = 30,
  AXIS = 38;

/** The drawing of an energy answer: points by power limit. */
export function powerChart(width, found) {
  const points = found.points
    .filter((point) => Number.isFinite(point.value) && point.tpot_ms)
    .sort((one, other) => one.value - other.value);
  const energy = (point) => point.wall_joules_per_output_token ?? point.joules_per_output_token;
  const [from, to] = extent(points.map((point) => point.value));
  const x = linear([from - (to - from) * 0.04, to + (to - from) * 0.04], [LEFT, width - RIGHT]);
  const second = TOP + UPPER + GAP;
  const upper = linear([0, Math.max(...points.map(energy)) * 1.12], [TOP + UPPER, TOP]);
  const [least, most] = extent(points.map((point) => point.tpot_ms.p95));
  const lower = logarithmic([least / 1.2, most * 1.2], [second + LOWER, second]);
  const drawing = canvas(width, second + LOWER + AXIS);
  drawing.append(
    leftAxis(upper, {
      left: LEFT,
      right: width - RIGHT,
      ticks: upper.ticks(4),
      format: plain,
      title: "J per output token, at the wall",
      top: 11,
    }),
    leftAxis(lower, {
      left: LEFT,
      right: width - RIGHT,
      ticks: lower.ticks(3),
      format: briefTime,
      title: "TPOT p95",
      top: second - 9,
    }),
    bottomAxis(x, {
      top: TOP,
      bottom: second + LOWER,
      ticks: x.ticks(width < 420 ? 5 : 8),
      format: plain,
      title: "power limit of each GPU, W",
      right: width - RIGHT,
    }),
    shape("path", { d: line(points.map((point) => [x(point.value), upper(energy(point))])), class: "power-line" }),
    shape("path", {
      d: line(points.map((point) => [x(point.value), lower(point.tpot_ms.p95)])),
      class: "edge running",
    }),
    ...[
      ["best", found.best_value],
      ["now", found.own_value],
    ]
      .filter(([, value]) => Number.isFinite(value))
      .flatMap(([name, value]) => mark(name, value, x, second + LOWER)),
    ...points.map((point) =>
      hint(
        shape("circle", {
          cx: round(x(point.value)),
          cy: round(upper(energy(point))),
          r: 4,
          class: point.slo_holds === false ? "power-dot missed" : "power-dot",
        }),
        `${plain(point.value)} W`,
        [
          `${digits(energy(point))} J per output token at the wall`,
          `TTFT p99 ${time(point.ttft_ms.p99)}, TPOT p95 ${time(point.tpot_ms.p95)}`,
          point.slo_holds === false ? "misses the SLO" : "",
        ],
      ),
    ),
  );
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", found.answer);
  return drawing;
}

function mark(name, value, x, bottom) {
  const right = x(value) > x(x.domain[1]) - 60;
  return [
    shape("line", {
      x1: round(x(value)),
      x2: round(x(value)),
      y1: TOP,
      y2: bottom,
      class: `mark-line ${name === "best" ? "promise" : ""}`,
    }),
    label(x(value) + (right ? -5 : 5), TOP + 10, `${name} · ${plain(value)} W`, {
      class: `mark-name ${name === "best" ? "promise" : ""}`,
      "text-anchor": right ? "end" : "start",
    }),
  ];
}
