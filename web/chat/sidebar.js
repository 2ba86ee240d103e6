// The list of conversations: beside the chat, or before it on a narrow screen.
import { el, icon, iconButton } from "../common/dom.js";
import { listConversations } from "./store.js";

const narrow = window.matchMedia("(max-width: 760px)");

export class Sidebar {
  // `actions`: create(), open(id), remove(id, title).
  constructor(actions) {
    this.actions = actions;
    this.list = el("ul", { class: "conversations" });
    this.empty = el("p", { class: "muted" }, "Conversations are kept in this browser.");
    this.element = el("nav", { id: "sidebar", class: "sidebar", "aria-label": "Conversations" },
      el("div", { class: "sidebar-head" },
        el("span", { class: "brand" }, el("img", { src: "assets/common/icon.svg", alt: "", width: "26", height: "26" }), "Kvasir"),
        iconButton("close", "Close the list of conversations", () => this.toggle(false), { class: "icon-button close-sidebar" })),
      el("button", { type: "button", class: "button new-chat", onclick: () => this.pick(() => actions.create()) }, icon("plus"), "New conversation"),
      this.list, this.empty);
    this.shade = el("div", { class: "shade", hidden: true, onclick: () => this.toggle(false) });
    this.opener = iconButton("menu", "Show the list of conversations", () => this.toggle(!this.isOpen), { "aria-controls": "sidebar", "data-action": "sidebar" });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && narrow.matches) {
        event.stopPropagation();
        this.toggle(false);
      }
    });
    narrow.addEventListener("change", () => this.toggle(!narrow.matches, false));
    this.toggle(!narrow.matches, false);
  }

  toggle(open, moveFocus = true) {
    this.isOpen = open;
    this.element.classList.toggle("closed", !open);
    this.element.inert = !open;
    this.shade.hidden = !open || !narrow.matches;
    this.opener.setAttribute("aria-expanded", String(open));
    if (moveFocus && narrow.matches) (open ? this.element.querySelector(".new-chat") : this.opener).focus();
  }

  pick(action) {
    if (narrow.matches) this.toggle(false);
    action();
  }

  show(current) {
    const all = listConversations();
    const key = JSON.stringify([current, all.map(({ id, title }) => [id, title])]);
    if (this.shown === key) return; // so that the focus stays
    this.shown = key;
    this.empty.hidden = all.length > 0;
    this.list.replaceChildren(...all.map(({ id, title }) =>
      el("li", { class: id === current ? "current" : undefined },
        el("button", { type: "button", class: "conversation", "aria-current": id === current ? "true" : undefined,
          onclick: () => this.pick(() => this.actions.open(id)) }, title || "Untitled"),
        iconButton("trash", `Delete “${title}”`, () => this.actions.remove(id, title)))));
  }
}
