/** The timeline: what each process did, from hours to milliseconds, and the life of one group. */

import { get, link, place } from "../api.js";
import { themeColour } from "../charts.js";
import { alert, duration, figure, h, refill, seen, table, unreadable } from "../dom.js";

const ROW = 20, GAP = 14, LABEL = 190, AXIS = 24;
const MOST_BARS = 2500;
const ZOOM = 1.25, STEP = 0.2, SHORTEST = 1e-3;
const PAUSE_MILLISECONDS = 120;
const LISTED = 100;

/** What a process does: its colour of the theme, and its name. */
const WHAT = {
  wait: ["c7", "waits for a batch"], train: ["c0", "trains"], publish: ["c3", "publishes weights"], checkpoint: ["c2", "writes a checkpoint"],
  evaluate: ["c5", "evaluates"], sample: ["c0", "samples"], pause: ["c1", "paused for new weights"], place: ["c7", "waits for a place"],
  join: ["c2", "joins the fleet"], leave: ["c4", "leaves the fleet"], score: ["c2", "waits for rewards"], buffer: ["c5", "waits in the buffer"], queue: ["c7", "waits for its step"],
};

export async function open(query) {
  const page = new TimelinePage(query);
  await page.start();
  return { nodes: page.nodes, drawn: () => page.draw(), update: () => page.follow(), redraw: () => page.draw(), close: () => page.close(), lost: (error) => page.lost(error) };
}

