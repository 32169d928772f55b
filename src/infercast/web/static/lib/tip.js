// What a mark or a word means, shown where the pointer or the focus rests on it.

import { byId, element, fill } from "./dom.js";

let words = new Map();

/** Gives a mark of a drawing a heading and lines that are shown beside the pointer. */
export function hint(node, heading, lines = []) {
  const show = (event) => open(event.clientX, event.clientY, heading, lines.filter(Boolean));
  node.addEventListener("pointerenter", show);
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerleave", close);
  return node;
}

/** The glossary by key, for `term`. */
export function learn(glossary) {
  words = new Map(glossary.map((entry) => [entry.key, entry]));
  const hidden = element(
    "div",
    { hidden: true, id: "meanings" },
    glossary.map((entry) => element("p", { id: `meaning-${entry.key}` }, entry.meaning)),
  );
  byId("meanings")?.remove();
  document.body.append(hidden);
}

/** A word with its sentence from the glossary; the word alone where the glossary does not have it. */
export function term(key, text) {
  const entry = words.get(key);
  if (!entry) return element("span", {}, text);
  const title = entry.name ? `${entry.term}: ${entry.name}` : entry.term;
  const node = element("span", { class: "term", tabindex: "0", "aria-describedby": `meaning-${key}` }, text);
  const show = () => {
    const box = node.getBoundingClientRect();
    open(box.left - 12, box.bottom - 6, title, [entry.meaning]);
  };
  node.addEventListener("pointerenter", show);
  node.addEventListener("focus", show);
  node.addEventListener("pointerleave", close);
  node.addEventListener("blur", close);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
  return node;
}

function open(x, y, heading, lines) {
  const tip = byId("tip");
  fill(
    tip,
    element("b", {}, heading),
    lines.map((text) => element("span", {}, text, element("br"))),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(x + 14, window.innerWidth - width - 12));
  const top = y + 16 + height > window.innerHeight ? Math.max(8, y - height - 12) : y + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

export function close() {
  byId("tip").hidden = true;
}

let timer = 0;

/** A short message at the bottom of the page. */
export function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => node.classList.remove("shown"), 2600);
}
