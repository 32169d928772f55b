// Runs before the first paint, so that a page that was asked to be dark is never light for a moment.
(() => {
  const key = "infercast-theme";
  let chosen = "auto";
  try {
    chosen = localStorage.getItem(key) ?? "auto";
  } catch {
    /* no storage: as the system says */
  }
  if (chosen !== "auto") document.documentElement.dataset.theme = chosen;
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const titles = { auto: "Auto", light: "Light", dark: "Dark" };
    const told = { auto: "as the system", light: "light", dark: "dark" };
    const show = () => {
      button.textContent = titles[chosen];
      button.setAttribute("aria-label", `Colours: ${told[chosen]}`);
    };
    button.addEventListener("click", () => {
      chosen = { auto: "light", light: "dark", dark: "auto" }[chosen];
      if (chosen === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = chosen;
      try {
        localStorage.setItem(key, chosen);
      } catch {
        /* the choice lasts as long as the page */
      }
      show();
    });
    show();
  });
})();
