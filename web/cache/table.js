// The map as a table, for those who do not see the canvas, or want numbers.
import { el, showChildren } from "../common/dom.js";
import { countCells } from "./palette.js";
import { activity } from "./strips.js";

const COLUMNS = ["Sequence", "Now", "Tokens computed", "Tokens known", "Device", "Host", "Peer", "Disk", "X", "Dropped", "Behind a window", "Being filled", "Promised", "Preempted"];
const MOST_ROWS = 500;

class Row {
  constructor(id, onSelect) {
    this.texts = COLUMNS.slice(1).map(() => document.createTextNode(""));
    this.element = el("tr", {}, el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => onSelect(id) }, String(id))),
      this.texts.map((text) => el("td", {}, text)));
  }

  show(seq) {
    if (this.seq === seq) return;
    this.seq = seq;
    const n = countCells(seq);
    const values = [activity(seq), seq.r, seq.k, n.device, n.host, n.peer, n.disk, n.x, n.dropped, n.dead, n.filling, (seq.pm || []).reduce((a, b) => a + b, 0), seq.pe];
    values.forEach((value, i) => {
      if (this.texts[i].data !== String(value)) this.texts[i].data = String(value);
    });
  }
}

export class Table {
  constructor(title, onSelect) {
    this.onSelect = onSelect;
    this.rows = new Map(); // by sequence
    this.body = el("tbody");
    this.caption = el("caption", {});
    this.title = title;
    this.element = el("div", { class: "table-view", tabindex: "0", role: "region", "aria-label": title },
      el("table", {}, this.caption, el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), this.body));
  }

  // By number, so that a row stays in its place while its sequence begins to run or waits again.
  show(state) {
    const seqs = [...state.seqs.values()].sort((a, b) => a.id - b.id);
    const running = seqs.filter((seq) => seq.s >= 2).length;
    const words = `${this.title}: ${running} sequences run, ${seqs.length - running} wait. Columns from Device on count cells.` +
      (seqs.length > MOST_ROWS ? ` The first ${MOST_ROWS} are listed.` : "");
    if (this.caption.textContent !== words) this.caption.textContent = words;
    this.rows = new Map(seqs.slice(0, MOST_ROWS).map((seq) => [seq.id, this.rows.get(seq.id) ?? new Row(seq.id, this.onSelect)]));
    for (const [id, row] of this.rows) row.show(state.seqs.get(id));
    showChildren(this.body, [...this.rows.values()].map((row) => row.element));
  }
}
