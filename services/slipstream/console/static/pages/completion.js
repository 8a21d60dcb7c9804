/** One completion token by token: colours by a chosen number, all numbers of the token under the pointer. */

import { get, link, place, unpack } from "../api.js";
import { ROLES, SCALES } from "../colours.js";
import { announce, figure, h, seen, table } from "../dom.js";

const BLOCK = 300, LONGEST_BLOCK = 600;
/** Tokens of a block: it ends at a line feed after the first, or at the second. */
const MARGIN = "1200px";
/** Blocks nearer to the window than this have an element for each token; the others are plain text. */
const TURNS = 400;
/** Turns that are drawn at once; the others when a visitor comes to them. */

export async function open(query) {
  const row = await get("sample", { run: query.run, step: query.step, group: query.group, member: query.member });
  const page = new CompletionPage(query, new Completion(row));
  return { nodes: page.nodes, close: () => page.close() };
}

/** The numbers of a completion's tokens. */
class Completion {
  constructor({ lists, ...row }) {
    Object.assign(this, row);
    for (const [name, list] of Object.entries(lists)) this[name] = unpack(list);
  }

  /** Return a number that training has filled; null where there is none. */
  at(name, index) {
    return this.has(index) && this[name] !== null && Number.isFinite(this[name][index]) ? this[name][index] : null;
  }

  has(index) {
    return this.logprobs !== null && Number.isFinite(this.logprobs[index]);
  }

  ratio(index) {
    return this.has(index) ? Math.exp(Math.min(20, Math.max(-20, this.logprobs[index] - this.rollout_logprobs[index]))) : null;
  }

  role(index) {
    if (!this.mask[index]) return 0;
    if (!this.has(index)) return 5;
    if (!this.trained[index]) return 2;
    return this.sides[index] < 0 ? 3 : this.sides[index] > 0 ? 4 : 1;
  }

  /** Return [start, end, sampled, segment] of each turn: tokens of one writer in one segment. */
  turns() {
    const starts = new Set(this.segment_starts);
    const turns = [];
    let segment = -1;
    for (let index = 0; index < this.token_ids.length; index++) {
      const cut = starts.has(index);
      if (cut) segment += 1;
      const last = turns.at(-1);
      if (last && !cut && last.sampled === this.mask[index]) last.end = index + 1;
      else turns.push({ start: index, end: index + 1, sampled: this.mask[index], segment });
    }
    return turns;
  }
}

