// Markdown as elements. What a model writes is hostile until shown otherwise: the parser's tokens become elements of the kinds
// below, with the attributes below, and all else is text. No HTML is made or parsed on the way, images are links that the reader
// may follow, and links lead to the web or to a mail program only.
import "../lib/markdown-it.js";
import { el } from "../common/dom.js";
import { codeBlock } from "./code.js";

const MOST_CHARACTERS = 200_000; // more is shown as plain text: parsing takes time in each frame

const parser = window.markdownit({ html: false, linkify: true, breaks: true, typographer: false, maxNesting: 20 });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = (url) => isSafe(url);

function isSafe(url) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(url).protocol); // relative ones throw
  } catch {
    return false;
  }
}

const TAGS = new Set(["p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s", "hr", "br"]);

const link = (href, ...children) =>
  el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow ugc" }, ...children);

function opened(token) {
  const attribute = (name) => token.attrGet(name) ?? undefined;
  if (/^h[1-6]$/.test(token.tag)) return el(`h${Math.min(Number(token.tag[1]) + 2, 6)}`); // the page's own are h1 and h2
  if (token.tag === "a" && isSafe(attribute("href"))) return link(attribute("href"));
  if (token.tag === "ol") return el("ol", { start: attribute("start") });
  if (token.tag === "th" || token.tag === "td") {
    const align = /^text-align:(left|center|right)$/.exec(attribute("style") ?? "");
    return el(token.tag, { class: align ? `align-${align[1]}` : undefined, scope: token.tag === "th" ? "col" : undefined });
  }
  return TAGS.has(token.tag) ? el(token.tag) : el("span");
}

function leaf(token, colours) {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return [el("br")];
    case "hr":
      return [el("hr")];
    case "code_inline":
      return [el("code", {}, token.content)];
    case "fence":
    case "code_block":
      return [codeBlock(token.content, token.info?.trim().split(/\s+/)[0] ?? "", colours)];
    case "image": {
      const words = token.content || "image";
      const url = token.attrGet("src");
      return [isSafe(url) ? link(url, `[image: ${words}]`) : `[image: ${words}]`];
    }
    case "inline":
      return build(token.children, colours);
    default:
      return [token.content];
  }
}

function build(tokens, colours) {
  const top = el("div");
  const stack = [top];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.nesting === 1) {
      const element = opened(token);
      // A wide table scrolls by itself, not the page.
      const outer = token.tag === "table" ? el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" }, element) : element;
      stack.at(-1).append(outer);
      stack.push(element);
    } else if (token.nesting === -1) {
      if (stack.length > 1) stack.pop();
    } else {
      stack.at(-1).append(...leaf(token, colours));
    }
  }
  return [...top.childNodes];
}

// Shows Markdown in an element, again and again while it grows: blocks whose source is the same stay as they are.
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.blocks = []; // {source, nodes}
    this.references = "";
  }

  // `growing`: more will come, so that the last block is not whole.
  show(text, growing = false) {
    if (text.length > MOST_CHARACTERS) {
      this.element.replaceChildren(el("pre", { class: "plain" }, text));
      this.blocks = [];
      return;
    }
    const environment = {};
    const tokens = parser.parse(text, environment);
    const references = JSON.stringify(environment.references ?? {});
    if (this.blocks.length === 0 || references !== this.references) this.clear(); // a link further up may have another target now
    this.references = references;
    this.update(this.split(tokens, text.split("\n")), growing);
  }

  clear() {
    this.element.replaceChildren();
    this.blocks = [];
  }

  split(tokens, lines) {
    const groups = [];
    let depth = 0;
    for (const token of tokens) {
      if (depth === 0) groups.push({ tokens: [], source: `${token.type}\n${lines.slice(...(token.map ?? [0, 0])).join("\n")}` });
      groups.at(-1).tokens.push(token);
      depth += token.nesting;
    }
    return groups;
  }

  update(groups, growing) {
    groups.forEach((group, i) => {
      const last = growing && i === groups.length - 1;
      const source = group.source + (last ? "\ngrowing" : "");
      const before = this.blocks[i];
      if (before?.source === source) return;
      const nodes = build(group.tokens, !last || group.source.length < 4000);
      if (before) {
        before.nodes[0].before(...nodes);
        before.nodes.forEach((node) => node.remove());
      } else {
        this.element.append(...nodes);
      }
      this.blocks[i] = { source, nodes };
    });
    this.blocks.splice(groups.length).forEach((block) => block.nodes.forEach((node) => node.remove()));
  }
}
