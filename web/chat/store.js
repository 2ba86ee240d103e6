// Conversations, kept in this browser. A conversation is a tree: asking again, or editing a question, adds a branch beside the
// first one. Node 0 is the root; every node knows which of its children is shown, so that one path is.
import { load, save } from "../common/storage.js";

const INDEX = "kvasir.chats";
const DEFAULTS = "kvasir.chat-settings";
const keyOf = (id) => `kvasir.chat.${id}`;

export const newConversation = () => ({
  id: crypto.getRandomValues(new Uint32Array(3)).reduce((text, word) => text + word.toString(36), ""),
  title: "",
  settings: load(localStorage, DEFAULTS, {}),
  nodes: [{ parent: null, children: [], shown: 0 }],
});

// --- The tree ---

export function addNode(conversation, parent, message) {
  const id = conversation.nodes.push({ ...message, parent, children: [], shown: 0 }) - 1;
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

export function loadConversation(id) {
  const conversation = load(localStorage, keyOf(id), null);
  for (const node of conversation?.nodes ?? []) {
    if (node.state === "running") node.state = "stopped"; // the page was closed
  }
  return conversation;
}

// Ids of what was deleted here: the end of an answer that was being made then must not bring it back.
const deleted = new Set();

// False: the browser keeps nothing, or is full. An empty conversation is not kept.
export function saveConversation(conversation) {
  if (conversation.nodes.length === 1 || deleted.has(conversation.id)) return true;
  const others = load(localStorage, INDEX, []).filter((one) => one.id !== conversation.id);
  const index = [...others, { id: conversation.id, title: conversation.title, used: Date.now() }];
  return save(localStorage, keyOf(conversation.id), conversation) && save(localStorage, INDEX, index);
}

export function deleteConversation(id) {
  deleted.add(id);
  save(localStorage, keyOf(id), null);
  save(localStorage, INDEX, load(localStorage, INDEX, []).filter((one) => one.id !== id));
}

// New conversations begin with these settings.
export const saveDefaults = (settings) => save(localStorage, DEFAULTS, settings);

// --- As the server reads it ---

export function requestMessages(conversation, path) {
  const messages = [];
  if (conversation.settings.system) messages.push({ role: "system", content: conversation.settings.system });
  for (const id of path) {
    const node = conversation.nodes[id];
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
