// The page: reads the address, asks for answers, and shows them.

import { buildRail } from "./controls/rail.js";
import { byId, debounced, element, fill } from "./lib/dom.js";
import { Fields } from "./lib/fields.js";
import { Store } from "./lib/store.js";
import { close, learn } from "./lib/tip.js";
import { viewOf } from "./lib/view.js";
import { buildCards } from "./results/cards.js";
import { showChanges } from "./results/changes.js";
import { followCurves } from "./results/curves.js";
import { buildRuns } from "./results/runs.js";
import { buildShare } from "./results/share.js";
import { showTiles } from "./results/tiles.js";
import { showVerdict } from "./results/verdict.js";
import { connect } from "./transport.js";

const transport = connect();

async function start() {
  const catalog = await transport.catalog();
  learn(catalog.glossary ?? []);
  const fields = new Fields(catalog.fields);
  const store = new Store(fields, transport);
  const showCards = { call: () => {} };
  store.listen(() => {
    const views = store.runs.map(viewOf),
      chosen = views[store.selected];
    showVerdict(byId("verdict"), chosen, catalog, store);
    showTiles(byId("tiles"), views);
    showChanges(byId("changes"), store, chosen);
    showCards.call(views, chosen);
    document.body.classList.toggle(
      "busy",
      store.runs.some((run) => run.waiting),
    );
    document.documentElement.dataset.ready = String(store.runs.every((run) => run.final && !run.waiting));
  });
  store.open(fields.fromQuery(window.location.search));
  buildRail(byId("controls"), store, catalog);
  buildRuns(byId("runs"), store);
  buildShare(byId("command"), store, transport);
  const cards = buildCards(byId("cards"), store, transport, catalog);
  showCards.call = cards.show;
  followCurves(store, transport, cards.curve);
  store.tell("runs");
  window.addEventListener("popstate", () => store.open(fields.fromQuery(window.location.search)));
  sheet();
  glossary(catalog.glossary ?? []);
  fill(
    byId("foot"),
    `infercast ${catalog.version}. A forecast: a simulation of the engine's scheduler with estimated kernel latencies. Nothing on this page is loaded from elsewhere.`,
  );
}

/** On a phone the rail is a sheet that opens from below. */
function sheet() {
  const rail = byId("rail"),
    button = byId("open-rail");
  const set = (open) => {
    rail.classList.toggle("open", open);
    document.body.classList.toggle("sheet-open", open);
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Done" : "Change model, GPU, traffic";
    if (open) rail.querySelector("button, input")?.focus({ preventScroll: true });
  };
  button.addEventListener("click", () => set(!rail.classList.contains("open")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      close();
      if (rail.classList.contains("open")) {
        set(false);
        button.focus();
      }
    }
  });
  window.addEventListener("scroll", debounced(close, 40), { passive: true });
}

function glossary(entries) {
  const dialog = byId("glossary");
  const groups = Map.groupBy ? Map.groupBy(entries, (entry) => entry.group) : new Map([["Words", entries]]);
  fill(
    dialog,
    element(
      "header",
      {},
      element("h2", {}, "Glossary"),
      element("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close"),
    ),
    element(
      "div",
      { class: "words-list", tabindex: "0", role: "region", "aria-label": "Terms" },
      [...groups].map(([group, terms]) => [
        element("h3", {}, group),
        element(
          "dl",
          {},
          terms.map((entry) => [
            element("dt", {}, entry.name ? `${entry.term} (${entry.name})` : entry.term),
            element("dd", {}, entry.meaning),
          ]),
        ),
      ]),
    ),
  );
  byId("words").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

start().catch((error) => {
  fill(
    byId("verdict"),
    element("h1", { class: "sentence" }, "The page could not start."),
    element("p", { class: "reason", role: "alert" }, error.message),
  );
  throw error;
});
