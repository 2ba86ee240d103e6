// The map as a table, for those who do not see the canvas, or want numbers.
import { el } from "../common/dom.js";
import { countCells } from "./palette.js";
import { activity, inOrder } from "./strips.js";

const COLUMNS = ["Sequence", "Now", "Tokens computed", "Tokens known", "Device", "Host", "Peer", "Disk", "X", "Dropped", "Behind a window", "Being filled", "Promised", "Preempted"];
const MOST_ROWS = 500;

export class Table {
  constructor(title, onSelect) {
    this.onSelect = onSelect;
    this.body = el("tbody");
    this.caption = el("caption", {});
    this.title = title;
    this.element = el("div", { class: "table-view", tabindex: "0", role: "region", "aria-label": title },
      el("table", {}, this.caption, el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), this.body));
  }

  show(state) {
    const seqs = inOrder(state.seqs);
    const running = seqs.filter((seq) => seq.s >= 2).length;
    this.caption.textContent = `${this.title}: ${running} sequences run, ${seqs.length - running} wait. Columns from Device on count cells.`;
    this.body.replaceChildren(...seqs.slice(0, MOST_ROWS).map((seq) => {
      const n = countCells(seq);
      const cells = [activity(seq), seq.r, seq.k, n.device, n.host, n.peer, n.disk, n.x, n.dropped, n.dead, n.filling, (seq.pm || []).reduce((a, b) => a + b, 0), seq.pe];
      return el("tr", {}, el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => this.onSelect(seq.id) }, String(seq.id))),
        ...cells.map((value) => el("td", {}, String(value))));
    }));
  }
}
