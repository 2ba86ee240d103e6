// The tiers with their fill and what moves between them, and small charts of the last minutes.
import { el, svg } from "../common/dom.js";

const SPAN_S = 120;
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
      text.textContent = `${percent(use, all)} of ${bytes(all)}`;
      more.textContent = [cells > 0 && `${cells} cells promised`, cached > 0 && `${cached} blocks kept for reuse`, extra].filter(Boolean).join(" · ") || " ";
    },
  };
}

function flow(label) {
  const there = el("span", { class: "rate" }), back = el("span", { class: "rate" });
  const element = el("div", { class: "flow", "aria-label": label },
    el("div", { class: "there" }, there, svg("svg", { viewBox: "0 0 60 10", "aria-hidden": "true" }, svg("path", { d: "M0 5H52" }), svg("path", { class: "tip-of-arrow", d: "M52 1 60 5 52 9z" }))),
    el("div", { class: "back" }, svg("svg", { viewBox: "0 0 60 10", "aria-hidden": "true" }, svg("path", { d: "M8 5H60" }), svg("path", { class: "tip-of-arrow", d: "M8 1 0 5 8 9z" })), back));
  const put = (node, rate) => {
    node.textContent = rate > 0 ? `${bytes(rate)}/s` : "0";
    node.parentElement.classList.toggle("moving", rate > 0);
  };
  return { element, show(forth, home) { put(there, forth); put(back, home); } };
}

