// The rail of controls: what is asked most stands open, everything else under "more".

import { element, fill } from "../lib/dom.js";
import { term } from "../lib/tip.js";
import { gpuPicker, modelPicker } from "./choose.js";
import { dropZone } from "./drop.js";
import { more } from "./generic.js";
import { segments, select, slider, toggle, typed } from "./inputs.js";
import { lengths } from "./lengths.js";
import { loadControls, presets } from "./load.js";
import { promise } from "./promise.js";

const PARALLEL = [1, 2, 4, 8].map((count) => [count, String(count)]);
const GROUPS = [
  ["hardware", "Network, host, power limit"],
  ["engine", "Engine settings"],
  ["traffic", "More about traffic"],
  ["sessions", "Sessions"],
  ["money", "Prices"],
  ["energy", "Energy and carbon"],
];

/** Builds the rail and keeps it in step with the store. */
export function buildRail(form, store, catalog) {
  const controls = new Map();
  const put = (name, control) => {
    controls.set(name, control);
    return control.node;
  };
  const set = (name) => (value, options) => store.set({ [name]: value }, options);
  const model = modelPicker(store, catalog),
    gpu = gpuPicker(store, catalog);
  const load = loadControls(store, put, set);
  const help = (name) => store.fields.named.get(name).help;
  fill(
    form,
    presets(store, catalog),
    group(
      "Model",
      put("model", model),
      dropZone(store),
      put(
        "quantization",
        select({
          label: "Weights",
          choices: [
            [null, "as published"],
            ...catalog.quantizations.filter((each) => each !== "none").map((each) => [each, each]),
          ],
          change: set("quantization"),
          help: help("quantization"),
        }),
      ),
    ),
    group(
      "GPU and layout",
      put("gpu", gpu),
      put(
        "tensor_parallel_size",
        segments({
          label: "Tensor parallel",
          choices: PARALLEL,
          change: set("tensor_parallel_size"),
          help: help("tensor_parallel_size"),
        }),
      ),
      put(
        "data_parallel_size",
        segments({
          label: "Replicas (data parallel)",
          choices: PARALLEL,
          change: set("data_parallel_size"),
          help: help("data_parallel_size"),
        }),
      ),
      put(
        "pipeline_parallel_size",
        segments({
          label: "Pipeline stages",
          choices: PARALLEL,
          change: set("pipeline_parallel_size"),
          help: help("pipeline_parallel_size"),
        }),
      ),
      element(
        "div",
        { class: "switches" },
        put(
          "enable_expert_parallel",
          toggle({
            label: "Expert parallel",
            change: set("enable_expert_parallel"),
            help: help("enable_expert_parallel"),
          }),
        ),
      ),
    ),
    group(
      "Traffic",
      load,
      put(
        "input_len",
        lengths({
          label: "Prompt",
          basis: store.fields.named.get("input_len").default,
          high: 65536,
          change: set("input_len"),
          help: help("input_len"),
        }),
      ),
      put(
        "output_len",
        lengths({
          label: "Answer",
          basis: store.fields.named.get("output_len").default,
          high: 16384,
          change: set("output_len"),
          help: help("output_len"),
        }),
      ),
      put(
        "prefix_len",
        slider({
          label: "Shared prefix",
          unit: "tokens",
          low: 0,
          high: 16384,
          linear: true,
          whole: true,
          change: set("prefix_len"),
          help: help("prefix_len"),
        }),
      ),
    ),
    group(element("span", {}, "Goal: ", term("slo", "SLO")), put("slo", promise({ change: set("slo") }))),
    group(
      "Engine",
      put(
        "engine",
        select({
          label: "Engine",
          choices: catalog.engines.map((each) => [each.name, each.title === each.name ? each.name : each.name]),
          change: set("engine"),
          help: help("engine"),
        }),
      ),
      put(
        "kv_cache_dtype",
        select({
          label: "KV cache format",
          choices: ["auto", "bf16", "fp8"].map((each) => [each, each]),
          change: set("kv_cache_dtype"),
          help: help("kv_cache_dtype"),
        }),
      ),
      put(
        "max_num_batched_tokens",
        typed({
          label: "Tokens per step",
          number: true,
          change: set("max_num_batched_tokens"),
          help: help("max_num_batched_tokens"),
        }),
      ),
      put(
        "max_num_seqs",
        typed({ label: "Sequences per step", number: true, change: set("max_num_seqs"), help: help("max_num_seqs") }),
      ),
    ),
    GROUPS.map(([name, title]) => more(name, title, store, catalog, controls)),
    element(
      "div",
      { class: "group" },
      element(
        "button",
        { type: "button", class: "outlined", onclick: () => store.set(store.fields.whole({})) },
        "Back to the defaults",
      ),
    ),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  const show = () => {
    for (const [name, control] of controls) {
      control.show(store.state[name], store.state);
      const field = store.fields.named.get(name);
      if (field)
        control.node.classList.toggle(
          "changed",
          String(store.state[name] ?? "") !== String(store.fields.defaultOf(field, store.state) ?? ""),
        );
    }
  };
  store.listen((what) => {
    if (what === "runs" || what === "state") show();
  });
  show();
}

const group = (title, ...children) => element("section", { class: "group" }, element("h2", {}, title), children);
