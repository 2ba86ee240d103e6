// Light and dark: as the system is set, until the reader chooses. theme-early.js applies the choice of an earlier visit.
import { iconButton, icon } from "./dom.js";
import { save } from "./storage.js";

const KEY = "kvasir.theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

export function isDark() {
  return (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
}

// The button that switches. `changed` is called when the theme has changed, so that canvases draw anew.
export function themeButton(changed = () => {}) {
  const button = iconButton("moon", "", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    save(localStorage, KEY, root.dataset.theme);
    show();
    changed();
  });
  const show = () => {
    const label = isDark() ? "Use the light theme" : "Use the dark theme";
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
  };
  dark.addEventListener("change", () => {
    show();
    changed();
  });
  show();
  return button;
}
