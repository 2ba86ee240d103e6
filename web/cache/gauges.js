// The tiers with their fill and what moves between them, and small charts of the last minutes.
import { el, put, svg } from "../common/dom.js";

const SPAN_S = 120; // of a chart
const GOODPUT_S = 30;
const GIB = 1024 ** 3, MIB = 1024 ** 2;
const PHASES = ["drain", "plan", "commit", "compute", "publish"];
const SLOS = ["TTFT", "mean TPOT", "P99 of gaps", "every gap", "end to end"];

export const bytes = (n) => n >= GIB ? `${(n / GIB).toFixed(2)} GiB` : n >= MIB ? `${(n / MIB).toFixed(1)} MiB` : `${(n / 1024).toFixed(0)} KiB`;
const percent = (part, all) => all > 0 ? `${Math.round((100 * part) / all)} %` : "–";

function tier(name, kind) {
  const used = el("span", { class: `fill kind-${kind}` });
  const promised = el("span", { class: "fill promised" });
  const bar = el("div", { class: "bar", role: "meter", "aria-label": `${name} in use`, "aria-valuemin": "0", "aria-valuemax": "100" }, used, promised);
  const text = el("span", { class: "amount" });
  const more = el("span", { class: "more" });
  const element = el("div", { class: "tier" }, el("div", { class: "tier-head" }, el("strong", {}, name), text), bar, more);
  return {
    element,
    show([all, use, cached, cells] = [0, 0, 0, 0], cellBytes, extra) {
      element.hidden = all === 0;
      const kept = Math.min(all, use), kept2 = Math.min(all - kept, cells * cellBytes);
      used.style.width = `${all ? (100 * kept) / all : 0}%`;
      promised.style.width = `${all ? (100 * kept2) / all : 0}%`;
      bar.setAttribute("aria-valuenow", String(Math.round(all ? (100 * kept) / all : 0)));
      put(text, `${percent(use, all)} of ${bytes(all)}`);
      put(more, [cells > 0 && `${cells} cells promised`, cached > 0 && `${cached} blocks kept for reuse`, extra].filter(Boolean).join(" · ") || "\u00a0");
    },
  };
}

function flow(label) {
  const there = el("span", { class: "rate" }), back = el("span", { class: "rate" });
  const element = el("div", { class: "flow", "aria-label": label },
    el("div", { class: "there" }, there, svg("svg", { viewBox: "0 0 60 10", "aria-hidden": "true" }, svg("path", { d: "M0 5H52" }), svg("path", { class: "tip-of-arrow", d: "M52 1 60 5 52 9z" }))),
    el("div", { class: "back" }, svg("svg", { viewBox: "0 0 60 10", "aria-hidden": "true" }, svg("path", { d: "M8 5H60" }), svg("path", { class: "tip-of-arrow", d: "M8 1 0 5 8 9z" })), back));
  const say = (node, rate) => {
    put(node, rate > 0 ? `${bytes(rate)}/s` : "0");
    node.parentElement.classList.toggle("moving", rate > 0);
  };
  return { element, show(forth, home) { say(there, forth); say(back, home); } };
}

// A chart of one or more series, stacked or not, as paths.
class Chart {
  // kinds: the classes of the series, which have their colours.
  constructor(title, names, { kinds = names.map((_, i) => `s${i + 1}`), stacked = false } = {}) {
    this.stacked = stacked;
    this.value = el("strong", {});
    this.plot = svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.paths = kinds.map((kind) => this.plot.appendChild(svg("path", { class: `series ${kind} ${stacked ? "area" : ""}` })));
    this.keys = names.map((name, i) => el("span", {}, el("i", { class: kinds[i] }), name));
    this.more = el("span", { class: "more" });
    this.element = el("div", { class: "chart" }, el("div", { class: "chart-head" }, el("span", {}, title), this.value), this.plot,
      names.length > 1 ? el("span", { class: "key" }, this.keys) : null, this.more);
  }
  // points: [x 0..1, [values]]; most: the top of the scale, or 0 for the largest; a series whose key is hidden is not drawn.
  show(points, most, value, more = "") {
    put(this.value, value);
    put(this.more, more);
    let top = most || 1e-9;
    const shown = (v) => v.filter((_, i) => !this.keys[i].hidden);
    if (!most) for (const [, v] of points) top = Math.max(top, this.stacked ? shown(v).reduce((a, b) => a + b, 0) : Math.max(0, ...shown(v)));
    const y = (v) => (29 - 27 * Math.min(1, v / top)).toFixed(2);
    let below = points.map(() => 0);
    this.paths.forEach((path, i) => {
      if (this.keys[i].hidden) {
        path.setAttribute("d", "");
        return;
      }
      const heights = points.map(([, v], n) => (this.stacked ? below[n] : 0) + v[i]);
      let d = "";
      points.forEach(([x], n) => { d += `${n ? "L" : "M"}${(100 * x).toFixed(2)} ${y(heights[n])}`; });
      if (this.stacked) {
        for (let n = points.length - 1; n >= 0; --n) d += `L${(100 * points[n][0]).toFixed(2)} ${y(below[n])}`;
        d += "Z";
        below = heights;
      }
      path.setAttribute("d", points.length > 1 ? d : "");
    });
  }
}

