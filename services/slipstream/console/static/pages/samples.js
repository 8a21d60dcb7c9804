/** The page of stored completions: steps, filters, a table; every row is a link to its tokens. */

import { get, link } from "../api.js";
import { figure, h, seen, table, unreadable } from "../dom.js";

const COUNT = 50;
const MOST_DOWNLOADED = 100000;
const SHOWN_CHARACTERS = 120;
const TEXTS = [["group", "group"], ["source", "source"], ["text", "text contains"]];
const NUMBERS = [["first_step", "from step"], ["last_step", "to step"], ["least_reward", "reward from", "any"], ["largest_reward", "to", "any"], ["least_staleness", "age from"]];
const TICKS = [["clipped", "clipped"], ["over_age", "over age"], ["truncated", "truncated"]];
const STATES = ["trained", "filtered", "withheld", "dropped", "evaluation"];
const ORDERS = ["step", "reward", "tokens", "staleness", "largest_ratio", "advantage", "clipped", "over_age"];

export async function open(query) {
  const start = Number(query.start ?? 0);
  const shown = { descending: query.order || query.first_step ? "" : "1", ...query };
  const page = await get("samples", { ...shown, start, count: COUNT });
  const body = h("div", { id: "samples" });
  const listed = page.rows.map((row) => [row, link("completion", { run: query.run, step: row.step, group: row.group, member: row.member })]);
  body.append(
    h("p", { class: "row" }, h("strong", { id: "total" }, `${figure(page.total)} completions`), pager(query, start, page.total), downloads(shown, page.total)),
    table(columns(query, page.rows), listed, "Completions"),
  );
  return { nodes: [h("h1", {}, "Samples"), filters(query), unreadable(page.unreadable), neighbours(query), body].filter(Boolean) };
}

/** Return the columns; each component of the reward has one, if there are several. */
function columns(query, rows) {
  const components = [...new Set(rows.flatMap((row) => Object.keys(row.rewards)))];
  return [
    ["step", ([row]) => h("a", { href: link("samples", { run: query.run, first_step: row.step, last_step: row.step }), "aria-label": `Step ${row.step}` }, figure(row.step))],
    ["group", ([row]) => h("a", { href: link("samples", { run: query.run, group: row.group }) }, seen(row.group)), "left"],
    ["member", ([row, to]) => h("a", { href: to, "aria-label": `Tokens of member ${row.member} of ${row.group} at step ${row.step}` }, `#${row.member}`)],
    ["state", ([row]) => h("span", { class: { trained: "good", withheld: "bad" }[row.state] ?? "warn", title: seen(row.reason) }, row.state), "left"],
    ["reward", ([row]) => figure(row.reward, 3)],
    ...(components.length > 1 ? components.map((name) => [seen(name), ([row]) => figure(row.rewards[name], 3)]) : []),
    ["tokens", ([row]) => figure(row.tokens)],
    ["age", ([row]) => figure(row.staleness)],
    ["clipped", ([row]) => (row.clipped_low === null ? "–" : figure(row.clipped_low + row.clipped_high))],
    ["over age", ([row]) => figure(row.over_age)],
    ["largest ratio", ([row]) => figure(row.largest_ratio, 4)],
    ["advantage", ([row]) => figure(row.advantage, 3)],
    ["ended", ([row]) => row.finish_reason, "left"],
    ["text", ([row, to]) => h("a", { href: to, tabindex: -1 }, beginning(row.text)), "text"],
  ];
}

/** Return links to the step before and the step after, if one step is shown. */
function neighbours(query) {
  if (!query.first_step || query.first_step !== query.last_step) return null;
  const to = (step, words) => h("a", { href: link("samples", { ...query, start: "", first_step: step, last_step: step }) }, words);
  const step = Number(query.first_step);
  return h("nav", { class: "row", "aria-label": "Steps" }, step > 1 ? to(step - 1, `← step ${figure(step - 1)}`) : null, to(step + 1, `step ${figure(step + 1)} →`));
}

function beginning(text) {
  const line = text.slice(0, 4 * SHOWN_CHARACTERS).replaceAll(/\s+/g, " ");
  return seen(line.length > SHOWN_CHARACTERS ? `${line.slice(0, SHOWN_CHARACTERS)}…` : line) || "(empty)";
}

function filters(query) {
  const field = (name, label, kind, step) => h("label", {}, label, h("input", { name, type: kind, value: query[name] ?? "", step }));
  const choice = (name, label, values, chosen) => h("label", {}, label, h("select", { name }, values.map((value) => h("option", { value, selected: value === chosen }, value || "any"))));
  const form = h("form", { class: "filters", "aria-label": "Filters" },
    choice("state", "state", ["", ...STATES], query.state),
    NUMBERS.map(([name, label, step]) => field(name, label, "number", step)),
    TEXTS.map(([name, label]) => field(name, label, "text")),
    TICKS.map(([name, label]) => h("label", { class: "tick" }, h("input", { name, type: "checkbox", value: "1", checked: query[name] === "1" }), label)),
    choice("order", "order by", ORDERS, query.order ?? "step"),
    h("label", { class: "tick" }, h("input", { name: "descending", type: "checkbox", value: "1", checked: query.descending === "1" }), "largest first"),
    h("button", {}, "Show"), h("a", { href: link("samples", { run: query.run }) }, "Clear"));
  form.onsubmit = (event) => {
    event.preventDefault();
    const chosen = Object.fromEntries(new FormData(form));
    if (chosen.order === "step" && !chosen.descending) delete chosen.order;
    location.hash = link("samples", { run: query.run, ...chosen });
  };
  return form;
}

function pager(query, start, total) {
  const to = (first, words) => (first === null ? h("span", { class: "dim" }, words) : h("a", { href: link("samples", { ...query, start: first }) }, words));
  return h("span", { class: "row" },
    to(start > 0 ? Math.max(0, start - COUNT) : null, "← earlier"),
    h("span", { class: "dim" }, total ? `${figure(start + 1)} to ${figure(Math.min(start + COUNT, total))}` : "none"),
    to(start + COUNT < total ? start + COUNT : null, "later →"));
}

function downloads(query, total) {
  const { start, ...kept } = query;
  const of = (kind) => `/api/samples.${kind}?${new URLSearchParams(kept)}`;
  const first = total > MOST_DOWNLOADED ? `the first ${figure(MOST_DOWNLOADED)} ` : "";
  return h("span", { class: "dim" }, `Download ${first}as `, ["csv", "jsonl", "parquet"].map((kind) => [h("a", { href: of(kind), download: "" }, kind.toUpperCase()), " "]));
}
