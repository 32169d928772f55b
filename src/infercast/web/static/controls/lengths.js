// Lengths of prompts and answers: a mean on a slider and a shape, written as the command line writes them.

import { element } from "../lib/dom.js";
import { segments, slider } from "./inputs.js";

const SHAPES = [
  ["lognormal", "varied"],
  ["uniform", "uniform"],
  ["fixed", "all alike"],
];

/** What a text such as lognormal:700:0.9:16:8000 says: {shape, mean, rest}. */
export function readLength(text) {
  const [shape, ...numbers] = String(text ?? "").split(":");
  const values = numbers.map(Number);
  if (shape === "uniform") return { shape, mean: (values[0] + values[1]) / 2, sigma: 0.9 };
  if (shape === "lognormal") return { shape, mean: values[0], sigma: values[1] };
  if (shape === "quantiles") return { shape, mean: values[7], sigma: 0.9 };
  return { shape: "fixed", mean: Number(shape), sigma: 0.9 };
}

/** A text for a mean; limits grow with it, and are those of the default where they can be. */
export function writeLength({ shape, mean, sigma }, { least, most, usual }) {
  const whole = Math.max(1, Math.round(mean));
  if (shape === "fixed") return String(whole);
  if (shape === "uniform") return `uniform:${Math.max(1, Math.round(whole / 2))}:${Math.round(whole * 1.5)}`;
  return `lognormal:${whole}:${sigma || usual}:${Math.min(least, Math.max(1, Math.floor(whole / 4)))}:${Math.max(most, Math.round(whole * 4))}`;
}

/** A control for one of them; `basis` is the field's default. */
export function lengths({ label, basis, high, change, help }) {
  const [, , usual, least, most] = String(basis).split(":").map(Number);
  const limits = { least: least || 4, most: most || 1000, usual: usual || 0.9 };
  let now = readLength(basis);
  const mean = slider({
    label,
    unit: "tokens",
    low: 4,
    high,
    whole: true,
    help,
    change: (value, options) => change(writeLength({ ...now, mean: value }, limits), options),
  });
  const shape = segments({
    label: `${label}: how they vary`,
    hideLabel: true,
    choices: SHAPES,
    change: (value, options) => change(writeLength({ ...now, shape: value }, limits), options),
  });
  return {
    node: element("div", { class: "field" }, mean.node, shape.node),
    show(text) {
      now = readLength(text);
      mean.show(now.mean);
      shape.show(now.shape);
    },
  };
}
