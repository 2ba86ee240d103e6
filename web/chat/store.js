// Conversations, kept in this browser. A conversation is a tree: asking again, or editing a question, adds a branch beside the
// first one. Node 0 is the root; every node knows which of its children is shown, so that one path is. Several tabs may have the
// same conversation: each adds what it lacks of what the others have kept, so nodes are never taken away, and their order may differ.
import { load, save } from "../common/storage.js";

const INDEX = "kvasir.chats";
const DEFAULTS = "kvasir.chat-settings";
const PREFIX = "kvasir.chat.";
const keyOf = (id) => PREFIX + id;
const randomName = (words) => crypto.getRandomValues(new Uint32Array(words)).reduce((text, word) => text + word.toString(36), "");

export const newConversation = () => ({
  id: randomName(3),
  title: "",
  settings: load(localStorage, DEFAULTS, {}),
  nodes: [{ parent: null, children: [], shown: 0 }],
});

// --- The tree ---

export function addNode(conversation, parent, message) {
  const id = conversation.nodes.push({ ...message, uid: randomName(2), parent, children: [], shown: 0 }) - 1;
  const above = conversation.nodes[parent];
  above.shown = above.children.push(id) - 1;
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message.content);
  return id;
}

const titleOf = (text) => {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 59) + "…" : line;
};

// The ids of what is shown, from the first message to the last.
export function shownPath(conversation) {
  const path = [];
  for (let node = conversation.nodes[0]; node.children.length > 0;) {
    const id = node.children[node.shown];
    path.push(id);
    node = conversation.nodes[id];
  }
  return path;
}

// The ids from the first message to this one.
export function pathTo(conversation, id) {
  const path = [];
  for (let at = id; at > 0; at = conversation.nodes[at].parent) path.unshift(at);
  return path;
}

// What stands in the node's place: {index, count}.
export function placeOf(conversation, id) {
  const siblings = conversation.nodes[conversation.nodes[id].parent].children;
  return { index: siblings.indexOf(id), count: siblings.length };
}

export function showSibling(conversation, id, step) {
  const above = conversation.nodes[conversation.nodes[id].parent];
  above.shown = Math.min(Math.max(above.children.indexOf(id) + step, 0), above.children.length - 1);
}

// --- The browser's storage ---

// The conversations that are kept, the last used first: [{id, title, used}].
export const listConversations = () => load(localStorage, INDEX, []).sort((a, b) => b.used - a.used);

// Ids of what this tab has loaded or kept. If one of them is not there any more, it was deleted, here or in another tab: the end of an
// answer that was being made then must not bring it back.
const kept = new Set();

export function loadConversation(id) {
  const conversation = load(localStorage, keyOf(id), null);
  if (conversation) kept.add(id);
  for (const node of conversation?.nodes ?? []) {
    if (node.state === "running") node.state = "stopped"; // the page was closed
  }
  return conversation;
}

export const wasDeleted = (id) => kept.has(id) && localStorage.getItem(keyOf(id)) === null;

// False: the browser keeps nothing, or is full. An empty conversation is not kept. answering: see adopt().
export function saveConversation(conversation, answering) {
  if (conversation.nodes.length === 1 || wasDeleted(conversation.id)) return true;
  adopt(conversation, answering);
  const known = load(localStorage, INDEX, []);
  const others = known.filter((one) => one.id !== conversation.id);
  const index = [...others, { id: conversation.id, title: conversation.title, used: Date.now() }];
  if (!save(localStorage, keyOf(conversation.id), conversation)) return false;
  if (save(localStorage, INDEX, index)) {
    kept.add(conversation.id);
    return true;
  }
  // What the list does not name could not be deleted.
  if (others.length === known.length) localStorage.removeItem(keyOf(conversation.id));
  return false;
}

// Those of old have none, and the same place in all tabs.
const uidOf = (node, id) => node.uid ?? id;

// An answer grows until it is done.
const isNewer = (theirs, mine) => {
  const length = (node) => node.content.length + (node.reasoning?.length ?? 0);
  if (mine.state === "done" || mine.role !== "assistant") return false;
  if (theirs.state === "done" || length(theirs) > length(mine)) return true;
  return length(theirs) === length(mine) && mine.state === "running" && theirs.state !== "running";
};

// Adds to the conversation what other tabs have kept of it: their nodes, and their longer answers. answering: the node that this tab
// fills.
function adopt(conversation, answering) {
  const stored = load(localStorage, keyOf(conversation.id), null)?.nodes ?? [];
  const ids = new Map(conversation.nodes.map((node, id) => [uidOf(node, id), id]));
  stored.forEach((theirs, i) => {
    const id = ids.get(uidOf(theirs, i));
    const mine = conversation.nodes[id];
    if (mine && (mine === answering || !isNewer(theirs, mine))) return;
    if (mine) {
      const { parent, children, shown } = mine;
      Object.assign(mine, theirs, { parent, children, shown });
    } else {
      // A node stands behind its parent, which has a place here by now.
      const parent = ids.get(uidOf(stored[theirs.parent], theirs.parent));
      const added = conversation.nodes.push({ ...theirs, parent, children: [], shown: 0 }) - 1;
      conversation.nodes[parent].children.push(added);
      ids.set(uidOf(theirs, i), added);
    }
  });
}

// Whether it is in this place of the browser's storage.
export const isOf = (key, id) => key === keyOf(id);

// Another tab has kept it anew.
export function takeOver(conversation, answering) {
  adopt(conversation, answering);
  conversation.settings = load(localStorage, keyOf(conversation.id), conversation).settings;
}

export function deleteConversation(id) {
  save(localStorage, keyOf(id), null);
  save(localStorage, INDEX, load(localStorage, INDEX, []).filter((one) => one.id !== id));
}

// With those that the list does not name, since it could not be kept.
export function deleteAllConversations() {
  for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) save(localStorage, key, null);
  save(localStorage, INDEX, []);
}

// New conversations begin with these settings.
export const saveDefaults = (settings) => save(localStorage, DEFAULTS, settings);

// --- As the server reads it ---

export function requestMessages(conversation, path) {
  const messages = [];
  if (conversation.settings.system) messages.push({ role: "system", content: conversation.settings.system });
  for (const id of path) {
    const node = conversation.nodes[id];
    const before = messages.at(-1);
    if (node.role === "assistant") {
      const calls = (node.calls ?? []).map((call) =>
        ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      // Nothing was answered before the stop or the error.
      if (!node.content && calls.length === 0) continue;
      // Thoughts are for the answer that they led to, unless it goes on behind its calls.
      messages.push({ role: "assistant", content: node.content || null,
        ...(calls.length > 0 ? { tool_calls: calls, ...(node.reasoning ? { reasoning: node.reasoning } : {}) } : {}) });
    } else if (node.role === "tool") {
      messages.push({ role: "tool", tool_call_id: node.call, content: node.content });
    } else if (before?.role === "user") {
      before.content += `\n\n${node.content}`; // many templates refuse two questions in a row
    } else {
      messages.push({ role: "user", content: node.content });
    }
  }
  return messages;
}

export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.settings.system) parts.push(`## System\n\n${conversation.settings.system}`);
  for (const id of shownPath(conversation)) {
    const node = conversation.nodes[id];
    const calls = (node.calls ?? []).map((call) => `Calls \`${call.name}\` with \`${call.arguments}\``);
    const name = { user: "You", assistant: node.model || "Assistant", tool: `Result of ${node.name}` }[node.role];
    parts.push(`## ${name}\n\n${[node.content, ...calls].filter(Boolean).join("\n\n")}`);
  }
  return parts.join("\n\n") + "\n";
}
