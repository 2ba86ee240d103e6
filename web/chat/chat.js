// The conversation that is shown: what asks the model, and what the reader may do with what was said.
import { generate, samplingFields } from "./generate.js";
import { showChildren } from "../common/dom.js";
import { MessageView } from "./message.js";
import { addNode, pathTo, placeOf, requestMessages, saveConversation, showSibling, shownPath, takeOver } from "./store.js";

const SAVE_EVERY_MS = 1000; // while an answer grows
const SPOKEN_CHARACTERS = 1500;

export class Chat {
  // `log` is where messages go, and scrolls. `hooks`: changed() when titles, the running answer or figures have changed;
  // say(text) to readers of the screen; warn(text) in the page; answered(error) when an answer has ended, with what went wrong or null.
  constructor(log, hooks) {
    this.log = log;
    this.hooks = hooks;
    this.views = new Map();
    this.model = null; // {id, max_model_len}
    this.abort = null; // of the answer that is being made,
    this.answering = null; // and its node
    this.follows = true; // the log stays at its end, until the reader scrolls up
    log.addEventListener("scroll", () => {
      this.follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      this.hooks.scrolled(this.follows);
    });
    this.actions = {
      regenerate: (id) => this.regenerate(id),
      edit: (id, text) => this.edit(id, text),
      sibling: (id, step) => this.sibling(id, step),
      sendResults: (id, texts) => this.sendResults(id, texts),
    };
  }

  get running() {
    return this.abort !== null;
  }

  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.views.clear();
    this.show();
    this.scrollToEnd(true);
  }

  // --- Showing ---

  show() {
    const path = shownPath(this.conversation);
    showChildren(this.log, path.map((id, i) => this.showNode(id, i === path.length - 1).element));
    this.hooks.changed();
  }

  showNode(id, last) {
    const node = this.conversation.nodes[id];
    if (!this.views.has(id)) this.views.set(id, new MessageView(id, node, this.actions));
    const view = this.views.get(id);
    view.show(node, placeOf(this.conversation, id), last);
    return view;
  }

  scrollToEnd(always = false) {
    if (!always && !this.follows) return;
    this.follows = true;
    this.log.scrollTop = this.log.scrollHeight;
  }

  // --- What the reader does ---
  // An answer that is being made then is stopped where another one is asked for.

  ask(text) {
    const path = shownPath(this.conversation);
    const id = addNode(this.conversation, path.at(-1) ?? 0, { role: "user", content: text });
    this.answer(id);
  }

  // Another answer in the place of this one.
  regenerate(id) {
    this.answer(this.conversation.nodes[id].parent);
  }

  regenerateLast() {
    const id = shownPath(this.conversation).findLast((one) => this.conversation.nodes[one].role === "assistant");
    if (id !== undefined) this.regenerate(id);
  }

  // The same question in other words, beside the first one.
  edit(id, text) {
    this.views.delete(id);
    this.answer(addNode(this.conversation, this.conversation.nodes[id].parent, { role: "user", content: text }));
  }

  editLast() {
    const id = shownPath(this.conversation).findLast((one) => this.conversation.nodes[one].role === "user");
    if (id !== undefined) this.views.get(id).beginEdit(this.conversation.nodes[id]);
  }

  sibling(id, step) {
    showSibling(this.conversation, id, step);
    this.show();
    this.save();
    const now = this.conversation.nodes[this.conversation.nodes[id].parent];
    this.views.get(now.children[now.shown])?.element.querySelector(".branches button:enabled")?.focus();
  }

  sendResults(id, texts) {
    let parent = id;
    this.conversation.nodes[id].calls.forEach((call, i) => {
      parent = addNode(this.conversation, parent, { role: "tool", call: call.id, name: call.name, content: texts[i] });
    });
    this.answer(parent);
  }

  stop() {
    this.abort?.abort();
  }

  // Another tab has kept this conversation.
  takeOver() {
    takeOver(this.conversation, this.answering);
    this.show();
    this.scrollToEnd();
  }

  // The page is left.
  leave() {
    if (!this.running) return;
    this.answering.state = "stopped";
    this.save();
  }

  // --- Asking the model ---

  async answer(parent) {
    this.stop();
    const { conversation } = this;
    const path = pathTo(conversation, parent);
    const id = addNode(conversation, parent, { role: "assistant", model: this.model?.id, content: "", reasoning: "", calls: [], state: "running" });
    const node = conversation.nodes[id];
    const abort = new AbortController();
    this.abort = abort;
    this.answering = node;
    this.show();
    this.scrollToEnd(true);
    this.hooks.say("The model answers.");
    this.save();
    const request = { messages: requestMessages(conversation, path), ...samplingFields(conversation.settings) };
    if (this.model) request.model = this.model.id;
    let wrong = null;
    try {
      await generate(request, node, abort.signal, () => this.grown(conversation, id));
      node.state = "done";
    } catch (error) {
      node.state = abort.signal.aborted ? "stopped" : "failed";
      if (!abort.signal.aborted) {
        wrong = error;
        node.error = error.status === undefined ? `The server cannot be reached: ${error.message}` : error.message;
      }
    }
    if (this.abort === abort) this.abort = this.answering = null;
    this.save(conversation);
    this.hooks.answered(wrong);
    if (this.conversation !== conversation) return this.hooks.changed(); // another one is open now
    this.show();
    this.scrollToEnd();
    this.say(node);
  }

  // A piece has come: at most one drawing for each frame.
  grown(conversation, id) {
    if (this.frame || this.conversation !== conversation) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.conversation !== conversation || conversation.nodes[id].state !== "running") return;
      this.showNode(id, true);
      this.scrollToEnd();
      if (performance.now() - (this.saved ?? 0) > SAVE_EVERY_MS) this.save();
    });
  }

  say(node) {
    if (node.state === "failed") return this.hooks.say(`The answer failed: ${node.error}`);
    const text = this.views.get(this.conversation.nodes.indexOf(node))?.content.textContent ?? "";
    const calls = node.calls.map((call) => `It calls ${call.name}.`).join(" ");
    const cut = text.length > SPOKEN_CHARACTERS ? `${text.slice(0, SPOKEN_CHARACTERS)}… The rest is in the page.` : text;
    this.hooks.say(`${node.state === "stopped" ? "Stopped" : "Answer"}: ${cut} ${calls}`);
  }

  save(conversation = this.conversation) {
    this.saved = performance.now();
    if (!saveConversation(conversation, this.answering)) {
      this.hooks.warn("This browser keeps no more conversations: its storage is full or forbidden. Delete old ones to make room.");
    }
    this.hooks.changed();
  }

  // {used, most}: tokens of the model's context that the last answer has reached; null if none is known.
  context() {
    const last = shownPath(this.conversation).map((id) => this.conversation.nodes[id]).findLast((node) => node.usage);
    if (!last || !this.model?.max_model_len) return null;
    return { used: last.usage.total_tokens, most: this.model.max_model_len };
  }
}
