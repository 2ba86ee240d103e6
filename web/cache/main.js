// The page of the cache map: of the server that has given it, as it works, or of records that `kvasir view` was given.
import { ApiFailure, call, events, getJson, lines } from "../common/api.js";
import { el, icon, iconButton, put } from "../common/dom.js";
import { themeButton } from "../common/theme.js";
import { legend } from "./palette.js";
import { Pane } from "./pane.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 50];
const RETRY_MS = 2000;

let panes = [];
let live = false;
let follow = true; // the latest frame is shown
let playing = false; // a record, or what was seen, goes on
let at = 0; // seconds
let speed = 1;
let dragging = false;

const status = el("p", { class: "status", role: "status" }, "connecting");
const stage = el("main", { class: "stage" });
const slider = el("input", { type: "range", min: "0", max: "0", step: "any", value: "0", "aria-label": "Time" });
const time = el("output", { class: "time" }, "0.00 s");
const playButton = el("button", { type: "button", class: "button", onclick: () => toggle() });
const liveButton = el("button", { type: "button", class: "button", onclick: () => goLive() }, "Live");
const speedChoice = el("select", { "aria-label": "Speed", onchange: () => { speed = Number(speedChoice.value); } },
  ...SPEEDS.map((s) => el("option", { value: s, selected: s === 1 }, `${s} ×`)));
const modeChoice = el("select", { "aria-label": "Size of the grid", onchange: () => { for (const p of panes) { p.strips.mode = modeChoice.value; p.strips.draw(); } } },
  el("option", { value: "auto" }, "fit"), el("option", { value: "grid" }, "all layers"), el("option", { value: "compact" }, "compact"));
const tableButton = el("button", { type: "button", class: "button", "aria-pressed": "false", onclick: () => toggleTable() }, "Table");
const themed = () => { for (const p of panes) p.strips.themeChanged(); };

function showPlay() {
  const moving = live ? follow || playing : playing;
  playButton.replaceChildren(icon(moving ? "pause" : "play"), moving ? "Pause" : "Play");
  liveButton.hidden = !live;
  liveButton.setAttribute("aria-pressed", String(follow));
}

const begin = () => Math.min(...panes.map((p) => p.begin));
const end = () => Math.max(0, ...panes.map((p) => p.end));

// What is shown stays until the reader moves it; a live map goes on behind it.
function pause() {
  follow = playing = false;
  for (const p of panes) p.hold();
  showPlay();
}

function play() {
  if (!live && at >= end() - 1e-6) at = begin();
  playing = true;
  for (const p of panes) p.release();
  showPlay();
}

const toggle = () => (follow || playing ? pause() : play());

function goLive() {
  follow = true;
  playing = false;
  for (const p of panes) p.release();
  showPlay();
}

// To the next frame of any pane, or the one before.
function step(forward) {
  pause();
  if (forward && at >= end() - 1e-6) for (const p of panes) p.hold(true); // what has come since
  const times = panes.map((p) => p.beside(at, forward)).filter((t) => t !== null);
  if (times.length > 0) seek(forward ? Math.min(...times) : Math.max(...times));
}

function seek(t) {
  at = Math.max(begin(), Math.min(end(), t));
  for (const p of panes) p.mustShow = true;
}

function toggleTable() {
  const on = tableButton.getAttribute("aria-pressed") !== "true";
  tableButton.setAttribute("aria-pressed", String(on));
  for (const p of panes) p.setTable(on);
}

// Ten frames a second are shown, whatever comes in.
let lastTick = performance.now();
function tick() {
  const now = performance.now();
  const passed = (now - lastTick) / 1000;
  lastTick = now;
  if (document.hidden || panes.length === 0 || panes.every((p) => p.empty)) return;
  if (follow) at = end();
  else if (playing) {
    at = Math.max(begin(), at + passed * speed);
    if (at >= end()) {
      at = end();
      if (live) goLive(); else playing = false;
      showPlay();
    }
  }
  if (!dragging) {
    for (const [name, value] of [["min", begin()], ["max", end()], ["value", at]]) {
      if (slider[name] !== String(value)) slider[name] = String(value);
    }
  }
  put(time, `${at.toFixed(2)} s of ${end().toFixed(2)}`);
  const value = `${at.toFixed(2)} seconds`;
  if (slider.getAttribute("aria-valuetext") !== value) slider.setAttribute("aria-valuetext", value);
  for (const p of panes) {
    p.show(at);
    if (follow || playing) p.strips.animate();
  }
}

async function watch(pane) {
  for (;;) {
    try {
      const answer = await call("cache/stream");
      status.textContent = "live";
      status.className = "status on";
      for await (const line of events(answer)) pane.add(JSON.parse(line), line.length);
      status.textContent = "the stream has ended; trying again";
    } catch (failure) {
      if (failure instanceof ApiFailure && [401, 403, 404].includes(failure.status)) {
        status.textContent = failure.message;
        status.className = "status error";
        return;
      }
      status.textContent = `${failure.message}; trying again`;
    }
    status.className = "status";
    await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
  }
}

async function read(pane, index) {
  const answer = await call(`cache/records/${index}`);
  let count = 0;
  for await (const line of lines(answer)) {
    pane.add(JSON.parse(line), line.length);
    if (++count % 2000 !== 0) continue;
    status.textContent = `reading ${pane.name}: ${count} frames`;
    await new Promise((resolve) => { setTimeout(resolve); });
  }
}

async function begins() {
  const source = await getJson("cache/source");
  live = source.live;
  follow = live;
  panes = live ? [new Pane("this server", true)] : source.records.map((name) => new Pane(name, false));
  stage.classList.toggle("two", panes.length > 1);
  stage.append(...panes.map((p) => p.element));
  speedChoice.parentElement.hidden = live;
  showPlay();
  setInterval(tick, 100);
  if (live) return watch(panes[0]);
  await Promise.all(panes.map(read));
  status.textContent = `${panes.map((p) => `${p.history.frames.length} frames`).join(" and ")}`;
  seek(begin());
  playing = true;
  showPlay();
  return undefined;
}

document.body.append(
  el("header", { class: "top" },
    el("h1", {}, "Kvasir ", el("span", { class: "muted" }, "cache map")), status,
    el("div", { class: "controls" }, el("label", { class: "choice" }, "Grid ", modeChoice), tableButton, themeButton(themed))),
  legend(),
  stage,
  el("footer", { class: "player" },
    playButton,
    iconButton("back", "One frame back", () => step(false), { id: "back" }), iconButton("on", "One frame on", () => step(true), { id: "on" }),
    slider, time, el("label", { class: "choice" }, "Speed ", speedChoice), liveButton));
slider.addEventListener("pointerdown", () => { dragging = true; });
slider.addEventListener("pointerup", () => { dragging = false; });
slider.addEventListener("input", () => { pause(); seek(Number(slider.value)); });
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && !event.target.closest("button")) toggle();
  else if (event.key === "ArrowLeft") step(false);
  else if (event.key === "ArrowRight") step(true);
  else if (event.key === "End" && live) goLive();
  else return;
  event.preventDefault();
});
begins().catch((failure) => {
  status.textContent = failure.message;
  status.className = "status error";
});
