// What the last change was, with a way back.

import { element, fill } from "../lib/dom.js";

/** Says which fields of the selected run changed last. */
export function showChanges(node, store, view) {
  const { run } = view;
  if (!run.before || run.error || !run.answered) return fill(node);
  const names = store.fields.differing(run.before.state, run.answered);
  if (!names.length) return fill(node);
  const told = names.slice(0, 3).map((name) => {
    const text = (state) => store.fields.asText(name, state[name]) || "default";
    return element(
      "li",
      {},
      element("span", { class: "what" }, store.fields.named.get(name).label),
      " ",
      element("s", {}, text(run.before.state)),
      " → ",
      element("b", {}, text(run.answered)),
    );
  });
  return fill(
    node,
    element("p", { class: "unseen" }, "Changed:"),
    element("ul", {}, told, names.length > 3 ? element("li", {}, `and ${names.length - 3} more`) : null),
    element("button", { type: "button", class: "quiet", id: "undo", onclick: () => store.back() }, "Undo"),
    element(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: () => {
          run.before = null;
          store.tell("answer");
        },
      },
      "Dismiss",
    ),
  );
}
