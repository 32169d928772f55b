// Load curves of all runs: asked for when the page is quiet, and kept, because a curve does not depend on the rate.

import { debounced } from "../lib/dom.js";

const QUIET = 700;
const FREE = ["rate", "concurrency", "num_requests", "steady"];
const MOST_KEPT = 40;

/** Asks for the curve of each run that has none for its state, once its card is about to be seen. */
export function followCurves(store, transport, card) {
  const kept = new Map();
  let asking = null,
    seen = false;
  new IntersectionObserver((entries) => {
    seen = entries.at(-1).isIntersecting;
    if (seen) next();
  }).observe(card);
  window.addEventListener("pagehide", () => asking?.abort());

  const keyOf = (run) => {
    const state = { ...store.fields.others(run.answered) };
    for (const name of FREE) delete state[name];
    return JSON.stringify([state, run.config?.name ?? null]);
  };

  const next = debounced(async () => {
    const run = store.runs.find((each) => each.answer && each.final && !each.error && !each.curve);
    if (!run || asking || !seen) return;
    asking = new AbortController();
    const key = keyOf(run);
    const question = store.question(run);
    question.state = { ...question.state };
    for (const name of FREE) delete question.state[name];
    try {
      const answer = await transport.curve(question, asking.signal);
      kept.set(key, { result: answer.curve });
      if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    } catch (error) {
      if (error.name !== "AbortError") kept.set(key, { error: error.message });
    }
    asking = null;
    match();
    store.tell("curve");
    next();
  }, QUIET);

  /** Gives each run the curve of its state, if there is one. */
  function match() {
    for (const run of store.runs) {
      if (run.answered) run.curve = kept.get(keyOf(run)) ?? null;
    }
  }

  store.listen((what) => {
    if (what === "curve") return;
    if (what === "state" || what === "waiting") asking?.abort();
    match();
    if (what === "answer") next();
  });
}
