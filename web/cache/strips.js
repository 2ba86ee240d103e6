// The grid: for each sequence a strip of token blocks (across) and layer groups (down), coloured by where the copies of its cells
// are. Only what can be seen is drawn, so that hundreds of sequences cost no more than some.
import { el } from "../common/dom.js";
import { blocksOf, cellAt } from "./map_state.js";
import { Palette, SHARED, describe, lookOf } from "./palette.js";

const AXIS = 20, PAD = 12;
const STATES = ["waits", "is held back", "runs", "ends"];
const MARKS = ["○", "◌", "●", "◍"];
const ROWS = ["prefill", "decode", "recompute", "restore"];
const PLACES = ["device", "host", "disk", "device X", "host X", "disk X"];
const KIND_OF_PLACE = ["device", "host", "disk", "x", "x", "x"];

// Those that run first, then those that wait, each by arrival.
function inOrder(seqs) {
  return [...seqs.values()].sort((a, b) => (b.s >= 2) - (a.s >= 2) || a.at - b.at || a.id - b.id);
}

export function activity(seq) {
  if (seq.s === 1) return "held back for its key's share";
  if (seq.rn > 0 && seq.rk < ROWS.length) return seq.rk === 1 ? "decode" : `${ROWS[seq.rk]} ${seq.rn} rows`;
  if (seq.s === 0) return seq.pe > 0 ? "preempted, waits" : seq.ct > 0 ? `waits, ${seq.ct} cached` : "waits";
  return STATES[seq.s];
}

export class Strips {
  constructor({ onSelect, label }) {
    this.onSelect = onSelect;
    this.canvas = el("canvas", { role: "img", "aria-label": label });
    this.spacer = el("div", { class: "strips-spacer" });
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.element = el("div", { class: "strips", tabindex: "0", role: "region", "aria-label": label }, this.canvas, this.spacer, this.tip);
    this.context = this.canvas.getContext("2d");
    this.mode = "auto";
    this.most = 8; // blocks across
    this.phase = 0;
    this.selected = null;
    this.rows = [];
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  themeChanged() {
    this.palette = null;
    this.draw();
  }

  show(state, head) {
    this.state = state;
    this.head = head;
    this.rows = inOrder(state.seqs);
    this.draw();
  }

  // Sizes, from what there is to show.
  layout() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.element.clientWidth, height = this.element.clientHeight;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.spacer.style.marginTop = `${-height}px`;
      this.palette = null; // its patterns are of the old context
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.palette ??= new Palette(this.context);
    this.narrow = width < 560;
    this.labels = this.narrow ? 64 : 168;
    this.tags = this.narrow ? 12 : 150;
    const groups = this.head.groups;
    this.cell = this.heightOfGroup(groups, height);
    this.compact = this.cell === 0;
    if (this.compact) this.cell = 10 / groups;
    this.strip = groups * this.cell;
    this.oneLine = this.strip < 28;
    this.pitch = this.compact ? this.strip + 6 : Math.max(18, this.strip + (this.oneLine ? 8 : 14));
    const most = this.rows.reduce((most, seq) => Math.max(most, Math.ceil(Math.max(seq.k, seq.p) / this.head.block_tokens)), 8);
    // It has half of the room at least, so that the axis does not change with each sequence.
    if (most > this.most || most * 2 < this.most) this.most = Math.ceil(most / 8) * 8;
    const room = Math.max(100, width - this.labels - this.tags - PAD);
    const step = room / this.most;
    this.block = step >= 1 ? Math.min(16, Math.floor(step)) : step;
    this.width = width;
    this.height = height;
    this.spacer.style.height = `${AXIS + this.rows.length * this.pitch + 8}px`;
  }

  // Pixels of a layer group, so that the strips fill the view, or some views if they are many; 0: there is no room for each of
  // them. A grid grows again only when there has been room for some seconds, so that it does not flicker.
  heightOfGroup(groups, height) {
    const large = Math.max(1, Math.min(10, Math.floor(72 / groups)));
    if (this.mode !== "auto") return this.mode === "compact" ? 0 : Math.max(2, large);
    const room = (1.6 * height) / Math.max(1, this.rows.length) - 12;
    const fits = Math.min(large, Math.floor(room / groups));
    const wanted = fits >= 1 ? fits : room * 3 > groups ? 1 : 0;
    const now = performance.now();
    if (this.chosen === undefined || wanted <= this.chosen) {
      this.chosen = wanted;
      this.roomSince = now;
    } else if (now - this.roomSince > 3000) {
      this.chosen = wanted;
    }
    return this.chosen;
  }

