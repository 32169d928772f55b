// Lists of models and GPUs to choose from.

import { dollars, gibibytes, joined, parameters, plain } from "../lib/format.js";
import { picker } from "./picker.js";

/** A bundled model by name, or any name that is typed. */
export function modelPicker(store, catalog) {
  const known = new Map(catalog.models.map((each) => [each.name, each]));
  const detail = (each) => `${parameters(each.parameters)} parameters${each.layers ? `, ${each.layers} layers` : ""}`;
  return picker({
    title: "Model",
    free: true,
    hint: "A Hugging Face id works as well, for example Qwen/Qwen3-32B.",
    options: () =>
      catalog.models.map((each) => ({
        value: each.name,
        title: each.name,
        detail: parameters(each.parameters),
        words: each.hugging_face.join(" "),
      })),
    face: (value) =>
      store.run?.config
        ? [store.run.config.name, "dropped config.json, kept in this page"]
        : [value, known.has(value) ? detail(known.get(value)) : ""],
    choose: (value) => store.set({ model: value }),
  });
}

/** A GPU: those with measured kernels first, the fastest memory first. */
export function gpuPicker(store, catalog) {
  const known = new Map(catalog.gpus.map((each) => [each.name, each]));
  const size = (each) => `${joined(gibibytes(each.memory_bytes))} · ${plain(each.dram_bytes_per_s / 1e12)} TB/s`;
  const basis = (each) =>
    each.known_by.some((words) => /learned|measured/.test(words))
      ? "Measured kernels"
      : "By datasheet and similar GPUs";
  const sorted = [...catalog.gpus].sort(
    (one, other) => basis(other).localeCompare(basis(one)) || other.dram_bytes_per_s - one.dram_bytes_per_s,
  );
  return picker({
    title: "GPU",
    options: () =>
      sorted.map((each) => ({
        value: each.name,
        title: short(each.title),
        detail: each.usd_per_gpu_hour ? `${dollars(each.usd_per_gpu_hour)}/h` : size(each),
        group: basis(each),
      })),
    face: (value) => {
      const each = known.get(value);
      return each
        ? [
            short(each.title),
            `${size(each)}${each.usd_per_gpu_hour ? ` · ${dollars(each.usd_per_gpu_hour)} per hour` : ""}`,
          ]
        : [value, ""];
    },
    choose: (value) => store.set({ gpu: value }),
  });
}

export const short = (title) =>
  title
    .replace(/^(NVIDIA|AMD|Intel) (Instinct |GeForce )?/, "")
    .replace(/ (Blackwell )?(Workstation|Server) Edition/, "");
