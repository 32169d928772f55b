// All cards below the answer, and what each shows of the runs.

import { loadCurve } from "../charts/curve.js";
import { distribution } from "../charts/distribution.js";
import { memoryStack } from "../charts/memory.js";
import { roofline } from "../charts/roofline.js";
import { stepBars } from "../charts/steps.js";
import { timeline } from "../charts/timeline.js";
import { chartCard } from "../lib/chart.js";
import { element } from "../lib/dom.js";
import { plain } from "../lib/format.js";
import { term } from "../lib/tip.js";
import { dayCard } from "./day.js";
import { basisBody, costBody, promiseBody } from "./facts.js";
import { planCard } from "./plan.js";
import { powerCard } from "./power.js";

/** Builds the cards: `show(views, chosen)` draws them, `curve` is the card that needs load curves. */
export function buildCards(node, store, transport, catalog) {
  const named = (view, name) => ({ letter: view.letter, colour: view.colour, ...view[name] });
  const of = (views, name) => views.filter((view) => view[name]).map((view) => named(view, name));
  const ttft = chartCard({
    title: term("ttft", "Time to first token"),
    draw: (width, { views }) => distribution(width, of(views, "ttft"), "Time to first token"),
  });
  const tpot = chartCard({
    title: term("tpot", "Time per output token"),
    draw: (width, { views }) => distribution(width, of(views, "tpot"), "Time per output token"),
  });
  const memory = chartCard({
    title: "Memory of one GPU",
    kind: "third",
    draw: (width, { views }) => memoryStack(width, views),
  });
  const quantity = chooser(["ttft", "tpot"], () => curve.redraw());
  const curve = chartCard({
    tools: [quantity.node],
    title: element("span", {}, "Load curve and ", term("knee", "knee")),
    kind: "two-thirds",
    draw: (width, { views }) =>
      loadCurve(
        width,
        views,
        (rate) => store.set({ rate, concurrency: null, session_rate: null, turns: null }),
        quantity.value,
      ) ?? { body: element("p", { class: "loading" }, curveWords(store)) },
  });
  const roof = chartCard({
    title: element("span", {}, "Kernels on the ", term("roofline", "roofline")),
    draw: (width, { chosen }) => roofline(width, chosen.rooflines ?? []),
  });
  const steps = chartCard({
    title: "Where the time of a step goes",
    draw: (width, { chosen }) =>
      stepBars(
        width,
        (chosen.phases ?? []).filter((phase) => phase.steps),
      ),
  });
  const load = chartCard({ title: "Load over time", draw: (width, { chosen }) => timeline(width, chosen.timeline) });
  const body =
    (make) =>
    (width, { chosen }) =>
      chosen.forecast && !chosen.error ? { body: make(chosen) } : null;
  const promise = chartCard({
    title: element("span", {}, "Limits of the ", term("slo", "SLO")),
    draw: body(promiseBody),
  });
  const cost = chartCard({ title: "Cost and energy", draw: body(costBody) });
  const basis = chartCard({ title: "What this rests on", kind: "wide", draw: body(basisBody) });
  const right = element("div", { class: "stack" }, steps.card, promise.card);
  node.append(
    ttft.card,
    tpot.card,
    curve.card,
    memory.card,
    roof.card,
    right,
    load.card,
    cost.card,
    planCard(store, transport, catalog),
    dayCard(store, transport),
    powerCard(store, transport),
    basis.card,
  );
  const perRun = [roof, steps, load, promise, cost, basis];
  for (const card of [ttft, tpot, curve]) card.card.classList.add("needs-answer");
  for (const card of [...perRun, { card: right }]) card.card.classList.add("needs-chosen");

  function show(views, chosen) {
    const data = { views: views.filter((view) => view.forecast && !view.error), chosen };
    const several = views.length > 1;
    node.classList.toggle("without-answer", !data.views.length);
    node.classList.toggle("without-chosen", Boolean(chosen.error));
    node.classList.toggle("waiting", chosen.run.waiting);
    for (const card of [ttft, tpot]) card.show(data);
    memory.show({ views: views.filter((view) => view.memory) });
    curve.show({ views });
    for (const card of perRun) {
      card.card.classList.toggle("of-one", several);
      card.card.querySelector("h2").dataset.run = chosen.letter;
      card.show(data);
    }
    curve.remark.textContent = store.run.answered?.turns
      ? "Along request rates; sessions have none."
      : `${several ? "Latency at p99" : "Latency from p50 to p99"}, and throughput. Click on the axis to set the request rate.`;
    ttft.remark.textContent = "Share of requests by latency; percentiles below with their 80 % intervals.";
    tpot.remark.textContent = "Mean time between the tokens of one answer.";
    memory.remark.textContent = roomWords(chosen.memory);
    roof.remark.textContent = "Area of a circle: share of the time. Orange: steps with prompts; blue: decode.";
  }
  return { show, curve: curve.card };
}

/** How much the KV cache holds. */
function roomWords(memory) {
  if (!memory) return "";
  if (!memory.fits) return "More than the GPU has is striped.";
  return `Room for ${plain(memory.tokens)} tokens, such as ${plain(memory.sequences)} sequences of ${plain(memory.context)}.`;
}

/** Buttons of which one is pressed. */
function chooser(names, changed) {
  const made = { value: names[0] };
  const buttons = names.map((name) =>
    element(
      "button",
      { type: "button", class: "quiet", "aria-pressed": String(name === made.value), onclick: () => choose(name) },
      name.toUpperCase(),
    ),
  );
  function choose(name) {
    made.value = name;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(names[index] === name)));
    changed();
  }
  made.node = element("span", { role: "group", "aria-label": "Latency to show" }, buttons);
  return made;
}

const curveWords = (store) => (store.run.curve?.error ? store.run.curve.error : "Simulating nine request rates …");
