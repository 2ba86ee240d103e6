// What was seen so far: states by time, notes, and the series of the gauges. A live map forgets what is older than some minutes.
import { MapHead, changedSequence, emptyState, next } from "./map_state.js";

const KEEP_S = 300; // of a live map,
const KEEP_CHARACTERS = 50e6; // and of its lines
const KEY_EVERY = 32; // frames between states that are kept; those between are made again
const MOST_NOTES = 4000;

export class History {
  constructor(live) {
    this.live = live;
    this.head = null;
    this.zero = Infinity; // where times count from; it stays as it is, whatever is forgotten
    this.frames = []; // {t, line, size: characters, state: one of every KEY_EVERY}
    this.size = 0; // of all frames
    this.notes = []; // {t, step, seq, name, words}, the latest last
    this.series = []; // {t, g, running, waiting}
    this.gone = new Map(); // the last that was known of sequences that have ended
    this.last = emptyState();
    this.cache = { index: -1, state: null };
  }

  get begin() { return this.frames.length > 0 ? this.frames[0].t : 0; }
  get end() { return this.frames.length > 0 ? this.frames[this.frames.length - 1].t : 0; }

  // The same as this one is now. It stays so while this one goes on: frames and states are shared, since they never change.
  copy() {
    return Object.assign(new History(this.live), this,
      { frames: this.frames.slice(), notes: this.notes.slice(), series: this.series.slice(), gone: new Map(this.gone) });
  }

  // size: characters of the line.
  add(line, size) {
    if (line.kvasir_map !== undefined) {
      const head = new MapHead(line);
      // Of another engine, whose sequences have the numbers of others: what was before is of another map.
      this.anew = this.head !== null && JSON.stringify(this.head) !== JSON.stringify(head);
      if (this.anew) this.forget();
      this.head = head;
      return;
    }
    const before = this.last;
    const state = next(before, line, this.head);
    this.last = state;
    if (state.t < this.zero) this.zero = this.head.source === "simulate" ? 0 : state.t;
    const key = line.whole || this.frames.length % KEY_EVERY === 0;
    this.frames.push({ t: state.t, line, size, state: key ? state : null });
    this.size += size;
    const say = (name, words) => this.notes.push({ t: state.t, step: state.step, seq: 0, name, words });
    if (this.anew) say("anew", "the engine has begun anew: what was before is forgotten");
    this.anew = false;
    for (const [t, step, seq, name, words] of state.notes) this.notes.push({ t: t / 1e6, step, seq, name, words });
    if (state.unsaid > 0) say("unsaid", `${state.unsaid} further decisions, which were too many to tell`);
    const ended = line.whole ? [...before.seqs.keys()].filter((id) => !state.seqs.has(id)) : line.gone || [];
    for (const id of ended) if (before.seqs.has(id)) this.gone.set(id, { ...before.seqs.get(id), end: state.t });
    let running = 0;
    for (const seq of state.seqs.values()) running += seq.s >= 2;
    this.series.push({ t: state.t, g: state.g, running, waiting: state.seqs.size - running });
    if (this.live) this.trim();
  }

  forget() {
    this.frames = [];
    this.size = 0;
    this.notes = [];
    this.series = [];
    this.gone.clear();
    this.last = emptyState();
    this.cache = { index: -1, state: null };
  }

  trim() {
    // From a state that is kept on, all later ones can be made.
    let cut = 0, size = this.size, sizeFromCut = size;
    for (let i = 1; i < this.frames.length; ++i) {
      size -= this.frames[i - 1].size;
      if (this.frames[i].t >= this.end - KEEP_S && size <= KEEP_CHARACTERS) break;
      if (this.frames[i].state) [cut, sizeFromCut] = [i, size];
    }
    if (cut < KEY_EVERY) return;
    const from = this.frames[cut].t;
    this.frames.splice(0, cut);
    this.size = sizeFromCut;
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

  // The sequence in each frame, up to a time, in which it was there: [{t, seq}], with the same object while it does not change.
  lifeOf(id, t) {
    const known = this.stateAt(t).seqs.get(id) ?? this.gone.get(id);
    if (!known) return [];
    const out = [];
    const last = this.indexAt(t);
    let i = Math.min(last, this.indexAt(known.at / 1e6));
    let seq = this.stateOf(i).seqs.get(id);
    for (;;) {
      if (seq) out.push({ t: this.frames[i].t, seq });
      if (++i > last) return out;
      const { line } = this.frames[i];
      const change = line.seqs.find((one) => one.id === id);
      if (line.whole || line.gone?.includes(id)) seq = undefined;
      if (change && !line.gone?.includes(id)) seq = changedSequence(seq, change, this.head.groups);
    }
  }

  // The series at a time,
  seriesAt(t) { return this.series[this.indexAt(t)]; }

  // and from a time on, until another.
  seriesOf(from, to) {
    const first = this.indexAt(from), last = this.indexAt(to);
    return this.series.slice(first, last + 1);
  }
}