// The shares of ended requests that met their bounds: over the last minutes, and since the engine began.
class Attainment {
  constructor() {
    this.ended = el("strong", {});
    this.rows = el("tbody");
    this.others = el("span", { class: "more" });
    this.table = el("table", {},
      el("thead", {}, el("tr", {}, ["bounds met", `${SPAN_S / 60} min`, "all"].map((name) => el("th", { scope: "col" }, name)))), this.rows);
    this.element = el("div", { class: "bounds" }, el("div", { class: "chart-head" }, el("span", {}, "requests ended"), this.ended), this.table, this.others);
  }
  show(g, before) {
    put(this.ended, String((g.fin || []).reduce((x, y) => x + y, 0)));
    const rows = [...(g.slo || []).map((now, i) => [SLOS[i], now, before.slo[i]]), ["all bounds", g.good, before.good]]
      .filter(([, now]) => now?.[0] > 0).map(([name, now, then]) => [name, percent(now[1] - then[1], now[0] - then[0]), percent(...now.toReversed())]);
    const key = JSON.stringify(rows);
    this.table.hidden = rows.length === 0;
    if (key !== this.key) this.rows.replaceChildren(...rows.map(([name, ...shares]) => el("tr", {}, el("th", { scope: "row" }, name), shares.map((share) => el("td", {}, share)))));
    this.key = key;
    put(this.others, `${g.pe || 0} preemptions${g.sw ? `, ${g.sw} swapped` : ""} · ${percent(g.pc || 0, g.pt || 0)} of prompts cached`);
  }
}

export class Gauges {
  constructor(name) {
    this.device = tier("Device", "device");
    this.host = tier("Host", "host");
    this.disk = tier("Disk", "disk");
    this.toHost = flow("between device and host");
    this.toDisk = flow("between host and disk");
    this.memory = new Chart("in use", ["device", "host", "disk"], { kinds: ["s1", "s2", "s5"] });
    this.tokens = new Chart("tokens/s", ["prompt", "output"]);
    this.requests = new Chart("requests", ["run", "wait"]);
    this.link = new Chart("link", ["to device", "from it"]);
    this.attained = new Chart("met all bounds", ["share"]);
    this.goodput = new Chart("goodput", ["requests/s"]);
    this.phases = new Chart("engine time", PHASES, { stacked: true });
    this.phases.element.classList.add("engine-time");
    for (const chart of [this.attained, this.goodput]) chart.element.classList.add("of-bounds");
    this.bounds = new Attainment();
    this.element = el("section", { class: "gauges", "aria-label": `Memory and speed of ${name}` },
      el("div", { class: "tiers" }, this.device.element, this.toHost.element, this.host.element, this.toDisk.element, this.disk.element),
      el("div", { class: "charts" },
        [this.memory, this.link, this.tokens, this.requests, this.attained, this.goodput, this.phases, this.bounds].map((chart) => chart.element)));
  }

