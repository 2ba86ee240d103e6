// Elements, made without HTML: text is always set as text, so that nothing in it can become an element.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// el("button", {class: "button", onclick: f}, "Text", other): an attribute that is false, null or undefined is left out.
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// So that a selection stays where nothing changes.
export const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// Makes these elements the children of `parent`, in this order. Those that are there already are not made anew, nor moved if their
// order is as it was, so that focus and selections stay; the focus of one that goes is given to the nearest that stays.
export function showChildren(parent, elements) {
  const stays = new Set(elements);
  for (const child of [...parent.children]) {
    if (stays.has(child)) continue;
    if (child.contains(document.activeElement)) (buttonBeside(child, stays) ?? parent.closest("[tabindex]"))?.focus({ preventScroll: true });
    child.remove();
  }
  let at = parent.firstElementChild;
  for (const element of elements) {
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
}

function buttonBeside(child, stays) {
  for (const step of ["nextElementSibling", "previousElementSibling"]) {
    for (let other = child[step]; other; other = other[step]) {
      const button = stays.has(other) && other.querySelector("button:enabled");
      if (button) return button;
    }
  }
  return null;
}

// Paths of line icons in a square of 24.
const ICONS = {
  attention: "M12 8v5 M12 16.5v.01 M12 3 2.5 20h19z",
  back: "M18 5 8 12l10 7z M6 5v14",
  check: "M5 12.5 10 17.5 19.5 7",
  copy: "M9 9h11v11H9z M5 15H4V4h11v1",
  download: "M12 4v11 M7 10.5 12 15.5 17 10.5 M5 20h14",
  edit: "M4 20h4L19.5 8.5l-4-4L4 16z M13.5 6.5l4 4",
  menu: "M4 7h16 M4 12h16 M4 17h16",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  on: "M6 5l10 7-10 7z M18 5v14",
  pause: "M8 5v14 M16 5v14",
  play: "M7 5l12 7-12 7z",
  plus: "M12 5v14 M5 12h14",
  refresh: "M20 11A8 8 0 1 0 18.5 16.5 M20 5v6h-6",
  send: "M12 20V5 M5.5 11 12 4.5 18.5 11",
  settings: "M4 7h9 M19 7h1 M4 17h1 M11 17h9 M16 4.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5z M8 14.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5z",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8z M12 2.5v2 M12 19.5v2 M2.5 12h2 M19.5 12h2 M5.3 5.3l1.4 1.4 M17.3 17.3l1.4 1.4 M5.3 18.7l1.4-1.4 M17.3 6.7l1.4-1.4",
  trash: "M5 7h14 M10 7V4h4v3 M7 7l1 13h8l1-13",
  close: "M6 6l12 12 M18 6 6 18",
};

export const icon = (name) =>
  svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round",
    "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

// A button that shows an icon and is called by `label`.
export const iconButton = (name, label, onclick, attributes = {}) =>
  el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
