// How much is sent, and whole states to begin with.

import { element } from "../lib/dom.js";
import { segments, select, slider } from "./inputs.js";

/** How much is sent: at a rate, by clients that wait, or as sessions. */
export function loadControls(store, put, set) {
  const parts = {
    rate: slider({ label: "Request rate", unit: "requests/s", low: 0.1, high: 300, change: set("rate") }),
    concurrency: slider({
      label: "Clients",
      unit: "clients",
      low: 1,
      high: 2048,
      whole: true,
      change: set("concurrency"),
    }),
    session_rate: slider({
      label: "Session rate",
      unit: "sessions/s",
      low: 0.01,
      high: 100,
      change: set("session_rate"),
    }),
  };
  const start = {
    rate: { rate: 12, concurrency: null, session_rate: null, turns: null },
    concurrency: { concurrency: 64, rate: null, session_rate: null, turns: null },
    session_rate: { session_rate: 2, turns: "uniform:2:10", rate: null, concurrency: null },
  };
  const kind = segments({
    label: "Load",
    hideLabel: true,
    choices: [
      ["rate", "Rate"],
      ["concurrency", "Clients"],
      ["session_rate", "Sessions"],
    ],
    change: (value) => store.set(start[value]),
  });
  const which = (state) => (state.session_rate ? "session_rate" : state.concurrency ? "concurrency" : "rate");
  put("load", {
    node: kind.node,
    show: (_, state) => {
      kind.show(which(state));
      for (const [name, part] of Object.entries(parts)) part.node.hidden = which(state) !== name;
    },
  });
  return element(
    "div",
    {},
    kind.node,
    Object.entries(parts).map(([name, part]) => put(name, part)),
  );
}

/** Whole states to begin with. */
export function presets(store, catalog) {
  const made = select({
    label: "Start from",
    choices: [[null, "an example …"], ...catalog.presets.map((preset) => [preset.key, preset.title])],
    help: "Sets everything to a common case",
    change: (key) => {
      const preset = catalog.presets.find((each) => each.key === key);
      if (preset) store.set(store.fields.whole(preset.state));
    },
  });
  const same = (preset) => !store.fields.differing(store.state, store.fields.whole(preset.state)).length;
  store.listen(() => made.show(catalog.presets.find(same)?.key ?? null));
  return element("div", { class: "group start" }, made.node);
}
