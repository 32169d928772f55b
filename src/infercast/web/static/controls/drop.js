// A config.json from the user's own disk: dropped or chosen, read here, sent with each question, kept nowhere else.

import { element } from "../lib/dom.js";
import { toast } from "../lib/tip.js";

const LARGEST = 256 * 1024;

/** A place to drop a config.json on; the whole page takes one, too. */
export function dropZone(store) {
  const file = element("input", {
    type: "file",
    accept: ".json,application/json",
    class: "unseen",
    onchange: () => take(file.files[0]),
  });
  const zone = element("label", { class: "drop" }, file, "Drop a config.json, or choose one");

  async function take(chosen) {
    if (!chosen) return;
    if (chosen.size > LARGEST) {
      toast(`${chosen.name} is larger than 256 KiB, too large for a config.json.`);
      return;
    }
    try {
      const json = JSON.parse(await chosen.text());
      if (json === null || typeof json !== "object" || Array.isArray(json)) throw new Error("no object");
      store.drop({ name: chosen.name, json });
    } catch {
      toast(`${chosen.name} is not a JSON object.`);
    }
    file.value = "";
  }

  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  document.addEventListener("dragleave", () => zone.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer?.files[0]);
  });
  return zone;
}
