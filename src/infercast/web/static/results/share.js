// What can be taken along: the command, the address, and files.

import { element, fill } from "../lib/dom.js";
import { toast } from "../lib/tip.js";

/** The command of the selected run with buttons beside it. */
export function buildShare(node, store, transport) {
  const code = element("code", { tabindex: "0", role: "region", "aria-label": "Command line of this forecast" });
  const copyCommand = element(
    "button",
    { type: "button", class: "quiet", id: "copy-command", onclick: () => copy(code.textContent, "Command copied") },
    "Copy command",
  );
  const copyLink = element(
    "button",
    { type: "button", class: "quiet", id: "copy-link", onclick: () => copy(window.location.href, "Link copied") },
    "Copy link",
  );
  const files = [
    ["html", "HTML"],
    ["csv", "CSV"],
    ["json", "JSON"],
  ].map(([kind, title]) =>
    element(
      "button",
      {
        type: "button",
        class: "quiet",
        id: `export-${kind}`,
        "aria-label": `Export as ${title}`,
        onclick: (event) => save(kind, event.currentTarget),
      },
      title,
    ),
  );
  fill(
    node,
    element("div", { class: "command-line" }, element("span", { class: "prompt", "aria-hidden": "true" }, "$"), code),
    element(
      "div",
      { class: "command-tools" },
      copyCommand,
      copyLink,
      element("span", { class: "between" }, "Export"),
      files,
    ),
  );

  async function save(kind, button) {
    button.disabled = true;
    try {
      const { name, blob } = await transport.file(kind, store.question(store.run));
      const address = URL.createObjectURL(blob);
      element("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
      toast(`${name} saved`);
    } catch (error) {
      toast(error.message);
    } finally {
      button.disabled = false;
    }
  }

  store.listen(() => {
    code.textContent = (store.run.error ? store.run.fit?.command : store.run.answer?.command) ?? "infercast simulate …";
  });
}

async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
    toast(said);
  } catch {
    toast("The browser did not allow copying; select the text instead.");
  }
}
