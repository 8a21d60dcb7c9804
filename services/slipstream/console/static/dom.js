/** Elements and texts. A text of a run becomes a text node, never markup. */

/** Return an element. `properties`: attributes, `class`, `on…` listeners; children are nodes or texts. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return an element of SVG. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Characters that steer a terminal or the direction of text, or that nobody sees: shown as escapes. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Return a text with its unseen characters as escapes. */
export function seen(text) {
  return text.replace(UNSEEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

/** Return a number as a reader wants it; a dash for none. */
export function figure(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

/** Return a share in percent. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${figure(100 * value, 3)} %`;
}

/** Return seconds in words. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${figure(1000 * seconds, 3)} ms`;
  if (seconds < 90) return `${figure(seconds, 3)} s`;
  if (seconds < 5400) return `${figure(seconds / 60, 3)} min`;
  return seconds < 172800 ? `${figure(seconds / 3600, 3)} h` : `${figure(seconds / 86400, 3)} days`;
}

/** Return a table. `columns`: [title, cell of a row, class]; a cell is a node or a text. */
export function table(columns, rows, caption) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind ?? "", scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind ?? "" }, cell(row))))))));
}

const drawn = new WeakMap(); // element → the data that it was drawn from, as JSON
const FOCUSED = "a, button, select, input, [tabindex]";

/** Draw the content of an element anew if its data has changed. The focus and scroll positions are kept. */
export function refill(element, data, draw) {
  const key = JSON.stringify(data) ?? "";
  if (drawn.get(element) === key) return;
  drawn.set(element, key);
  const all = (selector) => [...element.querySelectorAll(selector)];
  const focused = all(FOCUSED).indexOf(document.activeElement);
  const scrolled = all(".scroll").map((each) => [each.scrollLeft, each.scrollTop]);
  element.replaceChildren(...draw());
  if (focused >= 0) all(FOCUSED)[focused]?.focus({ preventScroll: true });
  all(".scroll").forEach((each, index) => each.scrollTo(...(scrolled[index] ?? [0, 0])));
}

/** Return an error as a message that a screen reader says at once. */
export function alert(error) {
  return h("p", { class: "alarm bad lines", role: "alert" }, seen(error.message));
}

/** Return a note on files of completions that cannot be read; null for none. */
export function unreadable(files) {
  if (files.length === 0) return null;
  return h("p", { class: "alarm", "data-note": "unreadable" }, `Left out, because they cannot be read: ${files.map(seen).join(", ")} in the folder samples of the run.`);
}

/** Say a text to a screen reader. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