class TimelinePage {
  constructor(query) {
    this.query = query;
    this.asked = 0; // number of the newest window: the bars of an older one are not shown
    this.loaded = null; // the window that is drawn, as text
    this.alert = h("div", {});
    this.canvas = h("canvas", { class: "lanes", tabindex: 0, role: "img", "aria-label": "Timeline; + and - zoom, the arrow keys move" });
    this.words = h("p", { class: "chart-words", role: "status" });
    this.list = h("details", {}, h("summary", {}, "The same as a table"));
    this.life = h("section", {});
    const act = (words, change) => h("button", { type: "button", onclick: change }, words);
    this.nodes = [h("h1", {}, "Timeline"), this.alert,
      h("p", { class: "row" }, act("Whole run", () => this.show(this.first, this.last)), act("Last minute", () => this.show(this.last - 60, this.last)), act("Zoom in", () => this.zoom(1 / ZOOM ** 3)), act("Zoom out", () => this.zoom(ZOOM ** 3)),
        h("span", { class: "dim" }, "wheel: zoom · drag: move · click: the group or step")),
      this.canvas, this.words, this.legend(), this.life, this.list];
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  async start() {
    const { run, group, start, end } = this.query;
    const bounds = [start, end].map((time) => Number(time) || null);
    this.isChosen = bounds.every((time) => time !== null);
    await this.load(...(this.isChosen ? bounds : [null, null]));
    if (group) await this.showLife(run, group);
  }

  close() {
    this.observer.disconnect();
    clearTimeout(this.timer);
  }

  /** Read the bars of a window, the whole run for null; return whether they are shown. */
  async load(start, end) {
    const number = ++this.asked;
    const bounds = start === null ? {} : { start, end };
    const window = await get("timeline", { run: this.query.run, most: MOST_BARS, ...bounds });
    if (number !== this.asked) return false;
    const text = JSON.stringify(window);
    if (text === this.loaded) return true; // nothing is new: the words of the bar below the pointer stay
    this.loaded = text;
    Object.assign(this, { first: window.first, last: window.last, start: window.start, end: window.end, bars: window.bars, spans: window.spans, gap: window.gap_seconds });
    this.rows = rowsOf(this.bars);
    refill(this.alert, window.unreadable, () => [unreadable(window.unreadable)].filter(Boolean));
    this.remember();
    this.tell();
    this.draw();
    return true;
  }

  /** Write the window into the address without a new page, so that a link shows the same. */
  remember() {
    const { page, query } = place();
    const isAll = this.first === null || (this.start <= this.first && this.end >= this.last);
    const bounds = isAll ? { start: null, end: null } : { start: this.start, end: this.end };
    if (page === "timeline") history.replaceState(null, "", link("timeline", { ...query, ...bounds }));
  }

  lost(error) {
    refill(this.alert, error.message, () => [alert(error)]);
  }

  /** Show a window at once with the bars that are there, and read its own soon. */
  show(start, end) {
    const middle = (start + end) / 2, half = Math.max(SHORTEST, end - start) / 2;
    this.start = middle - half;
    this.end = middle + half;
    this.loaded = null;
    this.draw();
    clearTimeout(this.timer);
    this.asked += 1;
    this.timer = setTimeout(() => this.load(this.start, this.end).catch((error) => this.lost(error)), PAUSE_MILLISECONDS);
  }

  /** Read what is new. A window that ends at the end of the run moves with it; any other one stays where it is. */
  async follow() {
    if (this.last === null) return void (await this.load(null, null));
    const atEnd = this.end >= this.last - 1e-6;
    if (!atEnd || this.query.group) return void (await this.load(this.start, this.end));
    const length = this.end - this.start;
    const all = this.start <= this.first;
    const isShown = await this.load(null, null);
    if (isShown && !all && length < this.last - this.first) this.show(this.last - length, this.last);
  }

  zoom(factor, at = (this.start + this.end) / 2) {
    this.show(at - (at - this.start) * factor, at + (this.end - at) * factor);
  }

  move(share) {
    const by = (this.end - this.start) * share;
    this.show(this.start + by, this.end + by);
  }

  wheel(event) {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.canvas.clientWidth);
    else this.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, this.time(event.offsetX));
  }

  key(event) {
    const acts = { "+": () => this.zoom(1 / ZOOM), "=": () => this.zoom(1 / ZOOM), "-": () => this.zoom(ZOOM), ArrowLeft: () => this.move(-STEP), ArrowRight: () => this.move(STEP), Home: () => this.show(this.first, this.last) };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  grab(event) {
    const { start, end } = this;
    const from = event.offsetX;
    this.dragged = false;
    this.canvas.setPointerCapture(event.pointerId);
    const drag = (next) => {
      if (Math.abs(next.offsetX - from) > 3) this.dragged = true;
      if (this.dragged) {
        const by = ((from - next.offsetX) / (this.canvas.clientWidth - LABEL)) * (end - start);
        this.show(start + by, end + by);
      }
    };
    this.canvas.addEventListener("pointermove", drag);
    this.canvas.addEventListener("pointerup", () => this.canvas.removeEventListener("pointermove", drag), { once: true });
  }

  time(x) {
    return this.start + ((x - LABEL) / (this.canvas.clientWidth - LABEL)) * (this.end - this.start);
  }

  at(event) {
    const row = this.rows.find((each) => event.offsetY >= each.y && event.offsetY < each.y + ROW);
    const time = this.time(event.offsetX), near = ((this.end - this.start) / this.canvas.clientWidth) * 2;
    return row?.bars.find((bar) => bar.start - near <= time && bar.end + near >= time);
  }

  point(event) {
    const bar = this.at(event);
    this.canvas.style.cursor = bar && (bar.group || bar.step) ? "pointer" : "crosshair";
    if (bar) this.words.textContent = inWords(bar, this.first);
    else this.tell();
  }

  click(event) {
    const bar = this.dragged ? null : this.at(event);
    if (!bar) return;
    const { run } = this.query;
    if (bar.group) location.hash = link("timeline", { run, group: bar.group });
    else if (bar.step) location.hash = link("samples", { run, first_step: bar.step, last_step: bar.step });
    else this.show(bar.start, bar.end);
  }

  tell() {
    if (this.first === null) {
      this.words.textContent = "This run has no timeline yet: it has not trained a step, or an older release made it.";
      return;
    }
    const merged = this.gap ? `, gaps below ${duration(this.gap)} are not shown` : "";
    this.words.textContent = `${duration(this.end - this.start)} of ${duration(this.last - this.first)}, ${figure(this.spans)} spans in ${figure(this.bars.length)} bars${merged}`;
    this.list.replaceChildren(h("summary", {}, "The same as a table"), table([
      ["process", (bar) => seen(bar.lane), "left"], ["what", (bar) => WHAT[bar.what]?.[1] ?? bar.what, "left"], ["from", (bar) => duration(bar.start - this.first)], ["for", (bar) => duration(bar.end - bar.start)],
      ["spans", (bar) => figure(bar.count)], ["step", (bar) => figure(bar.step)], ["group", (bar) => (bar.group ? h("a", { href: link("timeline", { run: this.query.run, group: bar.group }) }, seen(bar.group)) : "–"), "left"],
    ], this.bars.slice(0, LISTED), `The first ${LISTED} bars`));
  }

  async showLife(run, name) {
    const life = await get("timeline/group", { run, group: name });
    this.phases = life.phases;
    const from = life.phases[0]?.start ?? 0, to = life.phases.at(-1)?.end ?? 0;
    if (life.phases.length && !this.isChosen) this.show(from - 0.05 * (to - from), to + 0.05 * (to - from));
    this.life.replaceChildren(h("h2", {}, "The life of ", h("a", { href: link("samples", { run, group: name }) }, seen(name)), `, ${seen(life.state)} at step ${figure(life.step)}`),
      table([["process", (phase) => seen(phase.lane), "left"], ["phase", (phase) => WHAT[phase.what]?.[1] ?? phase.what, "left"], ["after", (phase) => duration(phase.start - from)], ["for", (phase) => duration(phase.end - phase.start)]], life.phases, "Phases of the group"));
  }

  legend() {
    return h("div", { class: "legend" }, Object.entries(WHAT).map(([, [colour, words]]) => {
      const mark = h("span", {}, words);
      mark.style.borderBottom = `4px solid var(--${colour})`;
      return mark;
    }));
  }

  draw() {
    if (!this.rows || !this.canvas.isConnected) return;
    const width = this.canvas.clientWidth, height = (this.rows.at(-1)?.y ?? 0) + ROW + GAP;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = width * scale;
      this.canvas.height = height * scale;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = themeColour("ground");
    context.fillRect(0, 0, width, height);
    this.drawAxis(context, width, height);
    this.rows.forEach((row, index) => this.drawRow(context, width, row, this.rows[index - 1]));
    for (const phase of this.phases ?? []) this.outline(context, width, phase);
  }

  /** Draw a frame around a phase of the group whose life is shown. */
  outline(context, width, { lane, what, start, end }) {
    const row = this.rows.find((each) => each.lane === lane && each.what === what);
    const perPixel = (width - LABEL) / (this.end - this.start);
    const from = Math.max(LABEL, LABEL + (start - this.start) * perPixel), to = Math.min(width, LABEL + (end - this.start) * perPixel);
    if (!row || to < from) return;
    context.strokeStyle = themeColour("text");
    context.lineWidth = 2;
    context.strokeRect(from, row.y + 1, Math.max(2, to - from), ROW - 2);
  }

  drawAxis(context, width, height) {
    context.font = "12px system-ui, sans-serif";
    const perPixel = (width - LABEL) / (this.end - this.start);
    for (const [time, words] of ticks(this.start, this.end, this.first)) {
      const x = LABEL + (time - this.start) * perPixel;
      context.fillStyle = themeColour("line");
      context.fillRect(x, AXIS, 1, height);
      context.fillStyle = themeColour("dim");
      context.fillText(words, x + 3, 15);
    }
  }

  drawRow(context, width, row, before) {
    const perPixel = (width - LABEL) / (this.end - this.start);
    const [colour, words] = WHAT[row.what] ?? ["c7", row.what];
    if (row.lane !== before?.lane) {
      context.fillStyle = themeColour("line");
      context.fillRect(0, row.y - GAP / 2, width, 1);
    }
    context.fillStyle = themeColour("text");
    context.font = `${row.lane === before?.lane ? "" : "600 "}12px system-ui, sans-serif`;
    if (row.lane !== before?.lane) context.fillText(seen(row.lane).slice(0, 12), 8, row.y + 14);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = themeColour("dim");
    context.fillText(words, 82, row.y + 14, LABEL - 88);
    const shade = themeColour(colour), failed = themeColour("bad");
    for (const bar of row.bars) {
      const from = Math.max(LABEL, LABEL + (bar.start - this.start) * perPixel), to = Math.min(width, LABEL + (bar.end - this.start) * perPixel);
      if (to < LABEL || from > width) continue;
      context.globalAlpha = 0.3 + 0.7 * Math.min(1, bar.seconds / Math.max(1e-9, bar.end - bar.start) / row.most);
      context.fillStyle = bar.failed ? failed : shade;
      context.fillRect(from, row.y + 2, Math.max(1, to - from), ROW - 4);
    }
    context.globalAlpha = 1;
  }
}

