// Load over time: requests that run and wait, and how full the KV cache is.

import { bottomAxis, canvas, label, leftAxis, line, round } from "../lib/chart.js";
import { shape, table } from "../lib/dom.js";
import { digits, percent, plain } from "../lib/format.js";
import { linear } from "../lib/scale.js";

const LEFT = 40,
  RIGHT = 10,
  AXIS = 22;

/** The drawing for {seconds, running, waiting, kv_usage, output_tokens_per_s}. */
export function timeline(width, data) {
  if (!data?.seconds?.length) return null;
  const panels = [
    { title: "requests running", values: data.running, colour: "running", height: 84, format: plain },
    { title: "requests waiting", values: data.waiting, colour: "waiting", height: 62, format: plain },
    { title: "KV cache in use", values: data.kv_usage, colour: "kv", height: 62, format: percent },
  ];
  const end = data.seconds.at(-1);
  const x = linear([0, end], [LEFT, width - RIGHT]);
  const height = panels.reduce((sum, panel) => sum + panel.height + 20, 0) + AXIS;
  const drawing = canvas(width, height);
  let top = 0;
  for (const panel of panels) {
    const most = Math.max(...panel.values, panel.format === percent ? 0.01 : 1);
    const bottom = top + 18 + panel.height;
    const y = linear([0, most * 1.08], [bottom, top + 20]);
    drawing.append(
      leftAxis(y, { left: LEFT, right: width - RIGHT, ticks: y.ticks(2), format: panel.format }),
      label(LEFT, top + 13, panel.title, { class: "axis-title" }),
    );
    const points = data.seconds.map((at, index) => [x(at), y(panel.values[index])]);
    drawing.append(
      shape("path", {
        d: `${line(points)}L${round(points.at(-1)[0])} ${bottom}L${round(points[0][0])} ${bottom}Z`,
        class: `area ${panel.colour}`,
      }),
      shape("path", { d: line(points), class: `edge ${panel.colour}` }),
      label(width - RIGHT, top + 13, `at most ${panel.format(Math.max(...panel.values))}`, {
        "text-anchor": "end",
        class: "row-name",
      }),
    );
    top = bottom + 2;
  }
  drawing.append(
    bottomAxis(x, {
      top: top - 2,
      bottom: top - 2,
      ticks: x.ticks(width < 420 ? 4 : 7),
      format: (value) => `${plain(value)} s`,
    }),
  );
  const peak = (values) => digits(Math.max(...values));
  return {
    drawing,
    label: `Load over ${digits(end)} seconds: at most ${peak(data.running)} requests run and ${peak(data.waiting)} wait; the KV cache is at most ${percent(Math.max(...data.kv_usage))} full.`,
    table: () =>
      table(
        "Load over time",
        ["second", "running", "waiting", "KV cache", "output tokens/s"],
        data.seconds
          .map((at, index) => [
            digits(at),
            plain(data.running[index]),
            plain(data.waiting[index]),
            percent(data.kv_usage[index]),
            plain(data.output_tokens_per_s[index]),
          ])
          .filter((_, index) => index % 6 === 0),
      ),
  };
}
