// Single controls: each has a node and show(value), and calls change(value) when a user sets it.

import { element } from "../lib/dom.js";
import { plain } from "../lib/format.js";

let count = 0;
const nextId = () => `input-${(count += 1)}`;
const STEPS = 240;

/** The values that a slider stops at: two digits that count, each once, evenly over its range. */
function roundValues(low, high, linear, whole) {
  const all = Array.from({ length: STEPS + 1 }, (_, step) => {
    const raw = linear ? low + (step / STEPS) * (high - low) : low * (high / low) ** (step / STEPS);
    return whole ? Math.round(Number(raw.toPrecision(2))) : Number(raw.toPrecision(2));
  });
  return [...new Set(all)];
}

/** Marks a text that is not taken, and says what would be; an empty `wanted` takes the mark off. */
function marks(input, node) {
  const note = element("p", { class: "wrong", role: "alert", hidden: true });
  node.append(note);
  return (wanted) => {
    input.setAttribute("aria-invalid", String(Boolean(wanted)));
    note.hidden = !wanted;
    note.textContent = wanted ? `Not used: it must be ${wanted}.` : "";
  };
}

/** A slider on a logarithmic (or linear) range beside a number that can be typed. */
export function slider({ label, unit, low, high, linear = false, whole = false, change, help = "", note = null }) {
  const id = nextId();
  const values = roundValues(low, high, linear, whole);
  const last = values.length - 1;
  const toValue = (step) => values[step];
  const toStep = (value) =>
    values.reduce((best, each, step) => (Math.abs(each - value) < Math.abs(values[best] - value) ? step : best), 0);
  const range = element("input", { type: "range", min: 0, max: last, step: 1, "aria-label": label, title: help });
  const number = element("input", { type: "text", inputmode: "decimal", class: "number", id });
  const node = element(
    "div",
    { class: "field" },
    element(
      "div",
      { class: "field-head" },
      element("label", { for: id }, label),
      element("span", { class: "value" }, number, unit),
    ),
    range,
    note,
  );
  const paint = () => range.style.setProperty("--filled", `${(range.value / last) * 100}%`);
  const say = (value) => range.setAttribute("aria-valuetext", `${plain(value)} ${unit}`);
  const mark = marks(number, node);
  range.addEventListener("input", () => {
    const value = toValue(Number(range.value));
    number.value = plain(value);
    paint();
    say(value);
    change(value, { record: false });
  });
  range.addEventListener("change", () => change(toValue(Number(range.value)), { record: true }));
  number.addEventListener("change", () => {
    const value = Number(number.value.replaceAll(",", ""));
    const valid = number.value.trim() !== "" && Number.isFinite(value) && (low === 0 ? value >= 0 : value > 0);
    mark(valid ? "" : low === 0 ? "a number of at least 0" : "a number above 0");
    if (valid) change(whole ? Math.round(value) : value, { record: true });
  });
  let settled;
  function show(value) {
    if (value === settled && number.getAttribute("aria-invalid") === "true") return;
    settled = value;
    mark("");
    if (document.activeElement !== number) number.value = value === null ? "" : plain(value);
    if (document.activeElement !== range || toValue(Number(range.value)) !== value)
      range.value = value ? toStep(value) : 0;
    paint();
    say(value ?? low);
  }
  return { node, show };
}

/** One of a few: radio buttons beside each other; a value from an address that is none of them gets one of its own. */
export function segments({ label, choices, change, help = "", hideLabel = false }) {
  const name = nextId();
  const radios = new Map();
  const bar = element("div", { class: "segments" });
  const add = (value, text) => {
    radios.set(
      value,
      element("input", { type: "radio", name, value: String(value), onchange: () => change(value, { record: true }) }),
    );
    bar.append(element("label", {}, radios.get(value), element("span", {}, text)));
  };
  for (const [value, text] of choices) add(value, text);
  const node = element(
    "div",
    { class: "field", role: "radiogroup", "aria-label": label, title: help },
    hideLabel ? null : element("div", { class: "field-head" }, element("span", { class: "name" }, label)),
    bar,
  );
  function show(value) {
    if (!radios.has(value)) add(value, String(value));
    for (const [each, radio] of radios) radio.checked = each === value;
  }
  return { node, show };
}

/** One of many: a list that opens. */
export function select({ label, choices, change, help = "" }) {
  const id = nextId();
  const list = element(
    "select",
    { id, title: help, onchange: () => change(list.value === "" ? null : list.value, { record: true }) },
    choices.map(([value, text]) => element("option", { value: value ?? "" }, text)),
  );
  const node = element(
    "div",
    { class: "field field-line" },
    element("div", { class: "field-head" }, element("label", { for: id }, label)),
    list,
  );
  return {
    node,
    show(value) {
      const text = value ?? "";
      if (![...list.options].some((option) => option.value === text))
        list.append(element("option", { value: text }, text));
      list.value = text;
    },
  };
}

/** On or off. */
export function toggle({ label, change, help = "" }) {
  const box = element("input", {
    type: "checkbox",
    role: "switch",
    onchange: () => change(box.checked, { record: true }),
  });
  return {
    node: element("label", { class: "switch", title: help }, box, label),
    show(value) {
      box.checked = Boolean(value);
    },
  };
}

/** A number or a text that is typed; empty leaves the choice to the engine. */
export function typed({ label, unit = "", number = false, placeholder = "auto", change, help = "", code = false }) {
  const id = nextId();
  const input = element("input", {
    type: "text",
    id,
    inputmode: number ? "decimal" : null,
    class: `text ${code ? "code" : ""}`,
    placeholder,
    spellcheck: "false",
    title: help,
  });
  let settled;
  function show(value) {
    if (value === settled && input.getAttribute("aria-invalid") === "true") return;
    settled = value;
    mark("");
    if (document.activeElement !== input)
      input.value = value === null || value === undefined ? "" : number ? plain(value) : String(value);
  }
  const node = element(
    "div",
    { class: "field field-line" },
    element("div", { class: "field-head" }, element("label", { for: id }, unit ? `${label}, ${unit}` : label)),
    input,
  );
  const mark = marks(input, node);
  input.addEventListener("change", () => {
    const text = input.value.trim().replaceAll(number ? "," : "\u0000", "");
    const value = number && text ? Number(text.replace(/k$/i, "")) * (/k$/i.test(text) ? 1024 : 1) : text || null;
    const valid = !number || value === null || (Number.isFinite(value) && value >= 0);
    mark(valid ? "" : "a number of at least 0");
    if (valid) change(value, { record: true });
  });
  return { node, show };
}
