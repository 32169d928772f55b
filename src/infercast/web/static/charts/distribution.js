// How long requests wait: the distribution of a latency, and below it its percentiles with their 80 % intervals.

import { bottomAxis, canvas, label, line, round, textWidth } from "../lib/chart.js";
import { shape, table } from "../lib/dom.js";
import { briefTime, time } from "../lib/format.js";
import { extent, logarithmic } from "../lib/scale.js";
import { hint } from "../lib/tip.js";

const SHOWN = ["p50", "p90", "p95", "p99"];
const SIDE = 34,
  AXIS = 24,
  ROW = 19;
let right = 62;

/** The drawing for runs: [{letter, colour, quantiles, percentiles, intervals, before, limits}]. */
export function distribution(width, runs, title) {
  const known = runs.filter((run) => run.percentiles);
  if (!known.length) return null;
  const alone = known.length === 1;
  const rows = alone ? SHOWN : ["p50", "p99"];
  const hill = alone ? 92 : 46;
  const block = hill + rows.length * ROW + (alone ? 10 : 16);
  const bottom = 6 + block * known.length;
  right =
    16 + Math.max(...known.flatMap((run) => rows.map((name) => textWidth(time(run.percentiles[name]), 13) * 1.06)));
  const x = logarithmic(range(known), [SIDE, width - right]);
  const drawing = canvas(width, bottom + AXIS);
  drawing.append(bottomAxis(x, { top: 4, bottom, ticks: x.ticks(width < 420 ? 5 : 8), format: briefTime }));
  drawing.append(...limits(known, x, bottom, width));
  known.forEach((run, index) => drawing.append(one(run, x, { top: 6 + index * block, hill, rows, width, alone })));
  return { drawing, label: `${title}. ${known.map(said).join(" ")}`, table: () => asTable(title, known) };
}

function range(runs) {
  const values = runs.flatMap((run) => [
    ...(run.quantiles ?? []).slice(1, -1),
    ...SHOWN.map((name) => run.percentiles[name]),
    ...SHOWN.flatMap((name) => run.intervals?.[name] ?? []),
    ...(run.before
      ? [run.before.percentiles.p50, run.before.percentiles.p99, ...(run.before.quantiles ?? []).slice(1, -1)]
      : []),
    ...run.limits.map((limit) => limit.limit),
  ]);
  const [low, high] = extent(values.filter((value) => value > 0));
  return high / low < 2 ? [low / 1.4, high * 1.4] : [low / 1.16, high * 1.06];
}

function one(run, x, { top, hill, rows, width, alone }) {
  const group = shape("g", { class: `run-${run.colour}` });
  const base = top + hill;
  if (run.before?.quantiles)
    group.append(shape("path", { d: outline(run.before.quantiles, x, base, hill - 4), class: "hill before" }));
  if (run.quantiles) {
    const path = outline(run.quantiles, x, base, hill - 4);
    group.append(
      shape("path", { d: `${path}V${base}H${SIDE}Z`, class: "hill" }),
      shape("path", { d: path, class: "hill-edge" }),
    );
  }
  group.append(shape("line", { x1: SIDE, x2: width - right, y1: base, y2: base, class: "base" }));
  if (!alone) group.append(badge(14, base - 14, run));
  rows.forEach((name, index) => group.append(whisker(run, name, x, base + 13 + index * ROW, width)));
  return group;
}

/** A percentile as a mark on its interval, with its value at the right. */
function whisker(run, name, x, y, width) {
  const value = run.percentiles[name],
    interval = run.intervals?.[name],
    before = run.before?.percentiles[name];
  const marks = shape("g", { class: "whisker" });
  marks.append(label(SIDE - 6, y + 4, name, { "text-anchor": "end", class: "row-name" }));
  if (Number.isFinite(before) && Math.abs(before / value - 1) > 0.001) {
    marks.append(
      shape("line", { x1: round(x(before)), x2: round(x(before)), y1: y - 6, y2: y + 6, class: "tick-before" }),
    );
  }
  if (interval)
    marks.append(
      shape("line", { x1: round(x(interval[0])), x2: round(x(interval[1])), y1: y, y2: y, class: "interval" }),
    );
  marks.append(shape("circle", { cx: round(x(value)), cy: y, r: 4.2, class: "dot" }));
  marks.append(label(width, y + 4, time(value), { "text-anchor": "end", class: "row-value" }));
  marks.append(shape("rect", { x: 0, y: y - ROW / 2, width, height: ROW, class: "catch" }));
  return hint(marks, `${name}: ${time(value)}`, [
    interval ? `80 % interval ${time(interval[0])} to ${time(interval[1])}` : "interval not worked out yet",
    Number.isFinite(before) ? `before the change ${time(before)}` : "",
  ]);
}

function limits(runs, x, bottom, width) {
  const seen = new Map(runs.flatMap((run) => run.limits).map((limit) => [`${limit.name} ${limit.limit}`, limit]));
  return [...seen.values()].flatMap((limit) => {
    const at = x(limit.limit),
      side = at > width * 0.6 ? "end" : "start";
    return [
      shape("rect", {
        x: round(at),
        y: 4,
        width: Math.max(0, round(width - right - at)),
        height: bottom - 4,
        class: "beyond",
      }),
      shape("line", { x1: round(at), x2: round(at), y1: 4, y2: bottom, class: "limit" }),
      label(at + (side === "end" ? -5 : 5), 14, `SLO ${limit.name} < ${briefTime(limit.limit)}`, {
        "text-anchor": side,
        class: "limit-name",
      }),
    ];
  });
}

/** The outline of a smoothed histogram over the logarithm of the latency, from quantiles. */
function outline(quantiles, x, base, height) {
  const logs = quantiles.filter((value) => value > 0).map(Math.log);
  const inner = logs.slice(Math.floor(logs.length * 0.25), Math.ceil(logs.length * 0.75));
  const spread = Math.max(0.02, (inner.at(-1) - inner[0]) / 1.35);
  const width = Math.max(0.025, 0.7 * spread * logs.length ** -0.2);
  const [low, high] = x.domain.map(Math.log);
  const steps = 150;
  const density = Array.from({ length: steps + 1 }, (_, index) => {
    const at = low + ((high - low) * index) / steps;
    return [at, logs.reduce((sum, value) => sum + Math.exp(-0.5 * ((at - value) / width) ** 2), 0)];
  });
  const most = Math.max(...density.map(([, value]) => value)) || 1;
  return line(density.map(([at, value]) => [x(Math.exp(at)), base - (value / most) * height]));
}

export const badge = (x, y, run) =>
  shape(
    "g",
    { class: `badge run-${run.colour}` },
    shape("circle", { cx: x, cy: y, r: 9 }),
    label(x, y + 4, run.letter, { "text-anchor": "middle" }),
  );

function said(run) {
  const { p50, p99 } = run.percentiles;
  return `Run ${run.letter}: median ${time(p50)}, 99th percentile ${time(p99)}.`;
}

function asTable(title, runs) {
  const names = ["mean", ...SHOWN];
  const range = (run, name) =>
    run.intervals?.[name] ? `${time(run.intervals[name][0])} to ${time(run.intervals[name][1])}` : "–";
  const head = ["", ...runs.flatMap((run) => [`${run.letter}`, "80 % interval"])];
  return table(
    title,
    head,
    names.map((name) => [name, ...runs.flatMap((run) => [time(run.percentiles[name]), range(run, name)])]),
  );
}
