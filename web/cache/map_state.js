// The cache map as the lines of src/engine/map_lines.h tell it. A state is never changed: what a line changes is made anew, and
// the rest is shared, so that many states are cheap to keep.

const RUNS = []; // of a sequence without blocks

export class MapHead {
  constructor(line) {
    if (line.kvasir_map !== 1) throw new Error(`a map of format ${line.kvasir_map}, which this page does not read`);
    Object.assign(this, line);
  }
  layersOf(group) {
    const first = group * this.layers_per_group;
    return [first, Math.min(this.layers, first + this.layers_per_group) - 1];
  }
}

// Before the first line.
export const emptyState = () => ({ f: 0, t: 0, step: 0, seqs: new Map(), moves: [], claims: [], notes: [], unsaid: 0, g: {} });

// old: undefined for a new one.
export function changedSequence(old, line, groups) {
  const seq = old ? { ...old } : { id: line.id, groups: new Array(groups).fill(RUNS) };
  for (const [key, value] of Object.entries(line)) if (key !== "c") seq[key] = value;
  if (!line.c) return seq;
  seq.groups = seq.groups.slice();
  for (const [first, count, runs] of line.c) seq.groups.fill(runs, first, first + count);
  return seq;
}

// The state after a line. It throws where the line does not follow.
export function next(state, line, head) {
  if (!line.whole && line.f !== state.f + 1) throw new Error(`frame ${line.f} follows frame ${state.f}`);
  const seqs = new Map(line.whole ? [] : state.seqs);
  for (const seq of line.seqs) seqs.set(seq.id, changedSequence(seqs.get(seq.id), seq, head.groups));
  for (const id of line.gone || []) seqs.delete(id);
  return {
    f: line.f, t: line.t / 1e6, step: line.step, seqs,
    moves: line.moves ?? state.moves, claims: line.claims ?? state.claims,
    notes: line.notes || [], unsaid: line.unsaid || 0,
    g: line.whole ? line.g : { ...state.g, ...line.g },
  };
}

export const blocksOf = (seq) => {
  let blocks = 0;
  for (let i = 1; i < seq.groups[0].length; i += 2) blocks += seq.groups[0][i];
  return blocks;
};

// The state of one cell.
export function cellAt(seq, group, block) {
  const runs = seq.groups[group];
  for (let i = 0; i < runs.length; i += 2) {
    if (block < runs[i + 1]) return runs[i];
    block -= runs[i + 1];
  }
  return null;
}
