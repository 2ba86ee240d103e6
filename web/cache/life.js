// The life of one sequence, as far as it was seen: when what happened, and where its cells were.
import { el, svg } from "../common/dom.js";
import { countCells } from "./palette.js";

const POINTS = 160;
const KINDS = ["device", "host", "peer", "disk", "x", "dropped", "dead"];
const BOUNDS = ["ttft", "tpot", "tbt", "e2el"];
export const clock = (s) => `${s.toFixed(s < 10 ? 3 : 2)} s`;

// life: of History.lifeOf.
function chart(life) {
  const stride = Math.ceil(life.length / POINTS);
  const points = life.filter((_, i) => i % stride === 0 || i === life.length - 1).map(({ t, seq }) => ({ t, counts: countCells(seq) }));
  const begin = points[0].t, span = Math.max(1e-3, points[points.length - 1].t - begin);
  const most = Math.max(1, ...points.map((p) => KINDS.reduce((sum, k) => sum + p.counts[k], 0)));
  const x = (p) => (100 * (p.t - begin) / span).toFixed(2);
  const y = (v) => (40 - (38 * v) / most).toFixed(2);
  let below = points.map(() => 0);
  const areas = KINDS.map((kind) => {
    const above = points.map((p, i) => below[i] + p.counts[kind]);
    const d = `M${points.map((p, i) => `${x(p)} ${y(above[i])}`).join("L")}L${points.map((p, i) => `${x(p)} ${y(below[i])}`).reverse().join("L")}Z`;
    below = above;
    return svg("path", { class: `kind-${kind}`, d });
  });
  return svg("svg", { class: "life-chart", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img",
    "aria-label": "Cells of the sequence over time, by where their copies are" }, ...areas);
}

// What changed from one state of the sequence to the next, where no note says it.
function events(life) {
  const out = [];
  const say = (t, words) => out.push({ t, words });
  for (let i = 1; i < life.length; ++i) {
    const before = life[i - 1].seq, now = life[i].seq;
    if (before.s >= 2 && now.s < 2) say(life[i].t, "waits again");
    if (before.ft === 0 && now.ft > 0) say(now.ft / 1e6, `first token, ${clock(now.ft / 1e6 - now.at / 1e6)} after it arrived`);
    if (now.lg > before.lg) say(life[i].t, `${now.lg - before.lg} gap${now.lg - before.lg > 1 ? "s" : ""} between tokens too long`);
  }
  return out;
}

export function showLife(history, id, t) {
  const seq = history.stateAt(t).seqs.get(id) || history.gone.get(id);
  if (!seq) return;
  const t0 = history.zero;
  const life = history.lifeOf(id, t);
  const counts = countCells(seq);
  const bounds = BOUNDS.map((name, i) => seq.slo?.[i] > 0 && `${name} ${seq.slo[i]} ms`).filter(Boolean).join(", ");
  const facts = [
    ["arrived", `at ${clock(seq.at / 1e6 - t0)}`],
    ["prompt", `${seq.p} tokens`], ["known", `${seq.k} tokens, ${seq.r} computed, at the most ${seq.m}`],
    ["began to run", seq.fr > 0 ? `${clock((seq.fr - seq.at) / 1e6)} after it arrived` : "not yet"],
    ["first token", seq.ft > 0 ? `${clock((seq.ft - seq.at) / 1e6)} after it arrived` : "not yet"],
    ["bounds", bounds || "none"], ["output is believed to have", seq.pl > 0 ? `${seq.pl} tokens` : "unknown"],
    ["preempted", `${seq.pe} times`], ["cells", KINDS.filter((k) => counts[k] > 0).map((k) => `${k} ${counts[k]}`).join(", ") || "none"],
    ["promised", (seq.pm || []).map((n, i) => n > 0 && `${n} on the ${["device", "host", "disk"][i]}`).filter(Boolean).join(", ") || "nothing"],
  ];
  const timeline = [...history.notesAt(t, 400, id), ...events(life)].sort((a, b) => a.t - b.t);
  if (seq.end) timeline.push({ t: seq.end, words: "ended" });
  const dialog = el("dialog", { class: "life", "aria-labelledby": "life-title" },
    // What has the focus is scrolled to, and a long life begins at its top.
    el("h2", { id: "life-title", tabindex: "-1", autofocus: true }, `Sequence ${id}`),
    el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    life.length > 1 ? [chart(life), el("p", { class: "muted" }, `Its cells from ${clock(life[0].t - t0)} to ${clock(life.at(-1).t - t0)}`)] : null,
    el("ol", { class: "timeline" }, ...timeline.slice(-200).map((e) => el("li", {}, el("time", {}, clock(e.t - t0)), e.words))),
    el("form", { method: "dialog", class: "dialog-buttons" }, el("button", { class: "button primary" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
