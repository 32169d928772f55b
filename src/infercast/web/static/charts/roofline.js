// The kernels of an average step under the GPU's roofline: prefill and decode on one picture, size by share of time.

import { bottomAxis, canvas, label, leftAxis, line, round, textWidth } from "../lib/chart.js";
import { shape, table } from "../lib/dom.js";
import { brief, digits, joined, percent, scaled } from "../lib/format.js";
import { extent, logarithmic } from "../lib/scale.js";
import { hint } from "../lib/tip.js";

const LEFT = 46,
  RIGHT = 14,
  TOP = 22,
  BOTTOM = 38;
const rate = (value) => joined(rateParts(value));
const rateParts = (value) => {
  const [number, prefix] = scaled(value, 1e3);
  return [number, `${prefix}FLOP/s`];
};

/** The drawing for phases: [{phase, kernels: [{name, share, intensity, reached, limit, dtype}], bandwidth, peaks}]. */
export function roofline(width, phases) {
  const points = phases.flatMap((phase) =>
    phase.kernels
      .filter((each) => each.share > 0.001 && each.reached > 0)
      .map((each) => ({ ...each, phase: phase.phase })),
  );
  if (!points.length) return null;
  const height = Math.round(Math.min(430, Math.max(300, width * 0.7)));
  const { bandwidth } = phases[0];
  const used = new Set(points.filter((each) => each.share > 0.05).map((each) => each.dtype));
  const known = Object.entries(Object.assign({}, ...phases.map((phase) => phase.peaks)));
  const peaks = used.size ? known.filter(([dtype]) => used.has(dtype)) : known;
  const top = Math.max(...peaks.map(([, value]) => value));
  const [low, high] = extent(points.map((each) => each.intensity));
  const x = logarithmic([Math.min(low / 2, 0.5), Math.max(high * 2.5, (top / bandwidth) * 4)], [LEFT, width - RIGHT]);
  const y = logarithmic(
    [Math.min(extent(points.map((each) => each.reached))[0] / 1.8, top / 3e3), top * 1.9],
    [height - BOTTOM, TOP],
  );
  const drawing = canvas(width, height);
  drawing.append(
    bottomAxis(x, {
      top: TOP,
      bottom: height - BOTTOM,
      ticks: x.ticks(7),
      format: brief,
      title: "FLOP per byte",
      right: width - RIGHT,
    }),
    leftAxis(y, { left: LEFT, right: width - RIGHT, ticks: y.ticks(6), format: brief, title: "FLOP/s", top: 11 }),
    ...roofs(x, y, bandwidth, peaks),
  );
  const area = Math.min(26, width / 24);
  const size = (each) => Math.max(3, area * Math.sqrt(each.share));
  points.sort((one, other) => other.share - one.share);
  for (const each of points) drawing.append(bubble(each, x, y, size(each)));
  const written = peaks.map(([dtype, value]) => {
    const wide = textWidth(`${dtype} ${rate(value)}`) + 6;
    return box(width - RIGHT - wide / 2, y(value) - 10, wide, 14);
  });
  drawing.append(...names(points, x, y, size, width, height, written));
  return { drawing, label: said(points), table: () => asTable(points) };
}

function roofs(x, y, bandwidth, peaks) {
  const [from, to] = x.domain;
  const most = Math.max(...peaks.map(([, value]) => value));
  const slope = [
    [Math.max(from, y.domain[0] / bandwidth), 0],
    [most / bandwidth, 0],
  ].map(([at]) => [x(at), y(at * bandwidth)]);
  const angle = (Math.atan2(slope[1][1] - slope[0][1], slope[1][0] - slope[0][0]) * 180) / Math.PI;
  const middle = slope[0].map((from, index) => from + (slope[1][index] - from) * 0.27);
  const under = `${line([...slope, [x(to), y(most)]])}L${round(x(to))} ${round(y.range?.[0] ?? y(y.domain[0]))}L${round(slope[0][0])} ${round(y(y.domain[0]))}Z`;
  return [
    shape("path", { d: under, class: "under-roof" }),
    shape("path", { d: line(slope), class: "roof" }),
    label(middle[0], middle[1] - 7, `memory ${digits(bandwidth / 1e12)} TB/s`, {
      "text-anchor": "middle",
      class: "roof-name",
      transform: `rotate(${round(angle)} ${round(middle[0])} ${round(middle[1])})`,
    }),
    ...peaks.flatMap(([dtype, value]) => [
      shape("path", {
        d: line([
          [x(value / bandwidth), y(value)],
          [x(to), y(value)],
        ]),
        class: "roof",
      }),
      label(x(to) - 2, y(value) - 6, `${dtype} ${rate(value)}`, { "text-anchor": "end", class: "roof-name" }),
    ]),
  ];
}

function bubble(each, x, y, size) {
  const node = shape("circle", {
    cx: round(x(each.intensity)),
    cy: round(y(each.reached)),
    r: round(size),
    class: `kernel ${each.phase}`,
  });
  return hint(node, `${each.name} in ${each.phase}`, [
    `${percent(each.share)} of the time of these steps`,
    `${rate(each.reached)}, ${percent(each.reached / each.limit)} of its limit`,
    `${joined(scaled(each.intensity, 1e4))} FLOP per byte, ${each.dtype}`,
  ]);
}

/** Names of the largest kernels, each where no other name or circle is; those without room have none. */
function names(points, x, y, size, width, height, written) {
  const taken = points
    .filter((each) => each.share > 0.02)
    .map((each) => box(x(each.intensity), y(each.reached), size(each) * 2, size(each) * 2))
    .concat(written);
  const found = [];
  for (const each of points.filter((point) => point.share > 0.012).slice(0, 12)) {
    const cx = x(each.intensity),
      cy = y(each.reached),
      r = size(each),
      wide = textWidth(each.name) + 6;
    const places = [
      [cx + r + 4 + wide / 2, cy],
      [cx - r - 4 - wide / 2, cy],
      [cx, cy + r + 9],
      [cx, cy - r - 8],
      [cx + r + wide / 2, cy + r + 4],
      [cx - r - wide / 2, cy + r + 4],
    ];
    const place = places.find(([px, py]) => {
      const at = box(px, py, wide, 13);
      return (
        at.left > LEFT &&
        at.right < width - 4 &&
        at.top > TOP &&
        at.bottom < height - BOTTOM &&
        !taken.some((other) => overlap(at, other))
      );
    });
    if (!place) continue;
    taken.push(box(place[0], place[1], wide, 13));
    found.push(label(place[0], place[1] + 4, each.name, { "text-anchor": "middle", class: "kernel-name" }));
  }
  return found;
}

const box = (x, y, width, height) => ({
  left: x - width / 2,
  right: x + width / 2,
  top: y - height / 2,
  bottom: y + height / 2,
});
const overlap = (one, other) =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;

function said(points) {
  const largest = points
    .slice(0, 4)
    .map(
      (each) =>
        `${each.name} in ${each.phase}: ${percent(each.share)} of the time, ${percent(each.reached / each.limit)} of its limit`,
    );
  return `Kernels on the roofline. ${largest.join("; ")}.`;
}

function asTable(points) {
  return table(
    "Kernels of average steps",
    ["kernel", "steps", "share", "FLOP per byte", "reaches", "of its limit"],
    points.map((each) => [
      each.name,
      each.phase,
      percent(each.share),
      joined(scaled(each.intensity, 1e4)),
      rate(each.reached),
      percent(each.reached / each.limit),
    ]),
  );
}
