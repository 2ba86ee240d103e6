// How one message looks: a question, an answer with its thoughts, calls and figures, or the result of a tool.
import { el, icon, iconButton } from "../common/dom.js";
import { copyButton } from "./code.js";
import { MarkdownView } from "./markdown.js";

const number = (value) => value.toLocaleString("en");
const seconds = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(1)} s`;

// "TTFT 0.12 s", "41.3 tokens/s", …: [figure, explanation].
function figures(node) {
  const stats = node.stats;
  if (!stats) return [];
  const out = [];
  if (stats.ttft !== null) out.push([`TTFT ${seconds(stats.ttft)}`, "Time to the first token"]);
  if (stats.rate !== null) out.push([`${stats.counted ? "" : "≈ "}${stats.rate.toFixed(1)} tokens/s`, "Tokens behind the first, by the time in which they came"]);
  out.push([`${stats.counted ? "" : "≈ "}${number(stats.tokens)} tokens`, "Length of the answer"]);
  if (stats.prompt !== null) {
    const cached = stats.cached ? `, ${number(stats.cached)} cached` : "";
    out.push([`prompt ${number(stats.prompt)}${cached}`, "Tokens of the prompt, and how many of them were in the cache"]);
  }
  return out;
}

const ENDS = { length: "The answer was cut: its limit of tokens, or the model's context, is reached.", stopped: "Stopped." };

// `actions`: regenerate(id), edit(id, text), sibling(id, step), retry(id), sendResults(id, [text]).
export class MessageView {
  constructor(id, node, actions) {
    this.id = id;
    this.actions = actions;
    const name = { user: "You", tool: `Result of ${node.name}`, assistant: node.model || "Assistant" }[node.role];
    this.body = el("div", { class: "body" });
    this.foot = el("footer", { class: "message-foot" });
    this.element = el("article", { class: `message ${node.role}`, "data-id": id, "aria-labelledby": `name-${id}` },
      el("h2", { class: node.role === "user" ? "visually-hidden" : "name", id: `name-${id}` }, name), this.body, this.foot);
    if (node.role === "assistant") this.prepareAnswer();
  }

  prepareAnswer() {
    this.thoughts = el("div", { class: "markdown" });
    this.thoughtsLabel = el("span");
    this.thinking = el("details", { class: "thinking", hidden: true }, el("summary", {}, this.thoughtsLabel), this.thoughts);
    this.thoughtsView = new MarkdownView(this.thoughts);
    this.content = el("div", { class: "markdown" });
    this.contentView = new MarkdownView(this.content);
    this.calls = el("div", { class: "calls" });
    this.waiting = el("p", { class: "waiting" }, el("span", { class: "dot" }), el("span", { class: "dot" }), el("span", { class: "dot" }),
      el("span", { class: "visually-hidden" }, "The model has not begun yet."));
    this.note = el("p", { class: "note", hidden: true });
    this.body.append(this.thinking, this.content, this.waiting, this.calls, this.note);
  }

  // `place` is {index, count} among what stands in the same place; `last`: nothing follows it.
  show(node, place, last) {
    if (node.role === "assistant") this.showAnswer(node, last);
    else if (!this.body.firstChild) this.body.append(el("div", { class: "plain" }, node.content));
    const key = JSON.stringify([place, node.state, node.stats, node.content !== ""]);
    if (this.footShown === key) return; // so that the focus stays
    this.footShown = key;
    this.foot.replaceChildren(...this.tools(node, place));
  }

  showAnswer(node, last) {
    const running = node.state === "running";
    this.element.setAttribute("aria-busy", String(running));
    this.element.classList.toggle("running", running);
    this.thinking.hidden = !node.reasoning;
    if (node.reasoning) {
      const done = node.stats?.thought;
      this.thoughtsLabel.textContent = done ? `Thought for ${seconds(done)}` : running ? "Thinking…" : "Thoughts";
      this.thoughtsView.show(node.reasoning, running);
    }
    this.contentView.show(node.content, running);
    this.waiting.hidden = !running || Boolean(node.content || node.reasoning || node.calls?.length);
    if (!running || node.calls?.length) this.showCalls(node, last && !running);
    this.showNote(node);
  }

  showNote(node) {
    const failed = node.state === "failed";
    const words = failed ? node.error : node.state === "stopped" ? ENDS.stopped : ENDS[node.finish];
    this.note.hidden = !words;
    this.note.className = failed ? "note error" : "note";
    this.note.replaceChildren(...(failed ? [icon("attention")] : []), el("span", {}, words ?? ""));
    if (failed) this.note.append(el("button", { type: "button", class: "button", onclick: () => this.actions.regenerate(this.id) }, "Try again"));
  }

  // The calls, each with a field for its result if the conversation waits for them.
  showCalls(node, waits) {
    const calls = node.calls ?? [];
    const key = JSON.stringify([calls, waits]);
    if (this.callsShown === key) return; // what was typed into the fields stays
    this.callsShown = key;
    const fields = [];
    const cards = calls.map((call, i) => {
      const field = el("textarea", { id: `result-${this.id}-${i}`, rows: "2", placeholder: "What the function returns" });
      fields.push(field);
      return el("section", { class: "call", "aria-label": `Call of ${call.name}` },
        el("p", { class: "call-head" }, "Calls ", el("code", {}, call.name)),
        el("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, el("code", {}, indented(call.arguments))),
        waits ? el("div", { class: "field" }, el("label", { for: field.id }, `Result of ${call.name}`), field) : null);
    });
    this.calls.replaceChildren(...cards);
    if (waits && calls.length > 0) {
      const send = () => this.actions.sendResults(this.id, fields.map((field) => field.value));
      this.calls.append(el("button", { type: "button", class: "button primary", onclick: send }, calls.length > 1 ? "Send the results" : "Send the result"));
    }
  }

  tools(node, place) {
    const running = node.state === "running";
    const out = [];
    if (place.count > 1) {
      out.push(el("span", { class: "branches" },
        el("button", { type: "button", class: "icon-button", "aria-label": "Previous version", disabled: place.index === 0 || running,
          onclick: () => this.actions.sibling(this.id, -1) }, "‹"),
        el("span", {}, `${place.index + 1} / ${place.count}`),
        el("button", { type: "button", class: "icon-button", "aria-label": "Next version", disabled: place.index === place.count - 1 || running,
          onclick: () => this.actions.sibling(this.id, 1) }, "›")));
    }
    if (!running && node.content) out.push(copyButton("Copy", () => node.content));
    if (node.role === "user") out.push(iconButton("edit", "Edit", () => this.beginEdit(node), { "data-action": "edit" }));
    if (node.role === "assistant") {
      if (!running) out.push(iconButton("refresh", "Answer again", () => this.actions.regenerate(this.id), { "data-action": "regenerate" }));
      out.push(el("ul", { class: "figures", "aria-label": "Figures of this answer" },
        figures(node).map(([figure, words]) => el("li", { title: words }, figure))));
    }
    return out;
  }

  beginEdit(node) {
    const field = el("textarea", { "aria-label": "Edit the message", rows: String(Math.min(12, node.content.split("\n").length + 1)) });
    field.value = node.content;
    const end = () => {
      this.body.replaceChildren(el("div", { class: "plain" }, node.content));
      this.foot.hidden = false;
      this.foot.querySelector("[data-action=edit]")?.focus();
    };
    const send = () => {
      if (field.value.trim()) this.actions.edit(this.id, field.value.trim());
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.foot.hidden = true;
    this.body.replaceChildren(el("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); send(); } }, field,
      el("div", { class: "dialog-buttons" },
        el("button", { type: "button", class: "button", onclick: end }, "Cancel"),
        el("button", { type: "submit", class: "button primary" }, "Send"))));
    field.focus();
  }
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it is still coming, or the model wrote it wrongly
  }
}