/** Return a row for each lane and each thing that it does: the learner first, then replay, rollouts, actors. */
function rowsOf(bars) {
  const rank = (lane) => ["learner", "replay"].indexOf(lane) + 1 || (lane.startsWith("rollout") ? 3 : 4);
  const order = Object.keys(WHAT);
  const rows = new Map();
  for (const bar of bars) {
    const key = `${bar.lane}\n${bar.what}`;
    if (!rows.has(key)) rows.set(key, { lane: bar.lane, what: bar.what, bars: [] });
    rows.get(key).bars.push(bar);
  }
  const sorted = [...rows.values()].sort((a, b) => rank(a.lane) - rank(b.lane) || a.lane.localeCompare(b.lane, "en", { numeric: true }) || order.indexOf(a.what) - order.indexOf(b.what));
  let y = AXIS + 6, lane = null;
  for (const row of sorted) {
    y += lane === null ? 0 : row.lane === lane ? ROW : ROW + GAP;
    lane = row.lane;
    row.y = y;
    row.most = Math.max(1, ...row.bars.map((bar) => bar.seconds / Math.max(1e-9, bar.end - bar.start)));
  }
  return sorted;
}

/** Return [time, words] of round times since the start of the run. */
function ticks(start, end, first) {
  const least = (end - start) / 9;
  const units = [...[-4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const unit = units.find((each) => each >= least) ?? 86400 * Math.ceil(least / 86400);
  const result = [];
  for (let time = first + Math.ceil((start - first) / unit) * unit; time <= end; time += unit) result.push([time, unit < 1 ? `${(time - first).toFixed(Math.ceil(-Math.log10(unit)))} s` : clock(time - first)]);
  return result;
}

function clock(seconds) {
  const whole = Math.round(Math.abs(seconds)), pad = (value) => String(value).padStart(2, "0");
  const words = whole < 3600 ? `${Math.floor(whole / 60)}:${pad(whole % 60)}` : `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
  return seconds < 0 ? `−${words}` : words;
}

function inWords(bar, first) {
  const what = WHAT[bar.what]?.[1] ?? bar.what;
  const many = bar.count > 1 ? `, ${figure(bar.count)} spans, ${figure(bar.seconds / Math.max(1e-9, bar.end - bar.start), 3)} at a time` : "";
  const of = [bar.step && `step ${figure(bar.step)}`, bar.group && `group ${seen(bar.group)}`, bar.failed && "failed"].filter(Boolean).join(", ");
  return `${seen(bar.lane)} ${what} for ${duration(bar.end - bar.start)} from ${duration(bar.start - first)}${many}${of && ` (${of})`}`;
}
