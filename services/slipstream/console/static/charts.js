/** Charts over steps, drawn by uPlot. Every chart says its numbers in words below the picture. */

import { figure, h, seen } from "./dom.js";

const HEIGHT = 210;

/** Return a colour of the theme. */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * A chart. `series`: [{key, label, scale = 1, points}] over the columns of /api/series; `stacked`: areas on top of
 * each other; `logarithmic`; `unit` is written after each number; `across` names what is in the column `step`.
 */
export class Chart {
  constructor({ title, series, stacked = false, logarithmic = false, unit = "", across = "step", acrossLogarithmic = false }) {
    Object.assign(this, { title: seen(title), series: series.map((each) => ({ ...each, label: seen(each.label) })), stacked, logarithmic, unit, across, acrossLogarithmic });
    this.plot = null;
    this.columns = null;
    this.box = h("div", { "aria-hidden": "true" });
    this.words = h("p", { class: "chart-words" });
    const save = h("button", { type: "button", onclick: () => this.save(), "aria-label": `Save the chart ${this.title} as PNG` }, "PNG");
    const keys = series.map((each) => each.key).join(",");
    const vector = h("button", { type: "button", onclick: () => this.saveVector(), "aria-label": `Save the chart ${this.title} as SVG` }, "SVG");
    this.node = h("figure", { class: "panel", "data-chart": keys }, h("figcaption", {}, this.title, h("span", {}, save, " ", vector)), this.box, this.words);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
  }

  /** Show these columns; keys without a value are left out. */
  show(columns) {
    this.columns = columns;
    const present = this.series.filter(({ key }) => columns[key]?.some((value) => value !== null));
    this.node.hidden = present.length === 0;
    if (present.length === 0) return;
    const values = present.map(({ key, scale = 1 }) => columns[key].map((value) => (value === null ? null : value * scale)));
    this.words.textContent = present.map((each, index) => this.inWords(each, values[index])).join(" · ");
    const heights = this.stacked ? stack(values) : values;
    const data = [columns.step, ...heights];
    const shape = present.map(({ key }) => key).join();
    if (this.plot && this.shape === shape) this.plot.setData(data);
    else this.draw(data, present, values, shape);
  }

  /** Draw again, in the colours of the theme. */
  redraw() {
    this.plot?.destroy();
    this.plot = null;
    if (this.columns) this.show(this.columns);
  }

  close() {
    this.observer.disconnect();
    this.plot?.destroy();
  }

  inWords({ label }, values) {
    const present = values.filter((value) => value !== null);
    const last = present.at(-1);
    return `${label} ${figure(last, 3)}${this.unit} (${figure(Math.min(...present), 3)} to ${figure(Math.max(...present), 3)})`;
  }

  draw(data, present, values, shape) {
    this.plot?.destroy();
    this.shape = shape;
    this.shown = values;
    const line = themeColour("line"), dim = themeColour("dim");
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const lines = present.map(({ key, label, points }, index) => {
      const colour = themeColour(`c${index % 8}`);
      const only = points || data[0].length < 2;
      return {
        label, stroke: colour, width: points ? 0 : 1.7, spanGaps: true,
        fill: this.stacked ? `${colour}${this.stacked ? "55" : ""}` : undefined,
        points: { show: only || undefined, size: points ? 8 : 5, fill: colour },
        value: (_, value, at, position) => (position === null || position === undefined ? "" : `${figure(this.raw(key, position), 4)}${this.unit}`),
      };
    });
    const scale = this.logarithmic ? { distr: 3 } : { range: this.stacked ? (_, __, top) => [0, top || 1] : around };
    this.plot = new uPlot({
      width: Math.max(260, this.box.clientWidth), height: HEIGHT,
      scales: { x: this.acrossLogarithmic ? { time: false, distr: 3, log: 2 } : { time: false }, y: scale },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (tick !== null && (this.acrossLogarithmic || Number.isInteger(tick)) ? figure(tick, 3) : "")) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick, 3))) }],
      series: [{ label: this.across, value: (_, value) => (value === null ? "" : figure(value, 4)) }, ...lines],
      bands: this.stacked ? present.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : undefined,
      cursor: { sync: { key: this.across }, drag: { x: true, y: false } },
    }, data, this.box);
  }

  /** Return the number of a key at an index, before it is stacked. */
  raw(key, index) {
    const { scale = 1 } = this.series.find((each) => each.key === key);
    const value = this.columns[key][index];
    return value === null ? null : value * scale;
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  save() {
    const source = this.plot.ctx.canvas;
    const canvas = h("canvas", { width: source.width, height: source.height });
    const context = canvas.getContext("2d");
    context.fillStyle = themeColour("ground");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(source, 0, 0);
    canvas.toBlob((blob) => download(blob, `${this.fileName()}.png`));
  }

  saveVector() {
    download(new Blob([this.vector()], { type: "image/svg+xml" }), `${this.fileName()}.svg`);
  }

  fileName() {
    return this.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");
  }

  /** Return the chart as an SVG document. */
  vector() {
    const width = 800, height = 400, left = 70, bottom = 360, top = 40, right = 780;
    const { x, y } = this.plot.scales;
    const log = this.logarithmic ? Math.log10 : (value) => value;
    const across = (value) => left + ((value - x.min) / (x.max - x.min || 1)) * (right - left);
    const up = (value) => bottom - ((log(value) - log(y.min)) / (log(y.max) - log(y.min) || 1)) * (bottom - top);
    const parts = [`<text x="${left}" y="24" font-size="16" font-weight="bold">${escaped(this.title)}</text>`];
    for (const value of this.plot.axes[1]._splits ?? []) {
      if (value !== null && value >= y.min && value <= y.max) parts.push(`<line x1="${left}" x2="${right}" y1="${up(value)}" y2="${up(value)}" stroke="#ddd"/><text x="${left - 8}" y="${up(value) + 4}" text-anchor="end">${figure(value, 3)}</text>`);
    }
    for (const value of this.plot.axes[0]._splits ?? []) {
      if (value !== null && value >= x.min && value <= x.max) parts.push(`<text x="${across(value)}" y="${bottom + 20}" text-anchor="middle">${figure(value)}</text>`);
    }
    const apart = Math.min(150, (right - left) / (this.plot.series.length - 1));
    this.plot.series.slice(1).forEach((series, index) => {
      const points = this.plot.data[0].map((step, at) => [step, this.plot.data[index + 1][at]]).filter(([, value]) => value !== null && value !== undefined);
      const path = points.map(([step, value]) => `${across(step).toFixed(2)},${up(value).toFixed(2)}`).join(" ");
      const colour = themeColour(`c${index % 8}`);
      parts.push(`<polyline fill="none" stroke="${colour}" stroke-width="1.8" points="${path}"/>`);
      parts.push(`<text x="${left + 8 + index * apart}" y="${bottom + 36}" fill="${colour}">${escaped(series.label)}</text>`);
    });
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">${parts.join("")}</svg>`;
  }
}

/** Return the ends of an axis with a margin; of equal numbers, ends at which they can be seen. */
function around(_, lowest, highest) {
  if (lowest === highest) return lowest === 0 ? [0, 1] : [lowest - Math.abs(lowest) / 2, highest + Math.abs(highest) / 2];
  const margin = 0.05 * (highest - lowest);
  return [lowest >= 0 ? Math.max(0, lowest - margin) : lowest - margin, highest + margin];
}

/** Return each series on top of those before it. */
function stack(values) {
  const sums = values[0].map(() => 0);
  return values.map((column) => column.map((value, index) => (sums[index] += value ?? 0)));
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

/** Let the browser save a file. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

