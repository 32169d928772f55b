// Controls for fields that have none of their own: by their kind, and by what they may be.

import { element } from "../lib/dom.js";
import { select, toggle, typed } from "./inputs.js";

const NOT_HERE = new Set(["settings", "context", "power_limits"]);

/** The fields of a group that have no control of their own yet, as their kind and their choices ask for. */
export function more(name, title, store, catalog, controls) {
  const fields = store.fields.list.filter(
    (field) => field.group === name && !controls.has(field.name) && !NOT_HERE.has(field.name),
  );
  for (const field of fields) controls.set(field.name, generic(field, store, catalog));
  return element(
    "details",
    { class: "group" },
    element("summary", {}, title),
    fields.map((field) => controls.get(field.name).node),
  );
}

function generic(field, store, catalog) {
  const change = (value, options) => store.set({ [field.name]: value }, options);
  const shared = { label: field.label, help: field.help, change };
  if (field.kind === "switch" && field.default !== null) {
    const made = toggle(shared);
    return { ...made, node: element("div", { class: "field" }, made.node) };
  }
  if (field.kind === "switch") {
    const made = select({
      ...shared,
      choices: [
        [null, "engine's choice"],
        ["on", "on"],
        ["off", "off"],
      ],
      change: (value, options) => change(value === null ? null : value === "on", options),
    });
    return { node: made.node, show: (value) => made.show(value === null ? null : value ? "on" : "off") };
  }
  const list = catalog[field.catalogue];
  if (Array.isArray(list)) {
    const choices = list.map((each) =>
      typeof each === "string" ? [each, each.replaceAll("_", " ")] : [each.name, each.title],
    );
    return select({ ...shared, choices: field.default === null ? [[null, "not set"], ...choices] : choices });
  }
  const number = field.kind === "whole" || field.kind === "number";
  return typed({
    ...shared,
    number,
    unit: field.unit === "tokens" ? "" : field.unit,
    code: !number,
    placeholder: field.default === null ? "auto" : String(field.default),
  });
}