  draw() {
    if (this.waiting || !this.state) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    if (!this.head || this.element.clientWidth === 0) return;
    this.layout();
    const c = this.context;
    c.clearRect(0, 0, this.width, this.height);
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.pitch));
    const last = Math.min(this.rows.length, Math.ceil((top + this.height) / this.pitch));
    this.moves = new Map();
    for (const move of this.state.moves) {
      if (!this.moves.has(move[0])) this.moves.set(move[0], []);
      this.moves.get(move[0]).push(move);
    }
    for (let i = first; i < last; ++i) this.paintRow(this.rows[i], AXIS + i * this.pitch - top + 4);
    this.paintAxis();
    if (this.rows.length === 0) this.paintEmpty();
  }

  paintEmpty() {
    const c = this.context;
    c.fillStyle = this.palette.muted;
    c.font = "14px system-ui, sans-serif";
    c.fillText("No request is here. Send one, and its blocks appear.", this.labels, AXIS + 40);
  }

  paintAxis() {
    const c = this.context, p = this.palette;
    c.fillStyle = p.surface;
    c.fillRect(0, 0, this.width, AXIS);
    c.fillStyle = p.muted;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillText("sequence", 8, AXIS / 2);
    const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].find((n) => n * this.block >= 64) || 4096;
    for (let block = 0; block <= this.most; block += step) {
      const x = this.labels + block * this.block;
      if (x > this.width - this.tags - 30) break;
      c.fillText(block === 0 ? "token 0" : String(block * this.head.block_tokens), x + 2, AXIS / 2);
      c.fillRect(x, AXIS - 5, 1, 5);
    }
    c.fillStyle = p.line;
    c.fillRect(0, AXIS - 1, this.width, 1);
  }

  paintRow(seq, y) {
    const c = this.context, p = this.palette;
    if (seq.id === this.selected) {
      c.fillStyle = p["accent-soft"];
      c.fillRect(0, y - 4, this.width, this.pitch);
    }
    this.paintLabel(seq, y);
    const blocks = blocksOf(seq);
    const known = Math.ceil(seq.k / this.head.block_tokens);
    const ahead = Math.max(known, blocks);
    c.strokeStyle = p.line;
    c.lineWidth = 1;
    c.strokeRect(this.labels - 0.5, y - 0.5, ahead * this.block + 1, this.strip + 1);
    if (this.compact) this.paintShares(seq, y, blocks); else this.paintCells(seq, y, blocks);
    this.paintShared(seq, y + this.strip + 1);
    this.paintTags(seq, y, Math.min(this.labels + ahead * this.block + 8, this.width - this.tags));
  }

  // Every cell, by runs.
  paintCells(seq, y, blocks) {
    const c = this.context;
    seq.groups.forEach((runs, group) => {
      let block = 0;
      for (let i = 0; i < runs.length; i += 2) {
        this.paintRun(lookOf(runs[i]), this.labels + block * this.block, y + group * this.cell, runs[i + 1] * this.block, this.cell);
        block += runs[i + 1];
      }
    });
    c.fillStyle = this.palette.surface;
    c.globalAlpha = 0.55;
    if (this.block >= 4) for (let b = 1; b < blocks; ++b) c.fillRect(this.labels + b * this.block - 1, y, 1, this.strip);
    if (this.cell >= 5) for (let g = 1; g < this.head.groups; ++g) c.fillRect(this.labels, y + g * this.cell - 1, blocks * this.block, 1);
    c.globalAlpha = 1;
  }

  paintRun(look, x, y, w, h) {
    const c = this.context, p = this.palette;
    c.fillStyle = look.dead ? p.dead : look.kind === null ? p.dropped : look.filling ? p.filling[look.kind] : p.solid[look.kind];
    c.fillRect(x, y, w, h);
    // Of a share of less than some pixels the part may be less than one.
    const pixels = (part) => (h >= 3 ? Math.max(1, Math.round(part)) : part);
    if (look.other) {
      const part = pixels(h * 0.4);
      c.fillStyle = look.otherFilling ? p.filling[look.other] : p.solid[look.other];
      c.fillRect(x, y + h - part, w, part);
    }
    if (look.staged) {
      c.fillStyle = p.text;
      c.fillRect(x, y, w, pixels(h * 0.25));
    }
  }

  // A bar below blocks that other sequences have, too.
  paintShared(seq, y) {
    const c = this.context;
    let block = 0;
    c.fillStyle = this.palette.accent;
    const runs = seq.groups[0];
    for (let i = 0; i < runs.length; i += 2) {
      if (runs[i] & SHARED) c.fillRect(this.labels + block * this.block, y, runs[i + 1] * this.block, 2);
      block += runs[i + 1];
    }
  }

  // Where a strip has no room for its layer groups: for each block the shares of its cells that look alike, as a bar.
  paintShares(seq, y, blocks) {
    const h = this.strip, groups = this.head.groups;
    const shares = new Map();
    const cursors = seq.groups.map((runs) => ({ runs, at: 0, left: runs[1] || 0 }));
    for (let b = 0; b < blocks;) {
      shares.clear();
      let same = blocks - b;
      for (const cursor of cursors) {
        const look = lookOf(cursor.runs[cursor.at]);
        shares.set(look, (shares.get(look) || 0) + 1);
        same = Math.min(same, cursor.left);
      }
      let from = y;
      const parts = shares.size > 1 ? [...shares].sort(([a], [b]) => a.order - b.order) : shares;
      for (const [look, count] of parts) {
        const part = (count / groups) * h;
        this.paintRun(look, this.labels + b * this.block, from, same * this.block, part);
        from += part;
      }
      for (const cursor of cursors) {
        cursor.left -= same;
        if (cursor.left > 0) continue;
        cursor.at += 2;
        cursor.left = cursor.runs[cursor.at + 1] || 0;
      }
      b += same;
    }
  }

  paintLabel(seq, y) {
    const c = this.context, p = this.palette;
    c.textBaseline = "middle";
    c.fillStyle = seq.s >= 2 ? p.text : p.muted;
    if (this.oneLine) {
      c.font = "11px system-ui, sans-serif";
      c.fillText(`${MARKS[seq.s]} ${seq.id}`, 8, y + this.strip / 2);
      c.fillStyle = p.muted;
      if (!this.narrow) c.fillText(activity(seq), 62, y + this.strip / 2, this.labels - 66);
      return;
    }
    c.font = "600 13px system-ui, sans-serif";
    c.fillText(`${MARKS[seq.s]} ${seq.id}`, 8, y + 8);
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = p.muted;
    if (this.narrow) return;
    c.fillText(activity(seq), 70, y + 8, this.labels - 74);
    const times = seq.pe > 0 ? `, preempted ${seq.pe}×` : "";
    c.fillText(`${seq.r} of ${seq.k} tokens${times}`, 22, y + 24, this.labels - 26);
  }

  // What moves, and what is promised, behind the strip.
  paintTags(seq, y, x) {
    if (this.narrow) return;
    const c = this.context, p = this.palette;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    let line = y + (this.oneLine ? this.strip / 2 : 8);
    for (const [, from, to, cells] of this.moves.get(seq.id) || []) {
      const kind = KIND_OF_PLACE[to] || "device";
      this.paintArrow(x, line, p.solid[kind]);
      c.fillStyle = p.text;
      const where = to === 255 ? "stage ring" : PLACES[to];
      c.fillText(`${cells} from ${PLACES[from] || "this step"} to ${where}`, x + 30, line, this.width - x - 32);
      line += 14;
      if (this.oneLine) return;
    }
    const promised = (seq.pm || []).reduce((sum, n) => sum + n, 0);
    c.fillStyle = p.muted;
    if (promised > 0) {
      c.fillText(`◇ ${promised} cells promised`, x, line, this.width - x - 4);
      line += 14;
    }
    if (this.oneLine) return;
    for (const [debtor, creditor, cells, due] of this.state.claims) {
      if (debtor !== seq.id) continue;
      c.fillText(due > 0 ? `⇄ has ${cells} of ${creditor}` : `⇄ ${cells} go to ${creditor}`, x, line, this.width - x - 4);
      line += 14;
    }
  }

  paintArrow(x, y, colour) {
    const c = this.context;
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = 2;
    c.setLineDash([4, 3]);
    c.lineDashOffset = -this.phase;
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(x + 19, y);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    c.moveTo(x + 26, y);
    c.lineTo(x + 18, y - 4);
    c.lineTo(x + 18, y + 4);
    c.fill();
  }

  // Arrows of transfers go on; call it some times a second.
  animate() {
    if (!this.state || this.state.moves.length === 0) return;
    this.phase = (this.phase + 2) % 7;
    this.draw();
  }

  rowAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top + this.element.scrollTop - AXIS;
    const row = Math.floor(y / this.pitch);
    return { seq: y >= 0 ? this.rows[row] : undefined, x: event.clientX - box.left - this.labels, y: y - row * this.pitch - 4 };
  }

  click(event) {
    const { seq } = this.rowAt(event);
    if (seq) this.onSelect(seq.id);
  }

  point(event) {
    const { seq, x, y } = this.rowAt(event);
    const block = Math.floor(x / this.block), group = Math.floor(y / this.cell);
    const inside = seq && x >= 0 && block < Math.ceil(seq.k / this.head.block_tokens) && group >= 0 && group < this.head.groups;
    this.tip.hidden = !inside;
    if (!inside) return;
    const size = this.head.block_tokens;
    const [first, last] = this.head.layersOf(group);
    const cell = cellAt(seq, group, block);
    this.tip.replaceChildren(
      el("strong", {}, `Sequence ${seq.id}, tokens ${block * size} to ${Math.min(seq.k, (block + 1) * size) - 1}, ` +
        (first === last ? `layer ${first}` : `layers ${first} to ${last}`)),
      el("span", {}, describe(cell)));
    const box = this.element.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - 300);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${event.clientY - box.top + this.element.scrollTop + 16}px)`;
  }
}
