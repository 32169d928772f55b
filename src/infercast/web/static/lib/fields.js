// A state as the table of fields says it: defaults, URL and back. The same rules stand in web/state.py.

const BETWEEN = { settings: ";" };
const OTHER_LOADS = ["concurrency", "session_rate"];

/** The fields of the catalogue by name, with what can be done with states of them. */
export class Fields {
  constructor(list) {
    this.list = list;
    this.named = new Map(list.map((field) => [field.name, field]));
  }

  /** What a field is where nobody says: there is no rate where something else says how requests arrive. */
  defaultOf(field, state) {
    if (field.name === "rate" && (state.arrival === "burst" || OTHER_LOADS.some((name) => state[name]))) return null;
    return field.default;
  }

  /** A whole state from the fields that are given. */
  whole(given) {
    return Object.fromEntries(
      this.list.map((field) => [
        field.name,
        given[field.name] === undefined ? this.defaultOf(field, given) : given[field.name],
      ]),
    );
  }

  /** The fields of a state that are not as by default. */
  others(state) {
    const found = {};
    for (const field of this.list) {
      if (!same(state[field.name], this.defaultOf(field, state))) found[field.name] = state[field.name];
    }
    return found;
  }

  /** Names of fields in which two states differ. */
  differing(one, other) {
    return this.list.filter((field) => !same(one[field.name], other[field.name])).map((field) => field.name);
  }

  asText(name, value) {
    const field = this.named.get(name);
    if (value === null || value === undefined) return "";
    if (field.kind === "switch") return value ? "on" : "off";
    if (field.kind === "names") return value.join(BETWEEN[name] ?? ",");
    return String(value);
  }

  fromText(name, text) {
    const field = this.named.get(name);
    if (!field) return undefined;
    if (field.kind === "names") return text === "" ? [] : text.split(BETWEEN[name] ?? ",");
    if (text === "") return null;
    if (field.kind === "switch") return ["1", "true", "on", "yes"].includes(text.toLowerCase());
    if (field.kind === "whole" || field.kind === "number")
      return Number.isFinite(Number(text)) ? Number(text) : undefined;
    return text;
  }

  /** The query of one state; others than the first have a letter before each name. */
  toQuery(states) {
    const query = new URLSearchParams();
    states.forEach((state, index) => {
      const before = index ? `${letter(index).toLowerCase()}.` : "";
      const found = this.others(state);
      for (const [name, value] of Object.entries(found)) query.append(before + name, this.asText(name, value));
      if (index && !Object.keys(found).length) query.append(`${before}model`, state.model);
    });
    return query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%40", "@").replaceAll("%2F", "/");
  }

  /** States of a query; what it does not know is left out. */
  fromQuery(query, most = 4) {
    const given = [{}];
    for (const [key, text] of new URLSearchParams(query)) {
      const [, before, name] = key.match(/^(?:([b-d])\.)?(\w+)$/) ?? [];
      if (!name || !this.named.has(name)) continue;
      const index = before ? before.charCodeAt(0) - 97 : 0;
      const value = this.fromText(name, text);
      if (index < most && value !== undefined) (given[index] ??= {})[name] = value;
    }
    return given.filter(Boolean).map((each) => this.whole(each));
  }
}

export const letter = (index) => "ABCD"[index];

/** Whether two values of a field are alike. */
export function same(one, other) {
  if (Array.isArray(one) && Array.isArray(other))
    return one.length === other.length && one.every((each, index) => each === other[index]);
  return (one ?? null) === (other ?? null);
}
