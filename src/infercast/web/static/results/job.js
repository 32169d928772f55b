// A question that takes long: how far it is, and a way to end it.

import { element, fill } from "../lib/dom.js";
import { plain } from "../lib/format.js";

const EVERY = 500;

/**
 * A place for a job: `start(kind, question)` asks, `done(result)` gives the elements for its result.
 * One job at a time; a new one ends the one before. A result looks stale as soon as the state is another one.
 */
export function jobPlace(store, transport, done) {
  const node = element("div", { class: "job" });
  let current = null,
    asked = null;
  store.listen(() => node.classList.toggle("stale", asked !== null && store.fields.differing(asked, store.state).length > 0));

  async function start(kind, question) {
    await cancel();
    const mine = { id: null };
    asked = store.state;
    current = mine;
    show({ state: "queued", says: "", seconds: 0 });
    try {
      const begun = await transport.start(kind, question);
      mine.id = begun.id;
      for (let said = begun; current === mine; said = await transport.job(mine.id)) {
        if (said.state === "done") {
          current = null;
          fill(node, done(said.result));
          return;
        }
        if (said.state === "failed") throw new Error(said.error?.message ?? "the job failed");
        if (said.state === "cancelled") {
          current = null;
          fill(node, element("p", { class: "card-note" }, "Cancelled."));
          return;
        }
        show(said);
        await new Promise((resolve) => setTimeout(resolve, EVERY));
      }
    } catch (error) {
      if (current !== mine) return;
      current = null;
      fill(node, element("p", { class: "reason", role: "alert" }, error.message));
    }
  }

  async function cancel() {
    const { id } = current ?? {};
    current = null;
    if (id) await transport.cancel(id).catch(() => null);
    fill(node);
  }

  function show({ state, says, seconds, steps }) {
    const words = state === "queued" ? "Waiting for a free place" : says || "Starting";
    let line = node.querySelector(".job-says");
    if (!line) {
      line = element("p", { class: "job-says", role: "status" });
      fill(
        node,
        element("div", { class: "progress", role: "progressbar", "aria-label": "The job runs" }, element("span")),
        line,
        element(
          "button",
          {
            type: "button",
            class: "outlined",
            onclick: async () => {
              await cancel();
              fill(node, element("p", { class: "card-note" }, "Cancelled."));
            },
          },
          "Cancel",
        ),
      );
    }
    line.textContent = `${words}${Number.isFinite(seconds) ? ` · ${plain(Math.round(seconds))} s` : ""}${steps > 1 ? ` · part ${steps}` : ""}`;
  }

  window.addEventListener("pagehide", cancel);
  return { node, start, cancel };
}
