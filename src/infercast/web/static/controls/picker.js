// A list to search in, by keyboard or pointer: a button that opens a combobox.

import { element, fill } from "../lib/dom.js";

let count = 0;

/**
 * A picker. `options()` gives [{value, title, detail, group, words}]; `face(value)` gives [title, detail] for the button;
 * `choose(value)` is called with what was picked; `free` says whether a text that is not in the list may be taken.
 */
export function picker({ title, options, face, choose, free = false, hint = "" }) {
  count += 1;
  const id = `picker-${count}`;
  const name = element("strong"),
    detail = element("small");
  const button = element(
    "button",
    {
      type: "button",
      class: "picker-button",
      id,
      "aria-haspopup": "listbox",
      "aria-expanded": "false",
      onclick: () => (list.hidden ? open() : close()),
    },
    element("span", {}, element("span", { class: "unseen" }, `${title}: `), name, detail),
  );
  const search = element("input", {
    type: "text",
    role: "combobox",
    "aria-label": `Search ${title}`,
    "aria-expanded": "true",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
    placeholder: "Search",
    spellcheck: "false",
  });
  const rows = element("ul", { id: `${id}-list`, role: "listbox", "aria-label": title });
  const list = element(
    "div",
    { class: "picker-list", hidden: true },
    search,
    rows,
    hint ? element("p", { class: "hint" }, hint) : null,
  );
  const node = element("div", { class: "picker" }, button, list);
  let shown = [],
    active = 0,
    value = null;

  function open() {
    list.hidden = false;
    node.classList.add("open");
    button.setAttribute("aria-expanded", "true");
    search.value = "";
    filter();
    active = Math.max(
      0,
      shown.findIndex((option) => option.value === value),
    );
    mark();
    search.focus();
  }

  function close(refocus = true) {
    if (list.hidden) return;
    list.hidden = true;
    node.classList.remove("open");
    button.setAttribute("aria-expanded", "false");
    if (refocus) button.focus();
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = options().filter((option) =>
      words.every((word) => `${option.value} ${option.title} ${option.words ?? ""}`.toLowerCase().includes(word)),
    );
    active = 0;
    let group = null;
    const items = [];
    shown.forEach((option, index) => {
      if (option.group !== undefined && option.group !== group) {
        group = option.group;
        items.push(element("li", { class: "heading", role: "presentation" }, group));
      }
      items.push(
        element(
          "li",
          {
            role: "option",
            id: `${id}-${index}`,
            "aria-selected": String(option.value === value),
            onclick: () => take(option.value),
          },
          option.title,
          element("small", {}, option.detail ?? ""),
        ),
      );
    });
    if (!items.length)
      items.push(
        element(
          "li",
          { class: "heading", role: "presentation" },
          free ? "Press Enter to take this name" : "Nothing of this name",
        ),
      );
    fill(rows, items);
    mark();
  }

  function mark() {
    for (const row of rows.querySelectorAll(".active")) row.classList.remove("active");
    const row = rows.querySelector(`#${id}-${active}`);
    row?.classList.add("active");
    row?.scrollIntoView({ block: "nearest" });
    if (row) search.setAttribute("aria-activedescendant", row.id);
    else search.removeAttribute("aria-activedescendant");
  }

  function take(picked) {
    close();
    choose(picked);
  }

  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (move) {
      active = Math.max(0, Math.min(shown.length - 1, active + move));
      mark();
      event.preventDefault();
    }
    if (event.key === "Enter") {
      event.preventDefault();
      if (shown[active]) take(shown[active].value);
      else if (free && search.value.trim()) take(search.value.trim());
    }
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    if (event.key === "Tab") close(false);
  });
  node.addEventListener("focusout", (event) => {
    if (!node.contains(event.relatedTarget) && event.relatedTarget) close(false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!node.contains(event.target)) close(false);
  });

  return {
    node,
    show(next) {
      value = next;
      [name.textContent, detail.textContent] = face(next);
    },
  };
}