  show(history, state, t) {
    const g = state.g, head = history.head;
    const kv = head.cell_bytes[0];
    const second = history.seriesAt(t - 1);
    const rate = (from, to) => state.t > second.t ? ((g.mv?.[from]?.[to] || 0) - (second.g.mv?.[from]?.[to] || 0)) / (state.t - second.t) : 0;
    this.device.show(g.d, kv, head.stage_blocks > 0 ? `stage ring of ${head.stage_blocks} blocks` : "");
    this.host.show(g.h, kv, [g.bo > 0 && `${g.bo} cells of peers`, g.rc > 0 && `${g.rc} called back`, g.le > 0 && `${g.le} lent`].filter(Boolean).join(" · "));
    this.disk.show(g.k, kv, "");
    const hasHost = (g.h?.[0] || 0) > 0, hasDisk = (g.k?.[0] || 0) > 0;
    this.toHost.element.hidden = this.memory.keys[1].hidden = !hasHost;
    this.toDisk.element.hidden = this.memory.keys[2].hidden = !hasDisk;
    this.link.element.hidden = !hasHost && !hasDisk;
    this.attained.element.hidden = this.goodput.element.hidden = !(g.good?.[0] > 0);
    this.toHost.show(rate(0, 1), rate(1, 0));
    this.toDisk.show(rate(1, 2) + rate(0, 2), rate(2, 1) + rate(2, 0));
    this.showCharts(history, g, t);
  }

  // Rates over windows of the chart's width, so that a burst is seen and noise is not.
  showCharts(history, g, t) {
    const from = Math.max(history.begin, t - SPAN_S);
    const all = history.seriesOf(from, t);
    const span = Math.max(1, t - from);
    const x = (s) => (s.t - from) / span;
    const points = [];
    let last = all[0];
    for (const now of all) {
      if (now.t - last.t < span / 60) continue;
      points.push([x(now), last, now, now.t - last.t]);
      last = now;
    }
    const per = (f) => points.map(([at, a, b, dt]) => [at, f(a.g, b.g, dt)]);
    const lastOf = (list) => list.length > 0 ? list.at(-1)[1] : [0, 0];
    const fill = (s) => [s.g.d, s.g.h, s.g.k].map(([bytes, used]) => bytes > 0 ? used / bytes : 0);
    this.memory.show(all.map((s) => [x(s), fill(s)]), 1, percent(...g.d.slice(0, 2).reverse()));
    const tokens = per((a, b, dt) => [(b.pt - a.pt) / dt, (b.gt - a.gt) / dt]);
    this.tokens.show(tokens, 0, `${Math.round(lastOf(tokens)[1])} out`);
    const now = all.at(-1);
    this.requests.show(all.map((s) => [x(s), [s.running, s.waiting]]), 0, `${now.running} run`, `${now.waiting} wait`);
    const moved = per((a, b, dt) => [
      (b.mv[1][0] + b.mv[2][0] - a.mv[1][0] - a.mv[2][0]) / dt, (b.mv[0][1] + b.mv[0][2] - a.mv[0][1] - a.mv[0][2]) / dt]);
    this.link.show(moved, 0, `${bytes(lastOf(moved)[0] + lastOf(moved)[1])}/s`,
      `${g.tr} in flight, ${bytes(g.q)} queued${g.bps > 0 ? `; at ${bytes(g.bps)}/s` : ""}`);
    if (!this.goodput.element.hidden) this.showGoodput(history, points);
    const phases = per((a, b, dt) => PHASES.map((_, i) => (b.ph[i] - a.ph[i]) / 1e6 / dt));
    const busy = phases.length > 0 ? lastOf(phases) : PHASES.map(() => 0);
    const sum = busy.reduce((a, b) => a + b, 0);
    this.phases.show(phases, 1, sum > 0 ? `${percent(sum - busy[3], sum)} not compute` : "idle");
    this.bounds.show(g, all[0].g);
  }

  // Requests end one by one, so each point is of the half minute before it.
  showGoodput(history, points) {
    const windows = points.map(([at, , now]) => [at, history.seriesAt(now.t - GOODPUT_S), now]).filter(([, then, now]) => now.t - then.t > 2);
    const goodput = windows.map(([at, then, now]) => [at, [(now.g.good[1] - then.g.good[1]) / (now.t - then.t)]]);
    const attained = windows.filter(([, then, now]) => now.g.good[0] > then.g.good[0])
      .map(([at, then, now]) => [at, [(now.g.good[1] - then.g.good[1]) / (now.g.good[0] - then.g.good[0])]]);
    this.goodput.show(goodput, 0, goodput.length > 0 ? `${goodput.at(-1)[1][0].toFixed(2)} requests/s` : "–");
    this.attained.show(attained, 1, attained.length > 0 ? percent(attained.at(-1)[1][0], 1) : "–");
  }
}
