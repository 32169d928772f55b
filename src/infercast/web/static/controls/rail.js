// The rail of controls: what is asked most stands open, everything else under "more".

import { element, fill } from "../lib/dom.js";
import { dollars, gibibytes, joined, parameters, plain } from "../lib/format.js";
import { term } from "../lib/tip.js";
import { dropZone } from "./drop.js";
import { segments, select, slider, toggle, typed } from "./inputs.js";
import { lengths } from "./lengths.js";
import { picker } from "./picker.js";
import { promise } from "./promise.js";

const PARALLEL = [1, 2, 4, 8].map((count) => [count, String(count)]);
const GROUPS = [["hardware", "Network, host, power limit"], ["engine", "Engine settings"], ["traffic", "More about traffic"], ["sessions", "Sessions"], ["money", "Prices"], ["energy", "Energy and carbon"]];
const NOT_HERE = new Set(["settings", "context", "power_limits"]);

/** Builds the rail and keeps it in step with the store. */
export function buildRail(form, store, catalog) {
  const controls = new Map();
  const put = (name, control) => { controls.set(name, control); return control.node; };
  const set = (name) => (value, options) => store.set({ [name]: value }, options);
  const model = modelPicker(store, catalog), gpu = gpuPicker(store, catalog);
  const load = loadControls(store, put, set);
  const help = (name) => store.fields.named.get(name).help;
  fill(
    form,
    presets(store, catalog),
    group("Model", put("model", model), dropZone(store), put("quantization", select({ label: "Weights", choices: [[null, "as published"], ...catalog.quantizations.filter((each) => each !== "none").map((each) => [each, each])], change: set("quantization"), help: help("quantization") }))),
    group(
      "GPU and layout", put("gpu", gpu),
      put("tensor_parallel_size", segments({ label: "Tensor parallel", choices: PARALLEL, change: set("tensor_parallel_size"), help: help("tensor_parallel_size") })),
      put("data_parallel_size", segments({ label: "Replicas (data parallel)", choices: PARALLEL, change: set("data_parallel_size"), help: help("data_parallel_size") })),
      put("pipeline_parallel_size", segments({ label: "Pipeline stages", choices: PARALLEL, change: set("pipeline_parallel_size"), help: help("pipeline_parallel_size") })),
      element("div", { class: "switches" }, put("enable_expert_parallel", toggle({ label: "Expert parallel", change: set("enable_expert_parallel"), help: help("enable_expert_parallel") }))),
    ),
    group(
      "Traffic", load,
      put("input_len", lengths({ label: "Prompt", basis: store.fields.named.get("input_len").default, high: 65536, change: set("input_len"), help: help("input_len") })),
      put("output_len", lengths({ label: "Answer", basis: store.fields.named.get("output_len").default, high: 16384, change: set("output_len"), help: help("output_len") })),
      put("prefix_len", slider({ label: "Shared prefix", unit: "tokens", low: 0, high: 16384, linear: true, whole: true, change: set("prefix_len"), help: help("prefix_len") })),
    ),
    group(element("span", {}, "Goal: ", term("slo", "SLO")), put("slo", promise({ change: set("slo") }))),
    group("Engine", put("engine", select({ label: "Engine", choices: catalog.engines.map((each) => [each.name, each.title === each.name ? each.name : each.name]), change: set("engine"), help: help("engine") })),
      put("kv_cache_dtype", select({ label: "KV cache format", choices: ["auto", "bf16", "fp8"].map((each) => [each, each]), change: set("kv_cache_dtype"), help: help("kv_cache_dtype") })),
      put("max_num_batched_tokens", typed({ label: "Tokens per step", number: true, change: set("max_num_batched_tokens"), help: help("max_num_batched_tokens") })),
      put("max_num_seqs", typed({ label: "Sequences per step", number: true, change: set("max_num_seqs"), help: help("max_num_seqs") }))),
    GROUPS.map(([name, title]) => more(name, title, store, catalog, controls)),
    element("div", { class: "group" }, element("button", { type: "button", class: "outlined", onclick: () => store.set(store.fields.whole({})) }, "Back to the defaults")),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  const show = () => {
    for (const [name, control] of controls) {
      control.show(store.state[name], store.state);
      const field = store.fields.named.get(name);
      if (field) control.node.classList.toggle("changed", String(store.state[name] ?? "") !== String(store.fields.defaultOf(field, store.state) ?? ""));
    }
  };
  store.listen((what) => { if (what === "runs" || what === "state") show(); });
  show();
}

const group = (title, ...children) => element("section", { class: "group" }, element("h2", {}, title), children);

function modelPicker(store, catalog) {
  const known = new Map(catalog.models.map((each) => [each.name, each]));
  const detail = (each) => `${parameters(each.parameters)} parameters${each.layers ? `, ${each.layers} layers` : ""}`;
  return picker({
    title: "Model", free: true, hint: "A Hugging Face id works as well, for example Qwen/Qwen3-32B.",
    options: () => catalog.models.map((each) => ({ value: each.name, title: each.name, detail: parameters(each.parameters), words: each.hugging_face.join(" ") })),
    face: (value) => (store.run?.config ? [store.run.config.name, "dropped config.json, kept in this page"] : [value, known.has(value) ? detail(known.get(value)) : ""]),
    choose: (value) => store.set({ model: value }),
  });
}

function gpuPicker(store, catalog) {
  const known = new Map(catalog.gpus.map((each) => [each.name, each]));
  const size = (each) => `${joined(gibibytes(each.memory_bytes))} · ${plain(each.dram_bytes_per_s / 1e12)} TB/s`;
  const basis = (each) => (each.known_by.some((words) => /learned|measured/.test(words)) ? "Measured kernels" : "By datasheet and similar GPUs");
  const sorted = [...catalog.gpus].sort((one, other) => basis(other).localeCompare(basis(one)) || other.dram_bytes_per_s - one.dram_bytes_per_s);
  return picker({
    title: "GPU",
    options: () => sorted.map((each) => ({ value: each.name, title: short(each.title), detail: each.usd_per_gpu_hour ? `${dollars(each.usd_per_gpu_hour)}/h` : size(each), group: basis(each) })),
    face: (value) => { const each = known.get(value); return each ? [short(each.title), `${size(each)}${each.usd_per_gpu_hour ? ` · ${dollars(each.usd_per_gpu_hour)} per hour` : ""}`] : [value, ""]; },
    choose: (value) => store.set({ gpu: value }),
  });
}

export const short = (title) => title.replace(/^(NVIDIA|AMD|Intel) (Instinct |GeForce )?/, "").replace(/ (Blackwell )?(Workstation|Server) Edition/, "");

/** How much is sent: at a rate, by clients that wait, or as sessions. */
function loadControls(store, put, set) {
  const parts = {
    rate: slider({ label: "Request rate", unit: "requests/s", low: 0.1, high: 300, change: set("rate") }),
    concurrency: slider({ label: "Clients", unit: "clients", low: 1, high: 2048, whole: true, change: set("concurrency") }),
    session_rate: slider({ label: "Session rate", unit: "sessions/s", low: 0.01, high: 100, change: set("session_rate") }),
  };
  const start = { rate: { rate: 12, concurrency: null, session_rate: null, turns: null }, concurrency: { concurrency: 64, rate: null, session_rate: null, turns: null }, session_rate: { session_rate: 2, turns: "uniform:2:10", rate: null, concurrency: null } };
  const kind = segments({ label: "Load", hideLabel: true, choices: [["rate", "Rate"], ["concurrency", "Clients"], ["session_rate", "Sessions"]], change: (value) => store.set(start[value]) });
  const which = (state) => (state.session_rate ? "session_rate" : state.concurrency ? "concurrency" : "rate");
  put("load", { node: kind.node, show: (_, state) => { kind.show(which(state)); for (const [name, part] of Object.entries(parts)) part.node.hidden = which(state) !== name; } });
  return element("div", {}, kind.node, Object.entries(parts).map(([name, part]) => put(name, part)));
}

/** Whole states to begin with. */
function presets(store, catalog) {
  const made = select({ label: "Start from", choices: [[null, "an example …"], ...catalog.presets.map((preset) => [preset.key, preset.title])], help: "Sets everything to a common case", change: (key) => {
    const preset = catalog.presets.find((each) => each.key === key);
    if (preset) store.set(store.fields.whole(preset.state));
  } });
  const same = (preset) => !store.fields.differing(store.state, store.fields.whole(preset.state)).length;
  store.listen(() => made.show(catalog.presets.find(same)?.key ?? null));
  return element("div", { class: "group start" }, made.node);
}

/** The fields of a group that have no control of their own yet, as their kind and their choices ask for. */
function more(name, title, store, catalog, controls) {
  const fields = store.fields.list.filter((field) => field.group === name && !controls.has(field.name) && !NOT_HERE.has(field.name));
  for (const field of fields) controls.set(field.name, generic(field, store, catalog));
  return element("details", { class: "group" }, element("summary", {}, title), fields.map((field) => controls.get(field.name).node));
}

function generic(field, store, catalog) {
  const change = (value, options) => store.set({ [field.name]: value }, options);
  const shared = { label: field.label, help: field.help, change };
  if (field.kind === "switch" && field.default !== null) { const made = toggle(shared); return { ...made, node: element("div", { class: "field" }, made.node) }; }
  if (field.kind === "switch") {
    const made = select({ ...shared, choices: [[null, "engine's choice"], ["on", "on"], ["off", "off"]], change: (value, options) => change(value === null ? null : value === "on", options) });
    return { node: made.node, show: (value) => made.show(value === null ? null : value ? "on" : "off") };
  }
  const list = catalog[field.catalogue];
  if (Array.isArray(list)) {
    const choices = list.map((each) => (typeof each === "string" ? [each, each.replaceAll("_", " ")] : [each.name, each.title]));
    return select({ ...shared, choices: field.default === null ? [[null, "not set"], ...choices] : choices });
  }
  const number = field.kind === "whole" || field.kind === "number";
  return typed({ ...shared, number, unit: field.unit === "tokens" ? "" : field.unit, code: !number, placeholder: field.default === null ? "auto" : String(field.default) });
}
