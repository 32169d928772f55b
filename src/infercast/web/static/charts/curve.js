// The load curve: latency and throughput along the request rate, the knee, and how far the SLO holds.

import { bottomAxis, canvas, label, leftAxis, line, round } from "../lib/chart.js";
import { shape, table } from "../lib/dom.js";
import { brief, briefTime, dollars, joined, plain, scaled, time } from "../lib/format.js";
import { extent, linear, logarithmic } from "../lib/scale.js";
import { hint } from "../lib/tip.js";
import { badge } from "./distribution.js";

const LEFT = 52,
  RIGHT = 16,
  TOP = 20,
  GAP = 30,
  AXIS = 38;

/**
 * The drawing for runs: [{letter, colour, rate, curve: {points, knee, slo_holds_up_to, saturation_requests_per_s}}].
 * `choose(rate)` is called when a rate is clicked; `quantity` is ttft or tpot.
 */
export function loadCurve(width, runs, choose, quantity = "ttft") {
  const of = (point) => point[`${quantity}_ms`];
  const known = runs.filter((run) => run.curve && served(run).length);
  if (!known.length) return null;
  const high = Math.round(Math.min(190, Math.max(140, width * 0.3))),
    low = 92;
  const all = known.flatMap((run) => served(run));
  const x = linear(
    [
      0,
      Math.max(
        ...all.map((point) => point.value),
        ...known.map((run) => Math.min(run.rate ?? 0, 1.4 * lastRate(run))),
      ) * 1.03,
    ],
    [LEFT, width - RIGHT],
  );
  const [least, most] = extent(
    all.flatMap((point) => (known.length === 1 ? [of(point).p50, of(point).p99] : [of(point).p99])),
  );
  const upper = logarithmic([least / 1.3, most * (known.length === 1 ? 1.3 : 1.7)], [TOP + high, TOP]);
  const second = TOP + high + GAP;
  const lower = linear(
    [0, Math.max(...all.map((point) => point.output_tokens_per_s)) * (known.length === 1 ? 1.1 : 1.32)],
    [second + low, second],
  );
  const drawing = canvas(width, second + low + AXIS);
  drawing.append(
    leftAxis(upper, {
      left: LEFT,
      right: width - RIGHT,
      ticks: upper.ticks(5),
      format: briefTime,
      title: `${quantity.toUpperCase()}${known.length === 1 ? "" : " p99"}`,
      top: 11,
    }),
    leftAxis(lower, {
      left: LEFT,
      right: width - RIGHT,
      ticks: lower.ticks(4),
      format: brief,
      title: "output tokens/s",
      top: second - 9,
    }),
    bottomAxis(x, {
      top: TOP,
      bottom: second + low,
      ticks: x.ticks(width < 420 ? 5 : 9),
      format: plain,
      title: "requests/s",
      right: width - RIGHT,
    }),
  );
  for (const run of known) drawing.append(lines(run, of, x, upper, lower, known.length === 1));
  if (known.length === 1) drawing.append(...marks(known[0], x, second + low, width));
  drawing.append(...now(known, x, second + low));
  drawing.append(clickArea(x, width, second + low, choose));
  return { drawing, label: known.map(said).join(" "), table: () => asTable(known) };
}

const served = (run) =>
  run.curve.points.filter((point) => point.ttft_ms && point.tpot_ms && Number.isFinite(point.value));
const lastRate = (run) => Math.max(...served(run).map((point) => point.value));

/** One run: from p50 to p99 where it stands alone, p99 with its letter beside others. */
function lines(run, of, x, upper, lower, alone) {
  const points = served(run);
  const path = (pick, y) => line(points.map((point) => [x(point.value), y(pick(point))]));
  const band = `${path((point) => of(point).p50, upper)}${line([...points].reverse().map((point) => [x(point.value), upper(of(point).p99)])).replace("M", "L")}Z`;
  return shape(
    "g",
    { class: `curve run-${run.colour}` },
    alone
      ? [
          shape("path", { d: band, class: "band" }),
          shape("path", { d: path((point) => of(point).p50, upper), class: "thin" }),
        ]
      : null,
    shape("path", { d: path((point) => of(point).p99, upper), class: "thick" }),
    shape("path", { d: path((point) => point.output_tokens_per_s, lower), class: "thick" }),
    points.map((point) =>
      hint(
        shape("circle", {
          cx: round(x(point.value)),
          cy: round(upper(of(point).p99)),
          r: 3.4,
          class: point.slo_holds === false ? "dot missed" : "dot",
        }),
        `${plain(point.value)} requests/s`,
        facts(point),
      ),
    ),
    points.map((point) =>
      hint(
        shape("circle", { cx: round(x(point.value)), cy: round(lower(point.output_tokens_per_s)), r: 3, class: "dot" }),
        `${plain(point.value)} requests/s`,
        facts(point),
      ),
    ),
    alone
      ? [
          label(x(points[0].value), upper(of(points[0]).p99) - 8, "p99", {
            class: "row-name",
            "text-anchor": "middle",
          }),
          label(x(points[0].value), upper(of(points[0]).p50) + 16, "p50", {
            class: "row-name",
            "text-anchor": "middle",
          }),
        ]
      : [
          badge(x(points.at(-1).value), upper(of(points.at(-1)).p99) - 13, run),
          badge(x(points.at(-1).value), lower(points.at(-1).output_tokens_per_s) - 13, run),
        ],
  );
}