class CompletionPage {
  constructor(query, completion) {
    this.completion = completion;
    this.scale = SCALES[query.colour] ? query.colour : completion.logprobs ? "ratio" : "logprob";
    this.current = query.token === undefined ? null : Number(query.token);
    this.blocks = new Map(); // element → [start, end]
    this.observer = new IntersectionObserver((entries) => entries.forEach((entry) => this.fill(entry.target, entry.isIntersecting)), { rootMargin: MARGIN });
    this.details = h("div", { class: "panel", role: "status" });
    this.legend = h("div", { class: "legend" });
    this.tokens = h("div", { class: "tokens", tabindex: 0, role: "application", "aria-label": "Tokens; the arrow keys go from one to the next" });
    this.tokens.addEventListener("pointerover", (event) => this.point(event));
    this.tokens.addEventListener("click", (event) => this.choose(event));
    this.tokens.addEventListener("keydown", (event) => this.step(event));
    this.turns = completion.turns();
    this.before = h("button", { type: "button", class: "more", onclick: () => this.drawBefore() });
    this.after = h("button", { type: "button", class: "more", onclick: () => this.drawAfter() });
    this.end = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.drawAfter());
    this.end.observe(this.after);
    this.drawFrom(0);
    this.nodes = [this.head(query), h("div", { class: "completion" }, h("div", {}, this.bar(), this.tokens), h("div", { class: "side" }, this.details, this.facts(query)))];
    this.colour(this.scale);
    if (this.current !== null) queueMicrotask(() => this.show(this.current, true));
    else this.explain();
  }

  close() {
    this.observer.disconnect();
    this.end.disconnect();
  }

  head({ run }) {
    const { step, group, member, state, reason } = this.completion;
    const neighbour = (by, words) => h("a", { href: link("completion", { run, step, group, member: member + by }) }, words);
    return h("div", {}, h("h1", {}, "Completion ", h("span", { class: "mono" }, `${seen(group)} #${member}`), ` of step ${figure(step)}`),
      h("p", { class: "row" }, h("span", { class: state === "trained" ? "good" : "warn" }, state, reason ? `: ${seen(reason)}` : ""),
        h("a", { href: link("samples", { run, group }) }, "its group"), h("a", { href: link("samples", { run, first_step: step, last_step: step }) }, "its step"),
        h("a", { href: link("lab", { run, step }) }, "losses of its step"), member > 0 ? neighbour(-1, "← member before") : null, neighbour(1, "next member →")),
      h("h2", {}, "Prompt"), h("pre", { class: "text", tabindex: 0 }, seen(messages(this.completion.prompt))));
  }

  bar() {
    const choice = h("select", { id: "colour", onchange: () => this.colour(choice.value) }, Object.entries(SCALES).map(([name, { label }]) => h("option", { value: name, selected: name === this.scale }, label)));
    return h("div", { class: "row" }, h("h2", {}, "Tokens"), h("label", {}, "coloured by ", choice), this.legend);
  }

  /** Draw some turns, from the turn of this number on, in the place of all that are drawn. */
  drawFrom(number) {
    this.observer.disconnect();
    this.blocks.clear();
    this.first = this.last = number;
    this.tokens.replaceChildren(this.before, this.after);
    this.drawAfter();
  }

  drawBefore() {
    const first = Math.max(0, this.first - TURNS);
    this.before.after(...this.turns.slice(first, this.first).map((turn) => this.section(turn)));
    this.first = first;
    this.count();
  }

  drawAfter() {
    this.after.before(...this.turns.slice(this.last, this.last + TURNS).map((turn) => this.section(turn)));
    this.last = Math.min(this.turns.length, this.last + TURNS);
    this.count();
  }

  /** Say how many turns are not drawn. */
  count() {
    for (const [button, turns, where] of [[this.before, this.first, "before"], [this.after, this.turns.length - this.last, "after"]]) {
      button.hidden = turns === 0;
      button.textContent = `Show more of the ${figure(turns)} turns ${where} these`;
    }
  }

  section(turn) {
    const count = turn.end - turn.start;
    const versions = turn.sampled ? span(this.completion.versions.subarray(turn.start, turn.end)) : "";
    const words = `${turn.sampled ? "sampled" : "environment"}, ${figure(count)} tokens${versions && `, version ${versions}`}${turn.segment > 0 ? `, segment ${turn.segment + 1}` : ""}`;
    const section = h("section", { class: `turn ${turn.sampled ? "sampled" : ""}` }, h("h3", {}, words));
    for (const [start, end] of cut(this.completion.texts, turn.start, turn.end)) {
      const block = h("div", { class: "block" }, this.plain(start, end));
      this.blocks.set(block, [start, end]);
      this.observer.observe(block);
      section.append(block);
    }
    return section;
  }

  plain(start, end) {
    return this.completion.texts.slice(start, end).map(seen).join("");
  }

  /** Give a block an element for each token while it is near the window. */
  fill(block, near) {
    if (near === Boolean(block.dataset.filled)) return;
    const [start, end] = this.blocks.get(block);
    if (near) {
      const spans = [];
      for (let index = start; index < end; index++) spans.push(this.span(index));
      block.replaceChildren(...spans);
      block.dataset.filled = "1";
    } else {
      block.replaceChildren(this.plain(start, end));
      delete block.dataset.filled;
    }
  }

  span(index) {
    const text = this.completion.texts[index];
    const token = document.createElement("span");
    token.className = `token${text.trim() === "" ? " space" : ""}${index === this.current ? " current" : ""}`;
    token.dataset.index = index;
    token.textContent = seen(text) || "∅";
    token.style.backgroundColor = this.colourOf(index);
    return token;
  }

  colourOf(index) {
    const { of, colour } = SCALES[this.scale];
    const value = of(this.completion, index);
    return value === null ? "" : colour(value);
  }

  colour(name) {
    this.scale = name;
    for (const token of this.tokens.querySelectorAll(".token")) token.style.backgroundColor = this.colourOf(Number(token.dataset.index));
    const { legend, colour } = SCALES[name];
    this.legend.replaceChildren(...legend.map((value) => {
      const sample = h("span", {}, name === "mask" ? ROLES[value] : String(value));
      sample.style.backgroundColor = colour(value);
      return sample;
    }));
    this.remember({ colour: name });
  }

  /** Write the choice into the address without a new page, so that it can be sent to somebody. */
  remember(change) {
    const { page, query } = place();
    if (page === "completion") history.replaceState(null, "", link("completion", { ...query, ...change }));
  }

  point(event) {
    const token = event.target.closest?.(".token");
    if (token) this.numbers(Number(token.dataset.index));
  }

  choose(event) {
    const token = event.target.closest?.(".token");
    if (token) this.show(Number(token.dataset.index), false);
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 50, PageUp: -50, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const last = this.completion.token_ids.length - 1;
    this.show(Math.min(last, Math.max(0, (this.current ?? -1) + by)), true);
    announce(`${this.completion.texts[this.current]}: ${SCALES[this.scale].label} ${figure(SCALES[this.scale].of(this.completion, this.current))}`);
  }

  /** Make a token the current one; `scroll` brings it into the window. */
  show(index, scroll) {
    if (!(index >= 0 && index < this.completion.token_ids.length)) return;
    this.tokens.querySelector(".token.current")?.classList.remove("current");
    this.current = index;
    const turn = this.turns.findIndex(({ end }) => index < end);
    if (turn < this.first || turn >= this.last) this.drawFrom(Math.max(0, turn - TURNS / 2));
    const [block] = [...this.blocks].find(([, [start, end]]) => index >= start && index < end);
    this.fill(block, true);
    const token = block.querySelector(`[data-index="${index}"]`);
    token.classList.add("current");
    if (scroll) token.scrollIntoView({ block: "center" });
    this.numbers(index);
    this.remember({ token: index });
  }

  explain() {
    this.details.replaceChildren(h("p", { class: "dim" }, "Point at a token, or go from one to the next with the arrow keys."));
  }

  numbers(index) {
    const c = this.completion;
    const sampled = c.mask[index];
    const rows = [
      ["index", index], ["text", JSON.stringify(c.texts[index])], ["id", c.token_ids[index]],
      ["written by", sampled ? "policy" : "environment"], ["what became of it", ROLES[c.role(index)]],
      ...(sampled ? [["version", c.versions[index]], ["age", SCALES.staleness.of(c, index)], ["logprob, rollout", c.rollout_logprobs[index]]] : []),
      ...(c.has(index) ? [["logprob, learner", c.at("logprobs", index)], ["logprob, reference", c.at("reference_logprobs", index)], ["ratio", c.ratio(index)], ["gate weight", c.at("gates", index)],
        ["advantage", c.at("advantages", index)], ["entropy", c.at("entropies", index)]] : []),
    ];
    this.details.replaceChildren(h("table", { id: "numbers", "data-index": index }, h("caption", { class: "hidden" }, "Numbers of the token"),
      h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row", class: "left" }, name), h("td", { "data-number": name, "data-value": typeof value === "number" ? value : null }, typeof value === "string" ? seen(value) : figure(value, 6)))))));
  }

  facts({ run }) {
    const c = this.completion;
    const facts = [["reward", figure(c.reward, 4)], ["advantage", figure(c.advantage, 4)], ["tokens", figure(c.tokens)], ["sampled", figure(c.sampled)], ["versions", c.oldest_version === null ? "–" : c.oldest_version === c.newest_version ? c.oldest_version : `${c.oldest_version} to ${c.newest_version}`],
      ["age of the oldest", figure(c.staleness)], ["over age", figure(c.over_age)], ["clipped low / high", `${figure(c.clipped_low)} / ${figure(c.clipped_high)}`], ["ratios", c.smallest_ratio === null ? "–" : `${figure(c.smallest_ratio)} to ${figure(c.largest_ratio)}`],
      ["ended", c.finish_reason], ["actor", seen(c.worker)], ["rollouts", c.rollouts?.map(seen).join(", ") || figure(c.engines)], ["source", seen(c.source) || "–"]];
    return h("div", {}, h("div", { class: "panel" }, h("table", {}, h("caption", { class: "hidden" }, "Completion"), h("tbody", {}, facts.map(([name, value]) => h("tr", {}, h("th", { scope: "row", class: "left" }, name), h("td", {}, String(value ?? "–"))))))),
      h("h2", {}, "Rewards"), table([["reward", (r) => seen(r.name), "left"], ["value", (r) => figure(r.value, 4)], ["outcome", (r) => r.outcome, "left"]], c.rewards, "Rewards"),
      c.rewards.filter((r) => r.detail || r.answer).map((r) => h("pre", { class: "text", tabindex: 0 }, seen([r.name, r.answer && `answer: ${r.answer}`, r.detail].filter(Boolean).join("\n")))),
      c.answer ? [h("h2", {}, "True answer"), h("pre", { class: "text", tabindex: 0 }, seen(c.answer))] : null,
      c.leased_at !== null ? h("p", {}, h("a", { href: link("timeline", { run, group: c.group, step: c.step }) }, "Its life on the timeline")) : null);
  }
}

/** Return the ends of the blocks of a turn. */
function cut(texts, start, end) {
  const blocks = [];
  let first = start;
  for (let index = start; index < end; index++) {
    const length = index + 1 - first;
    if ((length >= BLOCK && texts[index].includes("\n")) || length >= LONGEST_BLOCK) {
      blocks.push([first, index + 1]);
      first = index + 1;
    }
  }
  return first < end ? [...blocks, [first, end]] : blocks;
}

function span(versions) {
  const oldest = versions.reduce((least, each) => Math.min(least, each), Infinity);
  const newest = versions.reduce((most, each) => Math.max(most, each), -Infinity);
  return oldest === newest ? `${oldest}` : `${oldest} to ${newest}`;
}

/** Return a prompt as text: chat messages one below the other. */
function messages(prompt) {
  if (!prompt.startsWith("[{")) return prompt;
  let parts;
  try {
    parts = JSON.parse(prompt);
  } catch {
    return prompt;
  }
  const written = (content) => (typeof content === "string" ? content : JSON.stringify(content));
  const areMessages = parts.every((part) => typeof part?.role === "string" && "content" in part);
  return areMessages ? parts.map(({ role, content }) => `${role}: ${written(content)}`).join("\n\n") : prompt;
}
