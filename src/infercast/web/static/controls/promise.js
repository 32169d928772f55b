// The SLO: limits on TTFT, TPOT and end-to-end latency, written as the command line writes them.

import { element } from "../lib/dom.js";

const ROWS = [
  ["ttft", "TTFT", "p99"],
  ["tpot", "TPOT", "p95"],
  ["e2e", "End to end", "p95"],
];
const PERCENTILES = ["mean", "p50", "p90", "p95", "p99"];

/** The limits of a text: [["ttft", "p99", "1s"], ...]. */
export const readPromise = (text) =>
  [...(text ?? "").matchAll(/(\w+?)_(p[\d.]+|mean)\s*<=?\s*([\d.]+\s*(?:us|ms|s)?)/g)].map(
    ([, name, percentile, limit]) => [name, percentile, limit.replaceAll(" ", "")],
  );

/** A row for each latency; an empty limit promises nothing. */
export function promise({ change }) {
  const rows = ROWS.map(([name, title, usual]) => {
    const id = `slo-${name}`;
    const percentile = element(
      "select",
      { "aria-label": `${title}: percentile`, onchange: tell },
      PERCENTILES.map((each) => element("option", { value: each }, each)),
    );
    const limit = element("input", {
      type: "text",
      id,
      class: "text",
      placeholder: "no limit",
      "aria-label": `${title}: limit, such as 500ms or 1s`,
      onchange: tell,
    });
    percentile.value = usual;
    return {
      name,
      percentile,
      limit,
      node: element(
        "div",
        { class: "promise-row" },
        element("label", { for: id }, title),
        percentile,
        element("span", { "aria-hidden": "true" }, "<"),
        limit,
      ),
    };
  });

  function tell() {
    const limits = rows.map(({ name, percentile, limit }) => {
      const text = limit.value.trim().toLowerCase().replaceAll(" ", "");
      const found = text.match(/^([\d.]+)(us|ms|s)?$/);
      limit.setAttribute("aria-invalid", String(Boolean(text && !found)));
      if (!found) return null;
      return `${name}_${percentile.value}<${found[1]}${found[2] ?? (name === "tpot" ? "ms" : "s")}`;
    });
    change(limits.filter(Boolean).join(",") || null, { record: true });
  }

  return {
    node: element(
      "div",
      { class: "promise" },
      rows.map((row) => row.node),
    ),
    show(text) {
      const limits = readPromise(text);
      for (const row of rows) {
        const found = limits.find(([name]) => name === row.name);
        if (document.activeElement !== row.limit) row.limit.value = found ? found[2] : "";
        if (found) {
          if (!PERCENTILES.includes(found[1])) row.percentile.append(element("option", { value: found[1] }, found[1]));
          row.percentile.value = found[1];
        }
      }
    },
  };
}
