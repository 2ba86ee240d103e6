// The dialog of a conversation's settings: the system prompt, sampling and tools.
import { el } from "../common/dom.js";

// name, label, attributes of the input, explanation; the ranges are the server's (docs/api.md).
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }, "0 takes the most likely token; more is more varied"],
  ["top_p", "Top p", { min: 0.01, max: 1, step: "any" }, "the most likely tokens that together have this probability"],
  ["top_k", "Top k", { min: 0, step: 1 }, "so many of the most likely tokens; 0: all"],
  ["min_p", "Min p", { min: 0, max: 1, step: "any" }, "tokens with at least this share of the largest probability"],
  ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 1000, step: "any" }, "more than 1 avoids what was said"],
  ["max_tokens", "Longest answer", { min: 1, step: 1, placeholder: "no limit" }, "in tokens"],
  ["seed", "Seed", { step: 1, placeholder: "drawn" }, "the same seed gives the same answer"],
];

const TOOLS_EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}]`;

function readTools(text) {
  if (!text.trim()) return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("it is not a list");
  return tools.length > 0 ? tools : undefined;
}

const field = (id, label, input, words) =>
  el("div", { class: "field" }, el("label", { for: id }, label), input, words ? el("small", { id: `${id}-words` }, words) : null);

// Resolves to the new settings, or to null if the reader has cancelled. `deleteAll` deletes every conversation.
export function editSettings(settings, deleteAll) {
  const system = el("textarea", { id: "set-system", rows: "4", placeholder: "None" });
  system.value = settings.system ?? "";
  const numbers = NUMBERS.map(([name, label, attributes, words]) => {
    const input = el("input", { id: `set-${name}`, type: "number", inputmode: "decimal", placeholder: "the model's", "aria-describedby": `set-${name}-words`, ...attributes });
    input.value = settings[name] ?? "";
    return { name, input, element: field(`set-${name}`, label, input, words) };
  });
  const thinking = el("select", { id: "set-thinking" },
    ["", "on", "off"].map((value) => el("option", { value, selected: value === (settings.thinking ?? "") }, value || "the model's choice")));
  const tools = el("textarea", { id: "set-tools", rows: "5", class: "mono", spellcheck: "false", placeholder: TOOLS_EXAMPLE, "aria-describedby": "set-tools-words" });
  tools.value = settings.tools ? JSON.stringify(settings.tools, null, 2) : "";
  for (const event of ["input", "change"]) tools.addEventListener(event, () => tools.setCustomValidity(""));

  return new Promise((resolve) => {
    let result = null;
    const accept = (event) => {
      event.preventDefault();
      const out = {};
      if (system.value.trim()) out.system = system.value;
      for (const { name, input } of numbers) {
        if (input.value !== "") out[name] = Number(input.value);
      }
      if (thinking.value) out.thinking = thinking.value;
      try {
        out.tools = readTools(tools.value);
      } catch (error) {
        tools.setCustomValidity(`Tools must be a JSON list: ${error.message}`);
        tools.reportValidity();
        return;
      }
      result = out;
      dialog.close();
    };
    const reset = () => {
      for (const input of [system, thinking, tools, ...numbers.map((one) => one.input)]) input.value = "";
    };
    const dialog = el("dialog", { class: "settings", "aria-labelledby": "settings-title" },
      el("form", { onsubmit: accept },
        el("h2", { id: "settings-title" }, "Settings of this conversation"),
        el("div", { class: "settings-body" },
          field("set-system", "System prompt", system),
          el("div", { class: "settings-grid" }, numbers.map((one) => one.element), field("set-thinking", "Thinking", thinking, "if the model can")),
          field("set-tools", "Tools", tools, "Functions that the model may call, as a JSON list. The page shows each call, and you give its result."),
          el("p", {}, el("button", { type: "button", class: "button danger", onclick: () => deleteAll() && dialog.close() }, "Delete all conversations"))),
        el("div", { class: "dialog-buttons" },
          el("button", { type: "button", class: "button", onclick: reset }, "Reset"),
          el("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
          el("button", { type: "submit", class: "button primary" }, "Save"))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
