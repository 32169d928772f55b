// GPU memory as a stack that fills: what each part takes, and how far requests fill the KV cache.

import { canvas, label, round, textWidth } from "../lib/chart.js";
import { shape, table } from "../lib/dom.js";
import { digits, gibibytes, joined, percent } from "../lib/format.js";
import { apart } from "../lib/scale.js";
import { hint } from "../lib/tip.js";
import { badge } from "./distribution.js";

const TOP = 26,
  HEIGHT = 300,
  BOTTOM = 22;

/** The drawing for runs: [{letter, colour, memory: {total, parts: [{key, title, bytes}], mean, peak, tokens}}]. */
export function memoryStack(width, runs) {
  const known = runs.filter((run) => run.memory);
  if (!known.length) return null;
  const most = Math.max(...known.map((run) => Math.max(run.memory.total, used(run.memory))));
  const drawing = canvas(width, TOP + HEIGHT + BOTTOM);
  drawing.append(shape("defs", {}, pattern("stripes"), pattern("stripes-bad")));
  const alone = known.length === 1;
  const each = alone ? Math.min(132, width * 0.36) : Math.min(96, (width - 14 * (known.length - 1)) / known.length);
  known.forEach((run, index) => {
    const left = alone ? 0 : index * ((width - each) / Math.max(1, known.length - 1));
    drawing.append(tower(run, alone ? 0 : Math.min(left, index * (each + 40)), each, most, alone ? width : 0));
  });
  return {
    drawing,
    label: known
      .map(
        (run) =>
          `Run ${run.letter}: ${run.memory.parts.map((part) => `${part.title} ${joined(gibibytes(part.bytes))}`).join(", ")}.`,
      )
      .join(" "),
    table: () => asTable(known),
  };
}

const used = (memory) =>
  memory.parts.reduce((sum, part) => sum + (part.key === "left_free" ? 0 : Math.max(0, part.bytes)), 0);

function pattern(name) {
  return shape(
    "pattern",
    { id: name, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    shape("line", { x1: 0, x2: 0, y1: 0, y2: 6, class: name }),
  );
}

function tower(run, left, width, most, room) {
  const { memory } = run;
  const tall = (bytes) => (bytes / most) * HEIGHT;
  const group = shape("g", { class: `tower run-${run.colour}` });
  const names = [];
  let from = TOP + HEIGHT;
  for (const part of memory.parts) {
    const height = Math.max(0, tall(part.bytes));
    if (!height) continue;
    from -= height;
    group.append(layer(part, memory, left, from, width, height));
    names.push({ part, y: from + height / 2 });
  }
  const roof = TOP + HEIGHT - tall(memory.total);
  group.append(
    shape("rect", { x: left, y: round(roof), width, height: round(tall(memory.total)), class: "case", rx: 5 }),
  );
  if (used(memory) > memory.total * 1.0001)
    group.append(shape("rect", { x: left, y: round(from), width, height: round(roof - from), class: "too-much" }));
  const size = digits(memory.total / 2 ** 30),
    over = used(memory) > memory.total * 1.0001;
  group.append(
    label(
      over ? left : left + width / 2,
      Math.min(roof, from) - 8,
      over ? `needs ${digits(used(memory) / 2 ** 30)} of ${size} GiB` : `${size} GiB`,
      { "text-anchor": over ? "start" : "middle", class: "row-value" },
    ),
  );
  if (room) group.append(...legend(names, memory, left + width, room));
  else
    group.append(
      badge(left + 12, TOP + HEIGHT + 13, run),
      label(left + 26, TOP + HEIGHT + 17, `KV ${percent(memory.peak)}`, { class: "row-name" }),
    );
  return group;
}

function layer(part, memory, x, y, width, height) {
  const inner = shape(
    "g",
    { class: `layer ${part.key}` },
    shape("rect", { x, y: round(y), width, height: round(Math.max(0.6, height)) }),
  );
  if (part.key === "kv_cache" && Number.isFinite(memory.peak)) {
    for (const [name, share] of [
      ["peak", memory.peak],
      ["mean", memory.mean],
    ]) {
      const filled = Math.max(share > 0 ? 1.5 : 0, height * Math.min(1, share ?? 0));
      inner.append(
        shape("rect", { x, y: round(y + height - filled), width, height: round(filled), class: `filled ${name}` }),
      );
    }
  }
  return hint(inner, part.title, [
    joined(gibibytes(part.bytes)),
    part.key === "kv_cache"
      ? `${percent(memory.mean)} in use on average, ${percent(memory.peak)} at most`
      : `${percent(part.bytes / memory.total)} of the GPU`,
  ]);
}

/** Names beside the stack, moved apart where parts are thin. */
function legend(names, memory, left, room) {
  const places = apart(
    names.map((each) => each.y),
    33,
    TOP + 8,
    TOP + HEIGHT - 8,
  );
  return names.map(({ part, y }, index) => {
    const at = places[index];
    const size = joined(gibibytes(part.bytes));
    const longer =
      part.key === "kv_cache" && Number.isFinite(memory.peak) ? `${size} · ${percent(memory.peak)} used at most` : size;
    const fits = left + 27 + textWidth(longer) < room;
    return shape(
      "g",
      { class: "layer-name" },
      shape("path", {
        d: `M${round(left + 3)} ${round(y)}L${round(left + 16)} ${round(at)}H${round(left + 22)}`,
        class: "lead",
      }),
      label(left + 27, at - 2, part.title, { class: "part" }),
      label(left + 27, at + 12, fits ? longer : size, { class: "row-name" }),
    );
  });
}

function asTable(runs) {
  const titles = [...new Set(runs.flatMap((run) => run.memory.parts.map((part) => part.title)))];
  const size = (run, title) => {
    const part = run.memory.parts.find((each) => each.title === title);
    return part ? joined(gibibytes(part.bytes)) : "–";
  };
  return table(
    "GPU memory",
    ["", ...runs.map((run) => run.letter)],
    [
      ...titles.map((title) => [title, ...runs.map((run) => size(run, title))]),
      ["whole GPU", ...runs.map((run) => joined(gibibytes(run.memory.total)))],
      ["KV cache in use, most", ...runs.map((run) => percent(run.memory.peak))],
    ],
  );
}
