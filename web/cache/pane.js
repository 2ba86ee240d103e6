// One map with its gauges, strips and decisions: a page has one of a running server, or one for each record.
import { el } from "../common/dom.js";
import { History } from "./history.js";
import { Gauges } from "./gauges.js";
import { clock, showLife } from "./life.js";
import { Strips } from "./strips.js";
import { Table } from "./table.js";

const SHOWN_NOTES = 120;

export class Pane {
  constructor(name, live) {
    this.history = new History(live);
    this.name = name;
    this.title = el("h2", {}, name);
    this.about = el("span", { class: "muted" });
    this.when = el("span", { class: "when" });
    this.gauges = new Gauges(name);
    const select = (id) => this.select(id);
    this.strips = new Strips({ onSelect: select, label: `Cache map of ${name}: the table view has the same in numbers` });
    this.table = new Table(`Sequences of ${name}`, select);
    this.table.element.hidden = true;
    this.notes = el("ol", { class: "notes", tabindex: "0", "aria-label": "The policy's decisions, the latest first" });
    this.unsaid = el("p", { class: "muted small" });
    this.element = el("section", { class: "pane", "aria-label": name },
      el("header", { class: "pane-head" }, this.title, this.about, this.when),
      this.gauges.element,
      el("div", { class: "pane-body" }, this.strips.element, this.table.element,
        el("div", { class: "decisions" }, el("h3", {}, "Decisions"), this.notes, this.unsaid)));
  }

  // Where times count from: a simulation's begins at 0.
  get zero() { return this.history.head?.source === "simulate" ? 0 : this.history.begin; }
  get begin() { return this.history.begin - this.zero; }
  get end() { return this.history.end - this.zero; }

  add(line) {
    this.history.add(line);
    if (line.kvasir_map === undefined) return;
    const head = this.history.head;
    this.title.textContent = head.policy || this.name;
    this.about.textContent = [head.model, `blocks of ${head.block_tokens} tokens`,
      head.groups === 1 ? `all ${head.layers} layers together` : `${head.groups} groups of ${head.layers_per_group === 1 ? "1 layer" : `${head.layers_per_group} layers`}`]
      .filter(Boolean).join(" · ");
  }

  // at: seconds since `zero`.
  show(at) {
    if (!this.history.head || this.history.frames.length === 0) return;
    const t = at + this.zero;
    const state = this.history.stateAt(t);
    this.t = t;
    this.when.textContent = `step ${state.step}`;
    if (this.strips.element.hidden) this.table.show(state); else this.strips.show(state, this.history.head);
    const now = performance.now();
    // Text and charts change too fast to be read otherwise.
    if (now - (this.slow || 0) < 240 && !this.mustShow) return;
    this.slow = now;
    this.mustShow = false;
    this.gauges.show(this.history, state, t);
    this.showNotes(t);
  }

  showNotes(t) {
    const notes = this.history.notesAt(t, SHOWN_NOTES);
    const top = notes[0];
    if (top === this.top && notes.length === this.shown) return;
    this.top = top;
    this.shown = notes.length;
    this.notes.replaceChildren(...notes.map((note) => el("li", { class: kindOf(note.name) },
      el("time", {}, clock(note.t - this.zero)),
      note.seq > 0 ? el("button", { type: "button", class: "link", onclick: () => this.select(note.seq) }, note.words) : el("span", {}, note.words))));
  }

  select(id) {
    this.strips.selected = id;
    this.strips.draw();
    showLife(this.history, id, this.t ?? this.history.end, this.zero);
  }

  setTable(on) {
    this.strips.element.hidden = on;
    this.table.element.hidden = !on;
    this.mustShow = true;
  }
}

// Those that matter most look different.
const kindOf = (name) =>
  name.startsWith("preempt") ? "preempt" : name.startsWith("late") || name.startsWith("fail") ? "late" : name.startsWith("admit") || name === "adopt" ? "admit" : "";
