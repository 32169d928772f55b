// The plan: which deployment keeps the SLO at the least cost. It runs as a job.

import { short } from "../controls/choose.js";
import { element, fill } from "../lib/dom.js";
import { dollars, percent, plain, time } from "../lib/format.js";
import { toast } from "../lib/tip.js";
import { jobPlace } from "./job.js";

const MOST_ROWS = 6;

/** The card with its form. */
export function planCard(store, transport, catalog) {
  const chosen = new Set(store.fields.named.get("gpus").default);
  const titles = new Map(catalog.gpus.map((each) => [each.name, short(each.title)]));
  const most = element("input", { type: "number", id: "plan-most", class: "text", min: 1, max: 64, value: 8 });
  const objective = element(
    "select",
    { id: "plan-objective" },
    catalog.objectives.map((each) => element("option", { value: each }, each)),
  );
  const note = element("p", { class: "card-note" });
  const job = jobPlace(store, transport, (answer) => shown(answer.plan, store, titles));
  const boxes = [...new Set([...chosen, "h100-sxm", "b200-sxm", "rtx-pro-6000", "mi300x", "l4"])]
    .filter((name) => titles.has(name))
    .map((name) => {
      const box = element("input", {
        type: "checkbox",
        onchange: () => {
          if (box.checked) chosen.add(name);
          else chosen.delete(name);
        },
      });
      box.checked = chosen.has(name);
      return element("label", { class: "chip" }, box, element("span", {}, titles.get(name)));
    });
  const button = element(
    "button",
    { type: "button", class: "strong", id: "plan-start", onclick: begin },
    "Find the best deployment",
  );

  function begin() {
    const state = {
      ...store.fields.others(store.state),
      gpus: [...chosen],
      max_gpus: Number(most.value) || 8,
      objective: objective.value,
    };
    if (!state.slo) state.slo = "ttft_p99<1s,tpot_p95<40ms";
    for (const name of ["concurrency"])
      if (state[name]) {
        toast("A plan needs a request rate; choose Rate under Traffic.");
        return;
      }
    job.start("plan", { state });
  }

  const card = element(
    "section",
    { class: "card wide plan", "aria-labelledby": "plan-title" },
    element(
      "header",
      { class: "card-head" },
      element("h2", { id: "plan-title" }, "Plan: which GPUs, how many, which layout?"),
    ),
    note,
    element(
      "div",
      { class: "plan-form" },
      element("fieldset", {}, element("legend", {}, "Choose from"), element("div", { class: "chips" }, boxes)),
      element("label", {}, "Most GPUs", most),
      element("label", {}, "Objective", objective),
      button,
    ),
    job.node,
  );
  store.listen(() => {
    const { state } = store;
    fill(
      note,
      `For ${state.model} at ${state.session_rate ? `${plain(state.session_rate)} sessions/s` : `${plain(state.rate ?? 0)} requests/s`} within ${state.slo ?? "ttft_p99<1s,tpot_p95<40ms (set your own SLO on the left)"}. Takes from seconds to minutes.`,
    );
  });
  return card;
}

function shown(result, store, titles) {
  const fields = store.fields.named;
  const rows = [
    ...new Map(
      [result.winner, ...(result.front ?? []), ...(result.simulated ?? [])]
        .filter(Boolean)
        .map((each) => [nameOf(each, titles, fields), each]),
    ).values(),
  ].slice(0, MOST_ROWS);
  const heading = result.winner
    ? element(
        "p",
        { class: "plan-answer" },
        element("strong", {}, nameOf(result.winner, titles, fields)),
        Number.isFinite(result.winner.cost_per_hour)
          ? ` keeps the SLO for ${dollars(result.winner.cost_per_hour)} per hour.`
          : " keeps the SLO; its price is not known.",
      )
    : element("p", { class: "plan-answer" }, "Nothing that was tried keeps the SLO.");
  return [
    heading,
    element("p", { class: "card-note" }, [result.why, ...(result.changes ?? [])].filter(Boolean).join(" ")),
    element(
      "ol",
      { class: "plan-rows" },
      rows.map((each, index) => row(each, index, result, store, titles)),
    ),
  ];
}

function row(each, index, result, store, titles) {
  const fact = (title, value) => element("div", { class: "fact" }, element("dt", {}, title), element("dd", {}, value));
  return element(
    "li",
    { class: each.slo_holds ? "holds" : "fails" },
    element(
      "p",
      { class: "plan-name" },
      nameOf(each, titles, store.fields.named),
      element("span", { class: `pill ${each.slo_holds ? "good" : "bad"}` }, each.slo_holds ? "holds" : "misses"),
    ),
    element(
      "dl",
      {},
      fact("per hour", Number.isFinite(each.cost_per_hour) ? dollars(each.cost_per_hour) : "–"),
      fact("TTFT p99", time(each.ttft_ms?.p99)),
      fact("TPOT p95", time(each.tpot_ms?.p95)),
      fact("odds", percent(each.odds)),
      fact("GPUs", plain(each.total_gpus)),
    ),
    each.prefill
      ? element("span", { class: "card-note" }, "two pools")
      : element(
          "button",
          { type: "button", class: "outlined", onclick: () => use(each, store) },
          store.runs.length < 4 ? "Compare" : "Show",
        ),
  );
}

/** A candidate in words: 2 × TP4 on H100 SXM, fp8. */
function nameOf(each, titles, fields) {
  const layout = [
    each.tensor_parallel_size > 1 ? `TP${each.tensor_parallel_size}` : "",
    each.pipeline_parallel_size > 1 ? `PP${each.pipeline_parallel_size}` : "",
    each.enable_expert_parallel ? "EP" : "",
  ]
    .filter(Boolean)
    .join(" ");
  const replicas = each.replicas * (each.data_parallel_size ?? 1);
  const settings = Object.entries(each.settings ?? {})
    .filter(([name]) => name !== "max_model_len")
    .map(
      ([name, value]) =>
        `${fields.get(name)?.label.toLowerCase() ?? name.replaceAll("_", " ")} ${typeof value === "boolean" ? (value ? "on" : "off") : plain(value)}`,
    );
  return [
    `${plain(each.total_gpus)} × ${titles.get(each.gpu) ?? each.gpu}`,
    layout,
    replicas > 1 ? `${replicas} replicas` : "",
    each.quantization,
    each.kv_cache_dtype !== "auto" ? `KV ${each.kv_cache_dtype}` : "",
    ...settings,
  ]
    .filter(Boolean)
    .join(", ");
}

/** Opens a candidate beside the run that was asked about. */
function use(each, store) {
  const names = new Set(store.fields.list.map((field) => field.name));
  const settings = Object.fromEntries(Object.entries(each.settings ?? {}).filter(([name]) => names.has(name)));
  const state = store.fields.whole({
    ...store.state,
    ...settings,
    gpu: each.gpu,
    engine: each.engine,
    quantization: each.quantization ?? null,
    kv_cache_dtype: each.kv_cache_dtype ?? "auto",
    tensor_parallel_size: each.tensor_parallel_size,
    pipeline_parallel_size: each.pipeline_parallel_size,
    data_parallel_size: each.replicas * (each.data_parallel_size ?? 1),
    enable_expert_parallel: Boolean(each.enable_expert_parallel),
  });
  if (store.runs.length < 4) store.add(state);
  else store.set(state);
  document.getElementById("answer").focus();
  window.scrollTo({ top: 0 });
}
