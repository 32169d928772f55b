// Which power limit saves most energy within the SLO. It runs as a job.

import { powerChart } from "../charts/power.js";
import { element, fill } from "../lib/dom.js";
import { plain } from "../lib/format.js";
import { jobPlace } from "./job.js";

/** The card with its button. */
export function powerCard(store, transport) {
  const job = jobPlace(store, transport, (answer) => shown(answer.energy, store));
  const button = element(
    "button",
    {
      type: "button",
      class: "strong",
      id: "power-start",
      onclick: () => job.start("energy", store.question(store.run)),
    },
    "Try power limits",
  );
  return element(
    "section",
    { class: "card", "aria-labelledby": "power-title" },
    element(
      "header",
      { class: "card-head" },
      element("h2", { id: "power-title" }, "Energy: which power limit saves most?"),
    ),
    element(
      "p",
      { class: "card-note" },
      "The same load with lower limits of the board's power, within the SLO where one is set.",
    ),
    element("div", { class: "plan-form" }, button),
    job.node,
  );
}

function shown(found, store) {
  const place = element("div", { class: "day-chart" });
  new ResizeObserver(() => {
    if (place.clientWidth) fill(place, powerChart(Math.floor(place.clientWidth), found));
  }).observe(place);
  const saves = Number.isFinite(found.best_value) && found.best_value !== found.own_value;
  return [
    element("p", { class: "plan-answer" }, found.answer),
    place,
    saves
      ? element(
          "button",
          { type: "button", class: "outlined", onclick: () => store.set({ power_limit_w: found.best_value }) },
          `Use ${plain(found.best_value)} W`,
        )
      : null,
  ];
}
