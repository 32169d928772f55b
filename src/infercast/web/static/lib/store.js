// What the page shows: up to four runs, each a state with its answer and the answer before the last change.

import { letter } from "./fields.js";

export const MOST_RUNS = 4;
const SLIDING = 110;

/** The runs, and who wants to know when they change. */
export class Store {
  constructor(fields, transport) {
    this.fields = fields;
    this.transport = transport;
    this.runs = [];
    this.selected = 0;
    this.listeners = new Set();
  }

  get run() {
    return this.runs[this.selected];
  }
  get state() {
    return this.run.state;
  }

  /** Calls back with what changed: "runs", "state" or "answer". */
  listen(call) {
    this.listeners.add(call);
  }
  tell(what) {
    for (const call of this.listeners) call(what);
  }

  open(states) {
    this.runs.forEach((run) => run.asking?.abort());
    this.runs = states.map((state) => freshRun(state));
    this.selected = Math.min(this.selected, this.runs.length - 1);
    this.tell("runs");
    this.runs.forEach((run) => this.ask(run));
  }

  /**
   * Changes fields of the selected run; what it said so far is kept as what was before. While a slider moves nothing is
   * recorded, and what was before stays what it was when the slider began to move.
   */
  set(changes, { record = true } = {}) {
    const run = this.run;
    const state = this.fields.whole({ ...run.state, ...changes });
    const moved = this.fields.differing(run.state, state).length > 0;
    if (moved) {
      if (!run.sliding && run.answer && !run.waiting && !run.error)
        run.before = { state: run.answered, answer: run.answer };
      run.state = state;
      if ("model" in changes) run.config = null;
    }
    run.sliding = !record;
    if (record) this.record();
    if (!moved) return;
    this.tell("state");
    this.ask(run, record ? 0 : SLIDING);
  }

  /** Takes a config.json in place of the model; it stays in this page and goes to no address. */
  drop(config) {
    if (this.run.answer) this.run.before = { state: this.run.answered, answer: this.run.answer };
    this.run.config = config;
    this.tell("state");
    this.ask(this.run);
  }

  /** Takes the last change back. */
  back() {
    const run = this.run;
    if (run.before) this.set(this.fields.whole(run.before.state));
  }

  add(state = this.state) {
    if (this.runs.length === MOST_RUNS) return;
    const run = freshRun({ ...state });
    run.config = this.run?.config ?? null;
    this.runs.push(run);
    this.selected = this.runs.length - 1;
    this.tell("runs");
    this.record();
    this.ask(run);
  }

  remove(index) {
    if (this.runs.length === 1) return;
    this.runs[index].asking?.abort();
    this.runs.splice(index, 1);
    if (this.selected >= index && this.selected) this.selected -= 1;
    this.tell("runs");
    this.record();
  }

  select(index) {
    this.selected = index;
    this.tell("runs");
  }

  /** The address of what is shown. */
  query() {
    return this.fields.toQuery(this.runs.map((run) => run.state));
  }

  record() {
    const query = this.query();
    if (query !== window.location.search.slice(1))
      window.history.pushState(null, "", query ? `?${query}` : window.location.pathname);
  }

  /** Asks for the answer of a run: the quick answer first, then the one with intervals. */
  async ask(run, wait = 0) {
    run.asking?.abort();
    const asking = new AbortController();
    Object.assign(run, { asking, waiting: true });
    this.tell("waiting");
    const state = run.state;
    try {
      if (wait) await pause(wait, asking.signal);
      for (const intervals of [false, true]) {
        const answer = await this.transport.ask("simulate", this.question(run, { intervals }), asking.signal);
        if (run.asking !== asking) return;
        Object.assign(run, { answer, answered: state, error: null, waiting: false, final: answer.final });
        this.tell("answer");
        if (answer.final) return;
      }
    } catch (error) {
      if (run.asking !== asking || error.name === "AbortError") return;
      const fit = await this.fit(run, asking.signal);
      if (run.asking !== asking) return;
      Object.assign(run, { error, fit, waiting: false, final: true });
      this.tell("answer");
    }
  }

  /** How the memory of a GPU is divided, also where the model does not fit; nothing where that cannot be said. */
  async fit(run, signal) {
    try {
      return await this.transport.ask("memory", this.question(run), signal);
    } catch {
      return null;
    }
  }

  /** A question about a run, as the transport sends it. */
  question(run, more = {}) {
    return { state: this.fields.others(run.state), ...(run.config ? { config: run.config.json } : {}), ...more };
  }

  letterOf(run) {
    return letter(this.runs.indexOf(run));
  }
}

const freshRun = (state) => ({
  state,
  answered: null,
  answer: null,
  fit: null,
  before: null,
  error: null,
  waiting: true,
  final: false,
  sliding: false,
  asking: null,
  config: null,
  curve: null,
});

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("asked again", "AbortError"));
    });
  });
}
