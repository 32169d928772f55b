// Elements of the page and of drawings, made without markup in strings: nothing that a user types is read as HTML.

const DRAWING = "http://www.w3.org/2000/svg";

/** An HTML element: element("p", {class: "note"}, "text", child). */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of an SVG drawing. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(DRAWING, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Puts other children in place of those that are there. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Calls a function once, when nothing has asked for it for a while. */
export function debounced(call, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}

/** A table with a caption that screen readers read; numbers stand to the right. */
export function table(caption, head, rows) {
  const cell = (value, index) =>
    index === 0
      ? element("th", { scope: "row" }, String(value))
      : element("td", {}, value instanceof Node ? value : String(value));
  return element(
    "div",
    { class: "table-frame", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", { class: "unseen" }, caption),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          head.map((title) => element("th", { scope: "col" }, title)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((row) => element("tr", {}, row.map(cell))),
      ),
    ),
  );
}
