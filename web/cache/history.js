// What was seen so far: states by time, notes, and the series of the gauges. A live map forgets what is older than some minutes.
import { MapHead, emptyState, next } from "./map_state.js";

const KEEP_S = 300; // of a live map
const KEY_EVERY = 32; // frames between states that are kept; those between are made again
const MOST_NOTES = 4000;

export class History {
  constructor(live) {
    this.live = live;
    this.head = null;
    this.frames = []; // {t, line, state: one of every KEY_EVERY}
    this.notes = []; // {t, step, seq, name, words}, the latest last
    this.series = []; // {t, g, running, waiting}
    this.gone = new Map(); // the last that was known of sequences that have ended
    this.last = emptyState();
    this.cache = { index: -1, state: null };
  }

  get begin() { return this.frames.length > 0 ? this.frames[0].t : 0; }
  get end() { return this.frames.length > 0 ? this.frames[this.frames.length - 1].t : 0; }

  add(line) {
    if (line.kvasir_map !== undefined) {
      const head = new MapHead(line);
      // Another grid, or an engine that has begun anew: what was before is of another map.
      if (this.head && JSON.stringify(this.head) !== JSON.stringify(head)) this.forget();
      this.head = head;
      return;
    }
    const before = this.last;
    const state = next(before, line, this.head);
    // A whole map that follows what is here already adds no news of times gone by.
    if (line.whole && this.frames.length > 0 && state.t < this.end) this.forget();
    this.last = state;
    const key = line.whole || this.frames.length % KEY_EVERY === 0;
    this.frames.push({ t: state.t, line, state: key ? state : null });
    for (const [t, step, seq, name, words] of state.notes) this.notes.push({ t: t / 1e6, step, seq, name, words });
    for (const id of line.gone || []) if (before.seqs.has(id)) this.gone.set(id, { ...before.seqs.get(id), end: state.t });
    let running = 0;
    for (const seq of state.seqs.values()) running += seq.s >= 2;
    this.series.push({ t: state.t, g: state.g, running, waiting: state.seqs.size - running });
    if (this.live) this.trim();
  }

  forget() {
    this.frames = [];
    this.notes = [];
    this.series = [];
    this.gone.clear();
    this.cache = { index: -1, state: null };
  }

  trim() {
    const oldest = this.end - KEEP_S;
    // From a state that is kept on, all later ones can be made.
    let cut = 0;
    for (let i = 1; i < this.frames.length && this.frames[i].t < oldest; ++i) if (this.frames[i].state) cut = i;
    if (cut < KEY_EVERY) return;
    const from = this.frames[cut].t;
    this.frames.splice(0, cut);
    this.cache = { index: -1, state: null };
    this.series.splice(0, cut);
    this.notes = this.notes.filter((note) => note.t >= from).slice(-MOST_NOTES);
    for (const [id, seq] of this.gone) if (seq.end < from) this.gone.delete(id);
  }

  // The last frame at or before a time.
  indexAt(t) {
    let low = 0, high = this.frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.frames[middle].t <= t) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 1);
  }

  stateOf(index) {
    if (this.frames.length === 0) return emptyState();
    if (index >= this.frames.length - 1) return this.last;
    if (this.cache.index === index) return this.cache.state;
    let from = index;
    let state = null;
    while (!state) {
      if (this.cache.index === from) state = this.cache.state;
      else if (this.frames[from].state) state = this.frames[from].state;
      else --from;
    }
    while (from < index) state = next(state, this.frames[++from].line, this.head);
    this.cache = { index, state };
    return state;
  }

  stateAt(t) { return this.stateOf(this.indexAt(t)); }

  // The notes of the last seconds before a time, the latest first.
  notesAt(t, most, seq = null) {
    const out = [];
    for (let i = this.notes.length - 1; i >= 0 && out.length < most; --i) {
      const note = this.notes[i];
      if (note.t <= t && (seq === null || note.seq === seq)) out.push(note);
    }
    return out;
  }

  // The series from a time on, until another.
  seriesOf(from, to) {
    const first = this.indexAt(from), last = this.indexAt(to);
    return this.series.slice(first, last + 1);
  }
}
