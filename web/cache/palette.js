// What a cell's state looks like, and what it is called. Colours differ in lightness and hue for every kind of colour blindness, and
// the name of a state stands in the legend, in the label under the pointer and in the table.
import { el } from "../common/dom.js";

const DEVICE = 0, HOST = 1, DISK = 2;
export const AT_PEER = 1 << 12, STAGED = 1 << 13, SHARED = 1 << 14, DEAD = 1 << 15;
const TIERS = ["device", "host", "disk"];
const CHEAPEST_FIRST = [0, 3, 1, 4, 2, 5]; // places: KV on device, host and disk, then X likewise

export const KINDS = {
  device: { colour: "--data-1", name: "KV on the device" },
  host: { colour: "--data-2", name: "KV on the host" },
  peer: { colour: "--data-3", name: "KV at a peer" },
  disk: { colour: "--data-5", name: "KV on the disk" },
  x: { colour: "--data-4", name: "X, of which K and V are made" },
};

const kindOf = (place, state) =>
  place >= 3 ? "x" : place === HOST && state & AT_PEER ? "peer" : TIERS[place];

const looks = new Map();
const orderOf = (look) => {
  const rank = (kind) => (kind ? 1 + Object.keys(KINDS).indexOf(kind) : 0);
  return (look.dead ? 8 : look.kind === null ? 7 : rank(look.kind)) * 64 + (look.filling ? 32 : 0) + rank(look.other) * 4 + (look.staged ? 1 : 0);
};

// {kind, filling, other: a second copy's kind, otherFilling, staged, shared}; kind null: dropped, or with `dead` given up behind a
// window of attention. States repeat, so each is looked at once.
export function lookOf(state) {
  let look = looks.get(state);
  if (look) return look;
  const dead = (state & DEAD) !== 0;
  const ready = CHEAPEST_FIRST.filter((p) => !dead && state & (1 << p));
  const filling = CHEAPEST_FIRST.filter((p) => !dead && state & (1 << (6 + p)));
  const copies = [...ready.map((p) => [p, false]), ...filling.map((p) => [p, true])];
  const [first, second] = copies;
  look = {
    kind: first ? kindOf(first[0], state) : null, filling: first ? first[1] : false,
    other: second ? kindOf(second[0], state) : first && first[0] > 3 ? TIERS[first[0] - 3] : null,
    otherFilling: second ? second[1] : false,
    staged: (state & STAGED) !== 0, shared: (state & SHARED) !== 0, dead,
  };
  look.order = orderOf(look); // from top to bottom, where cells of a block are drawn as shares
  looks.set(state, look);
  return look;
}

// In words.
export function describe(state) {
  if (state === null) return "not computed yet";
  const parts = [];
  if (state & DEAD) parts.push("behind its window of attention: this sequence does not read it again");
  for (const p of CHEAPEST_FIRST) {
    const name = p >= 3 ? `X on the ${TIERS[p - 3]}` : p === HOST && state & AT_PEER ? "KV at a peer" : `KV on the ${TIERS[p]}`;
    if (state & (1 << p)) parts.push(state & DEAD ? `${name}, for others` : name);
    if (state & (1 << (6 + p))) parts.push(`${name}, being filled`);
  }
  if (parts.length === 0) parts.push("dropped: it is computed again when a step needs it");
  if (state & STAGED) parts.push("staged for the last step");
  if (state & SHARED) parts.push("shared with other sequences");
  return parts.join("; ");
}

// Cells of a sequence by kind: device, host, peer, disk, x, dropped, filling, and dead, which it has given up. A cell with several
// copies counts for each.
export function countCells(seq) {
  const counts = { device: 0, host: 0, peer: 0, disk: 0, x: 0, dropped: 0, filling: 0, dead: 0 };
  for (const runs of seq.groups) {
    for (let i = 0; i < runs.length; i += 2) {
      const state = runs[i], blocks = runs[i + 1];
      if (state & DEAD) {
        counts.dead += blocks;
        continue;
      }
      if (state & (1 << DEVICE)) counts.device += blocks;
      if (state & (1 << HOST)) counts[state & AT_PEER ? "peer" : "host"] += blocks;
      if (state & (1 << DISK)) counts.disk += blocks;
      if (state & 0o70) counts.x += blocks;
      if (state & (0o77 << 6)) counts.filling += blocks;
      if ((state & 0o7777) === 0) counts.dropped += blocks;
    }
  }
  return counts;
}

// The colours of the theme as canvases take them, with patterns of cells that are being filled or dropped.
export class Palette {
  constructor(context) {
    const probe = el("span", { hidden: true });
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    for (const name of ["text", "muted", "line", "line-strong", "surface", "raised", "bg", "accent", "accent-soft", "danger"]) {
      this[name] = read(`--${name}`);
    }
    this.solid = {};
    this.filling = {};
    for (const [kind, { colour }] of Object.entries(KINDS)) {
      this.solid[kind] = read(colour);
      this.filling[kind] = stripes(context, this.solid[kind], this.surface);
    }
    this.dropped = dots(context, this["line-strong"], this.raised);
    this.dead = this.line;
    probe.remove();
  }
}

function tile(size, draw) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  draw(canvas.getContext("2d"), size);
  return canvas;
}

const stripes = (context, colour, ground) => context.createPattern(tile(6, (c, n) => {
  c.fillStyle = ground;
  c.fillRect(0, 0, n, n);
  c.strokeStyle = colour;
  c.lineWidth = 2;
  for (const shift of [-n, 0, n]) {
    c.beginPath();
    c.moveTo(shift, n);
    c.lineTo(shift + n, 0);
    c.stroke();
  }
}), "repeat");

const dots = (context, colour, ground) => context.createPattern(tile(4, (c, n) => {
  c.fillStyle = ground;
  c.fillRect(0, 0, n, n);
  c.fillStyle = colour;
  c.fillRect(1, 1, 1, 1);
}), "repeat");

// The legend, as elements.
export function legend() {
  const item = (look, name) => el("li", {}, el("span", { class: `swatch ${look}`, "aria-hidden": "true" }), name);
  return el("section", { "aria-label": "What the colours mean" }, el("ul", { class: "legend" },
    ...Object.entries(KINDS).map(([kind, { name }]) => item(`kind-${kind}`, name)),
    item("kind-two", "two copies"), item("kind-filling", "being filled"), item("kind-staged", "staged for a step"),
    item("kind-dropped", "dropped"),
    item("kind-dead", "behind a window"), item("kind-ahead", "not computed yet")));
}
