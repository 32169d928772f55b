// The runs that are compared: one button each, up to four.

import { element, fill } from "../lib/dom.js";
import { letter } from "../lib/fields.js";
import { plain } from "../lib/format.js";
import { MOST_RUNS } from "../lib/store.js";

/** Keeps the row of runs in step with the store. */
export function buildRuns(node, store) {
  const show = () =>
    fill(
      node,
      store.runs.map((run, index) => one(store, run, index)),
      store.runs.length < MOST_RUNS
        ? element(
            "button",
            {
              type: "button",
              class: "add-run",
              id: "add-run",
              title: "Copies this run, so that you can change one thing and see both",
              onclick: () => store.add(),
            },
            store.runs.length === 1 ? "+ Compare" : "+ Add",
          )
        : null,
    );
  store.listen((what) => {
    if (what === "runs" || what === "state") show();
  });
  show();
}

function one(store, run, index) {
  const chosen = index === store.selected;
  return element(
    "div",
    { class: `run-tab run-${index} ${chosen ? "chosen" : ""}` },
    element(
      "button",
      { type: "button", class: "run-name", "aria-pressed": String(chosen), onclick: () => store.select(index) },
      element("span", { class: "letter" }, letter(index)),
      element("span", { class: "run-text" }, described(store, run, index)),
    ),
    store.runs.length > 1
      ? element(
          "button",
          {
            type: "button",
            class: "remove",
            "aria-label": `Remove run ${letter(index)}`,
            onclick: () => store.remove(index),
          },
          "×",
        )
      : null,
  );
}

/** What a run is; a later one by what differs from the first. */
function described(store, run, index) {
  const { state } = run;
  const whole = [run.config?.name ?? state.model, gpus(state), load(state)].join(" · ");
  if (!index) return whole;
  const names = store.fields.differing(store.runs[0].state, state);
  if (!names.length) return "same as A: change something";
  const told = names.slice(0, 3).map((name) => {
    const field = store.fields.named.get(name),
      value = state[name];
    if (name === "model" || name === "gpu" || name === "engine") return String(value);
    if (name === "rate" || name === "concurrency" || name === "session_rate")
      return value === null ? null : load(state);
    return `${field.label} ${value === null ? "default" : store.fields.asText(name, value)}`;
  });
  return [...new Set(told.filter(Boolean))].join(" · ") + (names.length > 3 ? " …" : "");
}

const gpus = (state) => {
  const count = state.tensor_parallel_size * state.pipeline_parallel_size * state.data_parallel_size;
  return `${count} × ${state.gpu}`;
};

const load = (state) =>
  state.concurrency
    ? `${plain(state.concurrency)} clients`
    : state.session_rate
      ? `${plain(state.session_rate)} sessions/s`
      : `${plain(state.rate)} requests/s`;
