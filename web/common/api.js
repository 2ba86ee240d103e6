// Calls of the server that has given the page, with the API key where it wants one.
import { el } from "./dom.js";
import { load, save } from "./storage.js";

const KEY = "kvasir.key";

// Paths are relative to the page, so that a proxy may put a folder before them.
const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI);

export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let asking = null; // several calls that lack a key ask once

// Asks for the key; true once there is one, false if the reader would not give it.
function askForKey(message) {
  asking ??= new Promise((resolve) => {
    const input = el("input", { type: "password", id: "key-input", autocomplete: "off", spellcheck: "false", required: true });
    const dialog = el("dialog", { "aria-labelledby": "key-title" },
      el("form", { method: "dialog" },
        el("h2", { id: "key-title" }, "This server wants an API key"),
        el("p", { class: "error", role: "alert", hidden: !message }, message || ""),
        el("div", { class: "field" }, el("label", { for: "key-input" }, "API key"), input,
          el("small", {}, "It is kept in this tab alone, and forgotten when the tab closes.")),
        el("div", { class: "dialog-buttons" },
          el("button", { type: "button", class: "button", onclick: () => dialog.close("") }, "Cancel"),
          el("button", { type: "submit", class: "button primary", value: "use" }, "Use this key"))));
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) save(sessionStorage, KEY, given);
      dialog.remove();
      asking = null;
      resolve(Boolean(given));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

async function failureOf(answer) {
  const text = await answer.text();
  let message = text.slice(0, 500) || answer.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* a proxy's page */ }
  return new ApiFailure(answer.status, message);
}

// As fetch(), but an answer that is no success is thrown as an ApiFailure, and a missing key is asked for.
export async function call(path, options = {}) {
  for (let tries = 0; ; ++tries) {
    const key = load(sessionStorage, KEY, "");
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const answer = await fetch(address(path), { ...options, headers });
    if (answer.ok) return answer;
    const failure = await failureOf(answer);
    if (failure.status !== 401 || tries === 3) throw failure;
    // Another call may have been given a key while this one was under way.
    if (load(sessionStorage, KEY, "") !== key) continue;
    if (!(await askForKey(key ? failure.message : ""))) throw failure;
  }
}

export const getJson = async (path, options) => (await call(path, options)).json();

export const postJson = (path, body, options = {}) =>
  call(path, { ...options, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

// The lines of an answer, as they come. What has no end at the end of the answer is no line.
export async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const whole = (rest + value).split("\n");
      rest = whole.pop();
      yield* whole;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The payloads of an answer's server-sent events, as texts.
export async function* events(answer) {
  for await (const line of lines(answer)) {
    if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