const facts = (point) => [
  `TTFT p50 ${time(point.ttft_ms.p50)}, p99 ${time(point.ttft_ms.p99)}`,
  `TPOT p50 ${time(point.tpot_ms.p50)}`,
  `${joined(scaled(point.output_tokens_per_s))} output tokens/s`,
  point.usd_per_million_output_tokens
    ? `${dollars(point.usd_per_million_output_tokens)} per million output tokens`
    : "",
  point.state === "stable" ? "" : `state: ${point.state}`,
];

/** The knee, the end of the SLO and saturation as upright lines, their names below each other where they are close. */
function marks(run, x, bottom, width) {
  const { knee, slo_holds_up_to: promise, saturation_requests_per_s: full } = run.curve;
  const found = [
    knee?.reached ? { at: knee.value, text: "knee", kind: "knee" } : null,
    promise?.reached ? { at: promise.value, text: "SLO holds up to here", kind: "promise" } : null,
    Number.isFinite(full) && full < x.domain[1] ? { at: full, text: "saturated", kind: "full" } : null,
  ]
    .filter(Boolean)
    .sort((one, other) => one.at - other.at);
  return found.flatMap((mark, index) => {
    const at = x(mark.at),
      toRight = at < width * 0.45;
    return [
      mark.kind === "full"
        ? shape("rect", {
            x: round(at),
            y: TOP,
            width: round(Math.max(0, width - RIGHT - at)),
            height: bottom - TOP,
            class: "beyond",
          })
        : null,
      shape("line", { x1: round(at), x2: round(at), y1: TOP, y2: bottom, class: `mark-line ${mark.kind}` }),
      label(at + (toRight ? 5 : -5), TOP + 11 + index * 15, `${mark.text} · ${plain(mark.at)}/s`, {
        "text-anchor": toRight ? "start" : "end",
        class: `mark-name ${mark.kind}`,
      }),
    ].filter(Boolean);
  });
}

function now(runs, x, bottom) {
  return runs
    .filter((run) => run.rate && run.rate <= x.domain[1])
    .map((run) =>
      shape(
        "g",
        { class: `now run-${run.colour}` },
        shape("line", { x1: round(x(run.rate)), x2: round(x(run.rate)), y1: TOP, y2: bottom }),
        shape("path", { d: `M${round(x(run.rate))} ${bottom}l-5 8h10z` }),
      ),
    );
}

function clickArea(x, width, bottom, choose) {
  const area = shape("rect", {
    x: LEFT,
    y: bottom - 4,
    width: width - LEFT - RIGHT,
    height: 34,
    class: "catch choose",
  });
  area.addEventListener("click", (event) => {
    const box = area.ownerSVGElement.getBoundingClientRect();
    choose(Number(Math.max(0.1, x.back(event.clientX - box.left)).toPrecision(2)));
  });
  return hint(area, "Click to set the request rate");
}

function said(run) {
  const { knee, slo_holds_up_to: promise, saturation_requests_per_s: full } = run.curve;
  return `Run ${run.letter}: ${knee?.reached ? `the knee is at ${plain(knee.value)} requests/s` : "no knee was reached"}${promise ? `; the SLO holds up to ${plain(promise.value)} requests/s` : ""}${full ? `; saturated at ${plain(full)} requests/s` : ""}.`;
}

function asTable(runs) {
  return table(
    "Load curve",
    [
      "requests/s",
      "run",
      "TTFT p50",
      "TTFT p99",
      "TPOT p50",
      "output tokens/s",
      "$ per million output tokens",
      "state",
    ],
    runs.flatMap((run) =>
      served(run).map((point) => [
        plain(point.value),
        run.letter,
        time(point.ttft_ms.p50),
        time(point.ttft_ms.p99),
        time(point.tpot_ms.p50),
        joined(scaled(point.output_tokens_per_s)),
        dollars(point.usd_per_million_output_tokens),
        point.state,
      ]),
    ),
  );
}
