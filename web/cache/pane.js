// One map with its gauges, strips and decisions: a page has one of a running server, or one for each record.
import { el, showChildren } from "../common/dom.js";
import { History } from "./history.js";
import { Gauges } from "./gauges.js";
import { clock, showLife } from "./life.js";
import { Strips } from "./strips.js";
import { Table } from "./table.js";

const SHOWN_NOTES = 120;
const TEXT_EVERY_MS = 240; // text and charts that change faster cannot be read,
const TABLE_EVERY_MS = 1000; // and a table is much to read, and to lay out

export class Pane {
  constructor(name, live) {
    this.live = live;
    this.incoming = new History(live);
    this.history = this.incoming; // which is shown: a copy while a live map is held
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
    this.items = new Map(); // of notes that are shown
    this.element = el("section", { class: "pane", "aria-label": name },
      el("header", { class: "pane-head" }, this.title, this.about, this.when),
      this.gauges.element,
      el("div", { class: "pane-body" }, this.strips.element, this.table.element,
        el("div", { class: "decisions" }, el("h3", {}, "Decisions"), this.notes)));
  }

  get empty() { return this.history.frames.length === 0; }
  get begin() { return this.empty ? 0 : this.history.begin - this.history.zero; }
  get end() { return this.empty ? 0 : this.history.end - this.history.zero; }

  add(line, size) {
    this.incoming.add(line, size);
    if (line.kvasir_map === undefined) return;
    const head = this.incoming.head;
    this.title.textContent = head.policy || this.name;
    this.about.textContent = [!this.live && head.policy && this.name, head.model, `blocks of ${head.block_tokens} tokens`,
      head.groups === 1 ? `all ${head.layers} layers together` : `${head.groups} groups of ${head.layers_per_group === 1 ? "1 layer" : `${head.layers_per_group} layers`}`]
      .filter(Boolean).join(" · ");
    this.about.title = this.about.textContent;
  }

  // What a live map knows now is there to be looked at until it is released, however much of it the map forgets meanwhile.
  hold(anew) {
    if (this.live && (anew || this.history === this.incoming)) this.history = this.incoming.copy();
  }

  release() { this.history = this.incoming; }

  // The moment that is `at` seconds behind the zero of the history: times of frames are microseconds, and doubles round.
  moment(at) { return at + this.history.zero + 5e-7; }

  // The time of the next frame, or of the one before; null: there is none.
  beside(at, forward) {
    const i = this.history.indexAt(this.moment(at)) + (forward ? 1 : -1);
    return i >= 0 && i < this.history.frames.length ? this.history.frames[i].t - this.history.zero : null;
  }

  // Nothing is touched where nothing has changed.
  show(at) {
    if (this.empty) return;
    const t = this.moment(at);
    const state = this.history.stateAt(t);
    const must = this.mustShow;
    this.mustShow = false;
    this.t = t;
    if (must || state !== this.state) {
      this.state = state;
      this.when.textContent = `step ${state.step}`;
      if (!this.strips.element.hidden) this.strips.show(state, this.history.head);
    }
    const now = performance.now();
    const every = this.table.element.hidden ? TEXT_EVERY_MS : TABLE_EVERY_MS;
    if (!must && (t === this.told || now - this.toldAt < every)) return;
    this.told = t;
    this.toldAt = now;
    if (!this.table.element.hidden) this.table.show(state);
    this.gauges.show(this.history, state, t);
    this.showNotes(t);
  }

  showNotes(t) {
    const notes = this.history.notesAt(t, SHOWN_NOTES);
    this.items = new Map(notes.map((note) => [note, this.items.get(note) ?? this.itemOf(note)]));
    showChildren(this.notes, [...this.items.values()]);
  }

  itemOf(note) {
    return el("li", { class: kindOf(note.name) },
      el("time", {}, clock(note.t - this.history.zero)),
      note.seq > 0 ? el("button", { type: "button", class: "link", onclick: () => this.select(note.seq) }, note.words) : el("span", {}, note.words));
  }

  select(id) {
    this.strips.selected = id;
    this.strips.draw();
    showLife(this.history, id, this.t ?? this.history.end);
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
