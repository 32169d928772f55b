// The answer in a sentence, and whether it keeps what was promised.

import { short } from "../controls/choose.js";
import { element, fill } from "../lib/dom.js";
import { briefTime, digits, percent, plain, time } from "../lib/format.js";

/** Shows the sentence for one run. */
export function showVerdict(node, view, catalog, store) {
  const { run } = view;
  node.classList.toggle("waiting", run.waiting);
  if (run.error) return fill(node, problem(run, store));
  if (!view.forecast) return fill(node, element("p", { class: "loading" }, store.transport.waits ?? "Simulating …"));
  return fill(
    node,
    element("h1", { class: "sentence" }, sentence(view, catalog)),
    element("div", { class: "pills" }, pills(view)),
  );
}

function problem(run, store) {
  const gap = run.fit && !run.fit.memory.fits;
  return [
    element("h1", { class: "sentence" }, gap ? "This does not fit." : "No forecast for this."),
    element("p", { class: "reason" }, `${run.error.message}.`),
    element(
      "div",
      { class: "pills" },
      element("span", { class: "pill bad" }, gap ? "out of memory" : "not possible"),
      remedies(run.error.message, store),
    ),
  ];
}

/** Buttons for what a message says would work: tensor_parallel_size=8. */
function remedies(message, store) {
  return [...message.matchAll(/\b([a-z_]+)=([\w.]+)/g)]
    .map(([, name, text]) => [store.fields.named.get(name), store.fields.fromText(name, text)])
    .filter(([field, value]) => field && value !== undefined)
    .map(([field, value]) =>
      element(
        "button",
        { type: "button", class: "strong small", onclick: () => store.set({ [field.name]: value }) },
        `Use ${field.label.toLowerCase()} ${store.fields.asText(field.name, value)}`,
      ),
    );
}

function sentence(view, catalog) {
  const { forecast, state } = view;
  const gpu = catalog.gpus.find((each) => each.name === state.gpu);
  const strong = (text) => element("strong", {}, text);
  const name = view.run.config ? view.run.config.name : state.model;
  return [
    strong(name),
    " on ",
    strong(`${forecast.gpus} × ${gpu ? short(gpu.title) : state.gpu}`),
    ` ${loadOf(forecast, state)}`,
    ": half of all users see the first token within ",
    strong(time(forecast.ttft_ms?.p50)),
    forecast.tpot_ms ? [" and then ", strong(`${digits(1000 / forecast.tpot_ms.p50)} tokens/s`)] : "",
    ".",
  ];
}

/** What is sent, or what is served of it where that is less. */
function loadOf(forecast, state) {
  if (forecast.saturated && state.rate)
    return `serves ${digits(forecast.requests_per_s)} of ${plain(state.rate)} requests/s`;
  if (state.concurrency) return `with ${plain(state.concurrency)} clients`;
  if (state.session_rate) return `at ${plain(state.session_rate)} sessions/s`;
  return state.rate
    ? `at ${plain(state.rate)} requests/s`
    : `after a burst of ${plain(forecast.workload.requests)} requests`;
}

function pills(view) {
  const { forecast, run } = view;
  const found = [];
  if (forecast.saturated)
    found.push([
      "bad",
      `Saturated${forecast.capacity_requests_per_s ? `: capacity is ${digits(forecast.capacity_requests_per_s)} requests/s` : ""}`,
    ]);
  if (forecast.slo) {
    const odds = Number.isFinite(forecast.slo_odds) ? `, odds ${percent(forecast.slo_odds)}` : "";
    found.push(forecast.slo.holds ? ["good", `SLO holds${odds}`] : ["bad", `SLO missed${odds}`]);
    const worst = [...forecast.slo.limits].sort((one, other) => one.headroom - other.headroom)[0];
    if (worst)
      found.push([
        "",
        `${worst.quantity.toUpperCase()} ${percentileName(worst)} ${time(worst.forecast_ms)} of ${briefTime(worst.limit_ms)} allowed`,
      ]);
  } else if (view.state.slo && !run.final) found.push(["", "checking the SLO …"]);
  const { diagnosis } = forecast;
  if (diagnosis) {
    found.push(["", `Bottleneck: ${diagnosis.bottleneck}`]);
    found.push(["", `Change: ${diagnosis.change}`]);
    found.push(["", `Breaks first: ${diagnosis.breaks_first.map((each) => each.name)[0] ?? "nothing"}`]);
  }
  if (forecast.host_bound) found.push(["warn", "The host limits this run"]);
  if (forecast.kind === "bound")
    found.push(["warn", "A bound, not an estimate: kernels of this GPU were not measured"]);
  if (forecast.preemptions > 0)
    found.push(["warn", `${plain(forecast.preemptions)} preemptions: the KV cache is too small`]);
  return found.map(([kind, text]) => element("span", { class: `pill ${kind}` }, text));
}

const percentileName = (limit) =>
  limit.percentile === null || limit.percentile === undefined ? "mean" : `p${plain(limit.percentile)}`;
