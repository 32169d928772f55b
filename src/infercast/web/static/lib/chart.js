// A card with a drawing that is made again whenever its width changes, and with the same numbers as a table.

import { element, fill, shape } from "./dom.js";

let count = 0;

/**
 * A card. `draw(width, data)` gives {drawing, label, table: [caption, head, rows]} or an element alone; `tools` are
 * elements beside the title.
 */
export function chartCard({ title, note = "", draw, tools = [], kind = "" }) {
  count += 1;
  const headingId = `card-${count}`;
  const body = element("div", { class: "card-body" });
  const remark = element("p", { class: "card-note" }, note);
  const asTable = element(
    "button",
    { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => toggle() },
    "Table",
  );
  const card = element(
    "section",
    { class: `card ${kind}`, "aria-labelledby": headingId },
    element(
      "header",
      { class: "card-head" },
      element("h2", { id: headingId }, title),
      element("div", { class: "card-tools" }, tools, asTable),
    ),
    remark,
    body,
  );
  let data = null,
    width = 0,
    showsTable = false;

  function toggle() {
    showsTable = !showsTable;
    asTable.setAttribute("aria-pressed", String(showsTable));
    redraw();
  }

  function redraw() {
    if (data === null || !body.isConnected) return;
    width = Math.floor(body.clientWidth);
    if (!width) return;
    const made = draw(width, data);
    if (!made) {
      fill(body);
      asTable.hidden = true;
      return;
    }
    asTable.hidden = !made.table;
    if (made.note !== undefined) fill(remark, made.note);
    if (showsTable && made.table) fill(body, made.table());
    else if (made.drawing) {
      made.drawing.setAttribute("role", "img");
      made.drawing.setAttribute("aria-label", made.label);
      fill(body, made.drawing, made.below ?? null);
    } else fill(body, made.body);
  }

  new ResizeObserver(() => {
    if (Math.floor(body.clientWidth) !== width) redraw();
  }).observe(body);
  return {
    card,
    remark,
    redraw,
    show(next) {
      data = next;
      redraw();
    },
  };
}

/** An empty drawing of a size. */
export const canvas = (width, height, ...children) =>
  shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart" }, ...children);

/** Text in a drawing. */
export const label = (x, y, text, attributes = {}) => shape("text", { x: round(x), y: round(y), ...attributes }, text);

export const round = (value) => Math.round(value * 10) / 10;

const ruler = document.createElement("canvas").getContext("2d");

/** Pixels that a text takes in the page's font, whichever the reader's machine has. */
export function textWidth(text, size = 12) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

/** A path through points: [[x, y], ...]. */
export const line = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${round(x)} ${round(y)}`).join("");

/** Vertical rules with numbers under them. */
export function bottomAxis(scale, { top, bottom, ticks, format, title, right }) {
  return shape(
    "g",
    { class: "axis" },
    ticks.map((value) =>
      shape("line", { x1: round(scale(value)), x2: round(scale(value)), y1: top, y2: bottom, class: "rule" }),
    ),
    spaced(ticks, scale, format).map((value) =>
      label(scale(value), bottom + 15, format(value), { "text-anchor": "middle" }),
    ),
    title ? label(right, bottom + 30, title, { "text-anchor": "end", class: "axis-title" }) : null,
  );
}

/** Those ticks whose labels do not touch the one before. */
function spaced(ticks, scale, format) {
  let end = -Infinity;
  return ticks.filter((value) => {
    const half = textWidth(format(value)) / 2 + 5;
    if (scale(value) - half < end) return false;
    end = scale(value) + half;
    return true;
  });
}

/** Horizontal rules with numbers left of them. */
export function leftAxis(scale, { left, right, ticks, format, title, top }) {
  return shape(
    "g",
    { class: "axis" },
    ticks.map((value) =>
      shape("line", { x1: left, x2: right, y1: round(scale(value)), y2: round(scale(value)), class: "rule" }),
    ),
    ticks.map((value) => label(left - 7, scale(value) + 3.5, format(value), { "text-anchor": "end" })),
    title ? label(0, top, title, { class: "axis-title" }) : null,
  );
}
