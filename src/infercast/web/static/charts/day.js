// A day of traffic: requests per second over it, and how many replicas each policy runs.

import { bottomAxis, canvas, label, leftAxis, line, round, textWidth } from "../lib/chart.js";
import { shape } from "../lib/dom.js";
import { plain } from "../lib/format.js";
import { linear } from "../lib/scale.js";

const LEFT = 40,
  RIGHT = 12,
  TOP = 20,
  UPPER = 84,
  LOWER = 110,
  GAP = 30,
  AXIS = 22;
export const POLICIES = { fixed: "Fixed fleet", scheduled: "Timetable", autoscaled: "Autoscaled" };

/** The drawing of a capacity answer. */
export function dayChart(width, day) {
  const rates = thinned(day.requests_per_s),
    hours = rates.map((_, index) => (index / (rates.length - 1)) * 24);
  const x = linear([0, 24], [LEFT, width - RIGHT]);
  const second = TOP + UPPER + GAP;
  const upper = linear([0, Math.max(...rates) * 1.1], [TOP + UPPER, TOP]);
  const policies = Object.entries(day.policies);
  const most = Math.max(...policies.map(([, policy]) => policy.replicas_max ?? 1));
  const lower = linear([0, most * 1.15], [second + LOWER, second]);
  const step = Math.min(24 + textWidth("Autoscaled") * 1.15, (width - LEFT - 66) / 3);
  const drawing = canvas(width, second + LOWER + AXIS);
  const points = rates.map((rate, index) => [x(hours[index]), upper(rate)]);
  drawing.append(
    leftAxis(upper, {
      left: LEFT,
      right: width - RIGHT,
      ticks: upper.ticks(3),
      format: plain,
      title: "requests/s",
      top: 11,
    }),
    leftAxis(lower, {
      left: LEFT,
      right: width - RIGHT,
      ticks: lower.ticks(Math.min(4, most)).filter(Number.isInteger),
      format: plain,
      title: "replicas",
      top: second - 9,
    }),
    bottomAxis(x, {
      top: TOP,
      bottom: second + LOWER,
      ticks: width < 420 ? [0, 6, 12, 18, 24] : [0, 4, 8, 12, 16, 20, 24],
      format: (hour) => `${hour}:00`,
    }),
    shape("path", { d: `${line(points)}V${TOP + UPPER}H${LEFT}Z`, class: "area running" }),
    shape("path", { d: line(points), class: "edge running" }),
  );
  policies.forEach(([name, policy], index) => {
    const replicas = thinned(policy.replicas_paid ?? policy.replicas);
    drawing.append(
      shape("path", {
        d: stairs(replicas.map((count, at) => [x(hours[at]), lower(count) - index * 2])),
        class: `policy run-${index}`,
      }),
    );
  });
  drawing.append(
    ...policies.map(([name], index) =>
      shape(
        "g",
        { class: `run-${index}` },
        shape("rect", {
          x: LEFT + 66 + index * step,
          y: second - 17,
          width: 10,
          height: 10,
          rx: 3,
          class: "policy-key",
        }),
        label(LEFT + 80 + index * step, second - 8, POLICIES[name] ?? name),
      ),
    ),
  );
  drawing.setAttribute("role", "img");
  drawing.setAttribute(
    "aria-label",
    `A day of up to ${plain(Math.max(...rates))} requests/s. ${policies.map(([name, policy]) => `${POLICIES[name] ?? name}: ${plain(policy.replicas_min)} to ${plain(policy.replicas_max)} replicas`).join("; ")}.`,
  );
  return drawing;
}

const thinned = (values) => values.filter((_, index) => index % Math.max(1, Math.floor(values.length / 288)) === 0);

function stairs(points) {
  return points.map(([x, y], index) => (index ? `H${round(x)}V${round(y)}` : `M${round(x)} ${round(y)}`)).join("");
}
