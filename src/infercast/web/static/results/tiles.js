// Headline numbers: each with its 80 % interval, what it was before the last change, and those of other runs below.

import { element, fill } from "../lib/dom.js";
import { change } from "../lib/format.js";
import { term } from "../lib/tip.js";
import { NUMBERS, text } from "./numbers.js";

/** Shows views as tiles; one run has large numbers, several stand below each other on one scale. */
export function showTiles(node, views) {
  const known = views.filter((view) => view.forecast && !view.error);
  const numbers = NUMBERS.filter(
    (number) => !number.optional || known.some((view) => Number.isFinite(number.value(view.forecast))),
  );
  node.classList.toggle("several", views.length > 1);
  fill(
    node,
    known.length
      ? numbers.map((number) => (views.length > 1 ? compared(number, views) : single(number, known[0])))
      : null,
  );
}

function heading(number) {
  return element(
    "h3",
    {},
    term(number.term, number.title),
    number.sub ? element("span", { class: "sub" }, ` ${number.sub}`) : null,
  );
}

function single(number, view) {
  const value = number.value(view.forecast),
    before = view.before && number.value(view.before.forecast);
  const [figure, unit] = number.parts(value);
  return element(
    "div",
    { class: `tile ${view.run.waiting ? "waiting" : ""}` },
    heading(number),
    element("p", { class: "figure" }, figure, element("span", { class: "unit" }, ` ${unit}`)),
    rangeBar(number, [view], view),
    element("p", { class: "range" }, rangeText(number, view)),
    view.run.waiting ? element("p", { class: "delta" }, "computing …") : delta(number, before, value),
  );
}

function compared(number, views) {
  const values = views.map((view) => (view.forecast && !view.error ? number.value(view.forecast) : NaN));
  const known = values.filter(Number.isFinite);
  const best = number.less ? Math.min(...known) : Math.max(...known);
  return element(
    "div",
    { class: "tile" },
    heading(number),
    views.map((view, index) =>
      element(
        "div",
        {
          class: `tile-row run-${view.colour} ${values[index] === best && known.length > 1 ? "best" : ""} ${view.run.waiting ? "waiting" : ""}`,
        },
        element("span", { class: "letter" }, view.letter),
        element("span", { class: "small-figure" }, Number.isFinite(values[index]) ? text(number, values[index]) : "–"),
        values[index] === best && known.length > 1 ? element("span", { class: "unseen" }, " (best)") : null,
        Number.isFinite(values[index])
          ? rangeBar(
              number,
              views.filter((each) => each.forecast && !each.error),
              view,
            )
          : null,
      ),
    ),
  );
}

/** The interval as a bar on a scale that all runs share, from zero. */
function rangeBar(number, all, view) {
  const ends = all.flatMap((each) => [
    number.value(each.forecast),
    ...(number.interval(each.forecast) ?? []),
    each.before ? number.value(each.before.forecast) : 0,
  ]);
  const most = Math.max(...ends.filter(Number.isFinite)) * 1.08 || 1;
  const at = (value) => `${Math.max(0, Math.min(100, (value / most) * 100)).toFixed(2)}%`;
  const value = number.value(view.forecast),
    interval = number.interval(view.forecast);
  const before = view.before ? number.value(view.before.forecast) : NaN;
  if (!Number.isFinite(value)) return null;
  if (!interval && all.length === 1 && number.key === "cost") return null;
  const width = interval ? `${(((interval[1] - interval[0]) / most) * 100).toFixed(2)}%` : "0%";
  return element(
    "div",
    { class: `bar run-${view.colour}`, "aria-hidden": "true" },
    interval ? element("span", { class: "bar-range", style: { left: at(interval[0]), width } }) : null,
    Number.isFinite(before) ? element("span", { class: "bar-before", style: { left: at(before) } }) : null,
    element("span", { class: "bar-point", style: { left: at(value) } }),
  );
}

function rangeText(number, view) {
  const interval = number.interval(view.forecast);
  if (!interval) return number.key === "cost" ? "at this load" : view.run.final ? "" : "interval …";
  const [low, unit] = number.parts(interval[0]),
    [high, other] = number.parts(interval[1]);
  return unit === other ? `${low} to ${high}` : `${low} ${unit} to ${high} ${other}`;
}

function delta(number, before, value) {
  const found = change(before, value);
  if (!found) return element("p", { class: "delta" });
  if (!found.sign) return element("p", { class: "delta" }, "unchanged");
  const better = number.less ? found.sign < 0 : found.sign > 0;
  return element(
    "p",
    { class: `delta ${better ? "better" : "worse"}` },
    found.text,
    element("span", { class: "unseen" }, better ? ", better" : ", worse"),
    element("span", { class: "was" }, ` was ${text(number, before)}`),
  );
}
