// Where the time of a step goes: kernel families of average steps with prompts and of those that decode alone.

import { canvas, label, round, textWidth } from "../lib/chart.js";
import { element, shape, table } from "../lib/dom.js";
import { percent, time } from "../lib/format.js";
import { hint } from "../lib/tip.js";

const TITLES = { prefill: "Steps with prompts", decode: "Decode steps", mixed: "Mixed steps" };
export const BOUNDS = {
  dram: "memory bandwidth",
  tensor: "tensor cores",
  l2: "L2 cache",
  launch: "launch time",
  port: "memory ports",
  blocks: "too few blocks",
  host: "the host",
  link: "the link between GPUs",
  fma: "arithmetic units",
  special: "special functions",
  latency: "latency",
};

/** The drawing for phases: [{phase, steps, perStep, families: [{family, seconds, share, bound, source, kernels}]}] in ms. */
export function stepBars(width, phases) {
  if (!phases.length) return null;
  const row = 76,
    height = phases.length * row;
  const drawing = canvas(width, height);
  phases.forEach((phase, index) => drawing.append(bar(phase, index * row, width)));
  return {
    drawing,
    below: legend(phases),
    label: phases
      .map(
        (phase) =>
          `${TITLES[phase.phase]}: ${time(phase.perStep)} each; ${phase.families
            .slice(0, 3)
            .map((each) => `${each.family} ${percent(each.share)}`)
            .join(", ")}.`,
      )
      .join(" "),
    table: () => asTable(phases),
  };
}

function bar(phase, top, width) {
  const group = shape("g", { class: `steps ${phase.phase}` });
  group.append(label(0, top + 14, TITLES[phase.phase] ?? phase.phase, { class: "part" }));
  group.append(
    label(width, top + 14, `${phase.steps.toLocaleString("en-US")} × ${time(phase.perStep)}`, {
      "text-anchor": "end",
      class: "row-value",
    }),
  );
  let left = 0;
  phase.families.forEach((family, index) => {
    const wide = family.share * width;
    const piece = shape(
      "g",
      {},
      shape("rect", {
        x: round(left),
        y: top + 22,
        width: round(Math.max(0, wide - 1.5)),
        height: 32,
        class: `family shade-${Math.min(index, 6)} ${family.family === "GPU idle" ? "idle" : ""}`,
        rx: 2,
      }),
    );
    if (wide > textWidth(family.family) * 1.1 + 14)
      piece.append(
        label(left + 7, top + 42, family.family, {
          class: index > 1 || family.family === "GPU idle" ? "on-bar pale" : "on-bar",
        }),
      );
    group.append(
      hint(piece, `${family.family}: ${percent(family.share)}`, [
        `${time(family.perStep)} per step`,
        `bound by ${BOUNDS[family.bound] ?? family.bound}`,
        family.source ? `latency: ${family.source}` : "",
        family.names,
      ]),
    );
    left += wide;
  });
  return group;
}

/** What limits each phase, in words. */
function legend(phases) {
  return element(
    "ul",
    { class: "bounds" },
    phases.map((phase) => {
      const first = phase.families[0];
      const idle = phase.families.find((each) => each.family === "GPU idle");
      return element(
        "li",
        {},
        element("span", { class: `key ${phase.phase}` }),
        `${TITLES[phase.phase]}: ${first.family} takes ${percent(first.share)} and is bound by ${BOUNDS[first.bound] ?? first.bound}${idle && idle.share > 0.02 ? `; the GPU idles ${percent(idle.share)} of the time` : ""}.`,
      );
    }),
  );
}

function asTable(phases) {
  return table(
    "Where time goes",
    ["family", "steps", "share", "per step", "bound by", "source"],
    phases.flatMap((phase) =>
      phase.families.map((each) => [
        each.family,
        phase.phase,
        percent(each.share),
        time(each.perStep),
        BOUNDS[each.bound] ?? each.bound,
        each.source ?? "–",
      ]),
    ),
  );
}
