// The page: its parts, what keys do, and which conversation is open.
import { getJson } from "../common/api.js";
import { el, icon, iconButton } from "../common/dom.js";
import { themeButton } from "../common/theme.js";
import { Chat } from "./chat.js";
import { editSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";

const SUGGESTIONS = [
  "What is a raven?",
  "Write a Python function that reverses a list.",
  "Explain what a KV cache is, in three sentences.",
  "Compare tea and coffee in a table.",
];

const KEYS = [
  ["Enter", "send the message"], ["Shift + Enter", "begin a new line"], ["↑", "in an empty field: edit your last message"],
  ["Esc", "stop the answer; leave a dialog or an edit"], ["Alt + Shift + N", "new conversation"], ["Alt + Shift + R", "answer again"],
  ["Alt + Shift + S", "settings"], ["Alt + Shift + L", "list of conversations"], ["Alt + Shift + K", "these keys"],
];

// --- Parts ---

const log = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Messages", tabindex: "0" });
const spoken = el("p", { class: "visually-hidden", role: "status" });
const warning = el("p", { class: "banner", role: "alert", hidden: true });
const modelName = el("span", { class: "model" });
const modelChoice = el("select", { class: "model", "aria-label": "Model", hidden: true });
const contextFill = el("meter", { min: "0", max: "1", high: "0.8", "aria-label": "Context in use", hidden: true });
const contextWords = el("span", { class: "context-words" });
const input = el("textarea", { id: "message", rows: "1", placeholder: "Ask anything", "aria-label": "Message", enterkeyhint: "send" });
const send = el("button", { type: "submit", class: "send", "aria-label": "Send" }, icon("send"));
const toEnd = el("button", { type: "button", class: "button to-end", hidden: true, onclick: () => chat.scrollToEnd(true) }, "↓ Newest");
const welcome = el("div", { class: "welcome" });

const sidebar = new Sidebar({ create: () => openConversation(store.newConversation()), open: (id) => openById(id), remove: removeConversation });
const chat = new Chat(log, {
  changed: () => showState(),
  say: (text) => (spoken.textContent = text),
  warn,
  scrolled: (follows) => (toEnd.hidden = follows),
  // The key was given meanwhile, or the server has another model now.
  answered: (error) => (!chat.model || error?.status === 404) && findModel(),
});

const composer = el("form", { class: "composer" }, el("div", { class: "composer-box" }, input, send),
  el("p", { class: "hint" }, contextFill, contextWords, el("span", { class: "keys-hint" }, el("kbd", {}, "Enter"), " sends, ", el("kbd", {}, "Shift + Enter"), " begins a line"),
    el("button", { type: "button", class: "link", onclick: showKeys }, "All keys")));

document.body.append(
  el("a", { class: "skip", href: "#message", onclick: (event) => { event.preventDefault(); input.focus(); } }, "Skip to the message field"),
  sidebar.element, sidebar.shade,
  el("main", {},
    el("header", { class: "top" }, sidebar.opener, el("h1", { class: "visually-hidden" }, "Kvasir chat"), modelName, modelChoice, el("span", { class: "space" }),
      iconButton("download", "Save this conversation as a file", saveAsFile, { "data-action": "save" }),
      iconButton("settings", "Settings", openSettings, { "data-action": "settings" }), themeButton()),
    warning, welcome, log, el("div", { class: "to-end-place" }, toEnd), composer),
  spoken);

// --- The conversation that is open ---

// A touch screen would show its keyboard.
const focusInput = () => window.matchMedia("(pointer: coarse)").matches || input.focus();

function openConversation(conversation) {
  chat.open(conversation);
  showState();
  focusInput();
}

function openById(id) {
  if (id && chat.conversation?.id === id) return focusInput();
  const conversation = id && store.loadConversation(id);
  openConversation(conversation || store.newConversation());
}

function removeConversation(id, title) {
  if (!window.confirm(`Delete the conversation “${title}”?`)) return;
  if (chat.conversation.id === id) chat.stop();
  store.deleteConversation(id);
  if (chat.conversation.id === id) openConversation(store.newConversation());
  else showState();
  spoken.textContent = "Deleted.";
}

function deleteAll() {
  if (!window.confirm("Delete all conversations of this browser?")) return false;
  chat.stop();
  store.deleteAllConversations();
  openConversation(store.newConversation());
  return true;
}

function saveAsFile() {
  const url = URL.createObjectURL(new Blob([store.asMarkdown(chat.conversation)], { type: "text/markdown" }));
  el("a", { href: url, download: `${(chat.conversation.title || "conversation").replace(/[^\p{L}\p{N} -]/gu, "").trim()}.md` }).click();
  URL.revokeObjectURL(url);
}

async function openSettings() {
  const settings = await editSettings(chat.conversation.settings, deleteAll);
  if (!settings) return;
  chat.conversation.settings = settings;
  store.saveDefaults(settings);
  chat.save();
}

function showKeys() {
  const dialog = el("dialog", { "aria-labelledby": "keys-title" },
    el("h2", { id: "keys-title" }, "Keys"),
    el("dl", { class: "keys" }, KEYS.flatMap(([key, words]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)])),
    el("form", { method: "dialog", class: "dialog-buttons" }, el("button", { class: "button primary" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// --- What is shown beside the messages ---

function warn(text) {
  warning.textContent = text;
  warning.hidden = !text;
}

function showState() {
  const { conversation } = chat;
  const empty = conversation.nodes.length === 1;
  welcome.hidden = !empty;
  log.hidden = empty;
  document.title = conversation.title ? `${conversation.title} · Kvasir` : "Kvasir chat";
  history.replaceState(null, "", empty ? "#" : `#${conversation.id}`);
  sidebar.show(conversation.id);
  send.setAttribute("aria-label", chat.running ? "Stop" : "Send");
  send.title = chat.running ? "Stop (Esc)" : "Send (Enter)";
  send.classList.toggle("stop", chat.running);
  if (send.dataset.shows !== String(chat.running)) send.replaceChildren(icon(chat.running ? "stop" : "send"));
  send.dataset.shows = String(chat.running);
  const context = chat.context();
  contextFill.hidden = !context;
  contextWords.textContent = context ? `${context.used.toLocaleString("en")} of ${context.most.toLocaleString("en")} tokens of context` : "";
  if (context) contextFill.value = context.used / context.most;
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, window.innerHeight * 0.4)}px`;
}

// --- The model ---

let finding = false;

async function findModel() {
  if (finding) return;
  finding = true;
  while (finding) {
    try {
      await getJson("health");
      const { data } = await getJson("v1/models");
      chat.model = data[0];
      modelName.textContent = data[0].id;
      modelName.hidden = data.length > 1;
      modelChoice.hidden = data.length === 1;
      modelChoice.replaceChildren(...data.map((model) => el("option", { value: model.id }, model.id)));
      modelChoice.onchange = () => (chat.model = data.find((model) => model.id === modelChoice.value));
      warn("");
      showState();
      finding = false;
    } catch (error) {
      modelName.textContent = "no model";
      warn(error.status === 503 ? "The model is being loaded…" : error.status ? error.message : "The server cannot be reached.");
      finding = error.status !== 401;
      if (finding) await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

// --- Keys and events ---

function submit() {
  if (chat.running) return chat.stop();
  const text = input.value.trim();
  if (!text) return;
  input.value = "";
  fitInput();
  chat.ask(text);
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!chat.running) submit();
  } else if (event.key === "ArrowUp" && input.value === "") {
    event.preventDefault();
    chat.editLast();
  }
});

const SHORTCUTS = {
  KeyN: () => openConversation(store.newConversation()),
  KeyR: () => chat.regenerateLast(),
  KeyS: openSettings,
  KeyL: () => sidebar.toggle(!sidebar.isOpen),
  KeyK: showKeys,
};
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && chat.running) {
    event.preventDefault();
    chat.stop();
  } else if (event.altKey && event.shiftKey && SHORTCUTS[event.code]) {
    event.preventDefault();
    SHORTCUTS[event.code]();
  }
});
// Another tab has changed something.
window.addEventListener("storage", (event) => {
  const { id } = chat.conversation;
  if (store.wasDeleted(id)) {
    openConversation(store.newConversation());
    spoken.textContent = "Another tab has deleted this conversation.";
  } else if (store.isOf(event.key, id)) {
    chat.takeOver();
  }
  sidebar.show(chat.conversation.id);
});
window.addEventListener("pagehide", () => chat.leave());

welcome.append(el("img", { src: "assets/common/icon.svg", alt: "", width: "56", height: "56" }), el("h2", {}, "What would you like to know?"),
  el("p", { class: "muted" }, "The model runs on your server. What you write goes nowhere else."), el("div", { class: "suggestions" }, SUGGESTIONS.map((text) =>
    el("button", { type: "button", class: "button", onclick: () => { chat.ask(text); focusInput(); } }, text))));
openById(location.hash.slice(1));
findModel();