// A chart of one or more series, stacked or not, as paths.
class Chart {
  constructor(title, series, stacked = false) {
    this.stacked = stacked;
    this.value = el("strong", {});
    this.plot = svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.paths = series.map((_, i) => this.plot.appendChild(svg("path", { class: `series s${i + 1} ${stacked ? "area" : ""}` })));
    const key = series.length > 1 ? el("span", { class: "key" }, ...series.map((name, i) => el("span", {}, el("i", { class: `s${i + 1}` }), name))) : null;
    this.element = el("div", { class: "chart" }, el("div", { class: "chart-head" }, el("span", {}, title), this.value), this.plot, key);
  }
  // points: [x 0..1, [values]]; most: the top of the scale, or 0 for the largest.
  show(points, most, value) {
    this.value.textContent = value;
    let top = most || 1e-9;
    if (!most) for (const [, v] of points) top = Math.max(top, this.stacked ? v.reduce((a, b) => a + b, 0) : Math.max(...v));
    const y = (v) => (29 - 27 * Math.min(1, v / top)).toFixed(2);
    let below = points.map(() => 0);
    this.paths.forEach((path, i) => {
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

export class Gauges {
  constructor(name) {
    this.device = tier("Device", "device");
    this.host = tier("Host", "host");
    this.disk = tier("Disk", "disk");
    this.toHost = flow("between device and host");
    this.toDisk = flow("between host and disk");
    this.link = el("span", { class: "more" });
    this.tokens = new Chart("tokens/s", ["prompt", "output"]);
    this.requests = new Chart("requests", ["run", "wait"]);
    this.moved = new Chart("moved", ["to the device", "from it"]);
    this.phases = new Chart("engine time", PHASES, true);
    this.phases.element.classList.add("engine-time");
    this.bounds = el("div", { class: "bounds" });
    this.element = el("section", { class: "gauges", "aria-label": `Memory and speed of ${name}` },
      el("div", { class: "tiers" }, this.device.element, this.toHost.element, this.host.element, this.toDisk.element, this.disk.element),
      el("div", { class: "charts" }, this.tokens.element, this.requests.element, this.moved.element, this.phases.element, this.bounds));
  }

  show(history, state, t) {
    const g = state.g, head = history.head;
    const kv = head.cell_bytes[0];
    const second = history.stateAt(Math.max(history.begin, t - 1));
    const dt = Math.max(0.001, state.t - second.t);
    const rate = (from, to) => state.t > second.t ? Math.max(0, ((g.mv?.[from]?.[to] || 0) - (second.g.mv?.[from]?.[to] || 0)) / dt) : 0;
    this.device.show(g.d, kv, head.stage_blocks > 0 ? `stage ring of ${head.stage_blocks} blocks` : "");
    this.host.show(g.h, kv, [g.bo > 0 && `${g.bo} cells of peers`, g.rc > 0 && `${g.rc} called back`, g.le > 0 && `${g.le} lent`].filter(Boolean).join(" · "));
    this.disk.show(g.k, kv, "");
    const hasHost = (g.h?.[0] || 0) > 0, hasDisk = (g.k?.[0] || 0) > 0;
    this.toHost.element.hidden = !hasHost;
    this.toDisk.element.hidden = !hasDisk;
    this.toHost.show(rate(0, 1), rate(1, 0));
    this.toDisk.show(rate(1, 2) + rate(0, 2), rate(2, 1) + rate(2, 0));
    this.showCharts(history, t, hasHost || hasDisk);
    this.showBounds(g);
  }

  // Rates over windows of the chart's width, so that a burst is seen and noise is not.
  showCharts(history, t, moves) {
    const from = Math.max(history.begin, t - SPAN_S);
    const all = history.seriesOf(from, t);
    const span = Math.max(1, t - from);
    const points = [];
    let last = all[0];
    for (const now of all) {
      if (!last || now.t - last.t < span / 60) continue;
      points.push([(now.t - from) / span, last, now, now.t - last.t]);
      last = now;
    }
    const per = (f) => points.map(([x, a, b, dt]) => [x, f(a.g, b.g, dt)]);
    const tokens = per((a, b, dt) => [(b.pt - a.pt) / dt, (b.gt - a.gt) / dt]);
    const lastOf = (list) => list.length > 0 ? list[list.length - 1][1] : [0, 0];
    this.tokens.show(tokens, 0, `${Math.round(lastOf(tokens)[1])} out`);
    const now = all[all.length - 1] || { running: 0, waiting: 0 };
    this.requests.show(all.map((s) => [(s.t - from) / span, [s.running, s.waiting]]), 0, `${now.running} run, ${now.waiting} wait`);
    const moved = per((a, b, dt) => [
      (b.mv[1][0] + b.mv[2][0] - a.mv[1][0] - a.mv[2][0]) / dt, (b.mv[0][1] + b.mv[0][2] - a.mv[0][1] - a.mv[0][2]) / dt]);
    this.moved.element.hidden = !moves;
    this.moved.show(moved, 0, `${bytes(lastOf(moved)[0] + lastOf(moved)[1])}/s`);
    const phases = per((a, b, dt) => PHASES.map((_, i) => (b.ph[i] - a.ph[i]) / 1e6 / dt));
    const busy = phases.length > 0 ? phases[phases.length - 1][1] : PHASES.map(() => 0);
    const sum = busy.reduce((x, y) => x + y, 0);
    this.phases.show(phases, 1, sum > 0 ? `${percent(sum - busy[3], sum)} not compute` : "idle");
  }

  showBounds(g) {
    const rows = (g.slo || []).map(([all, met], i) => [SLOS[i], all, met]).filter(([, all]) => all > 0);
    if (g.good?.[0] > 0) rows.push(["all (goodput)", ...g.good]);
    const done = (g.fin || []).reduce((x, y) => x + y, 0);
    this.bounds.replaceChildren(
      el("div", { class: "chart-head" }, el("span", {}, "requests that ended"), el("strong", {}, String(done))),
      el("dl", {},
        ...rows.flatMap(([name, all, met]) => [el("dt", {}, name), el("dd", {}, `${percent(met, all)} of ${all}`)]),
        el("dt", {}, "preemptions"), el("dd", {}, `${g.pe || 0}${g.sw ? `, ${g.sw} swapped` : ""}`),
        el("dt", {}, "prompt cached"), el("dd", {}, percent(g.pc || 0, g.pt || 0))));
  }
}
