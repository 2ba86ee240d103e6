// Blocks of code: their language, a button that copies them, and colours. The highlighter is loaded with the first block.
import { el, icon, iconButton } from "../common/dom.js";

const MOST_CHARACTERS = 50_000;

let highlighter = null;
const loadHighlighter = () =>
  (highlighter ??= import("../lib/highlight.js").then(() => window.hljs, () => null));

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'", "#39": "'" };
const PIECE = /<span class="([\w -]*)">|<\/span>|&([\w#]+);|[^<&]+|[<&]/g;

// The highlighter gives text with spans and escaped characters, and nothing else; they become elements without parsing HTML.
function spans(markup) {
  const top = el("code");
  const stack = [top];
  for (const [piece, name, entity] of markup.matchAll(PIECE)) {
    if (name !== undefined) {
      const span = el("span", { class: name });
      stack.at(-1).append(span);
      stack.push(span);
    } else if (piece === "</span>") {
      if (stack.length > 1) stack.pop();
    } else {
      stack.at(-1).append(entity === undefined ? piece : (ENTITIES[entity] ?? piece));
    }
  }
  return top;
}

function colour(pre, text, language) {
  const hljs = window.hljs; // at once, if it is there: a block that grows is made anew often
  if (!hljs) return loadHighlighter().then((loaded) => loaded && colour(pre, text, language));
  if (!hljs.getLanguage(language)) return;
  const coloured = spans(hljs.highlight(language, text, true).value);
  // What is shown must be what was written, whatever the highlighter does.
  if (coloured.textContent === text) pre.replaceChildren(coloured);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // browsers have it only on secure origins
    const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// A button that copies what `text` returns, and shows for a moment that it has.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    await copyText(text());
    button.replaceChildren(icon("check"));
    button.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

export function codeBlock(text, language, colours) {
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, el("code", {}, text));
  if (colours && language && text.length < MOST_CHARACTERS) colour(pre, text, language.toLowerCase());
  return el("div", { class: "code" },
    el("div", { class: "code-head" }, el("span", {}, language || "text"), copyButton("Copy the code", () => text)), pre);
}
