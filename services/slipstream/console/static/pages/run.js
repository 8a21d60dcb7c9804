/** The page of a run: its state, its charts, the circle, its workers, the ledger. */

import { get, link } from "../api.js";
import { Chart } from "../charts.js";
import { circle } from "../circle.js";
import { alert, duration, figure, h, percent, refill, seen, table } from "../dom.js";
import { controls } from "../control.js";

const AGES = ["0", "1", "2", "3-4", "5-8", ">8"];

/** The charts of every run; a key that the run has not is left out. */
export const CHARTS = [
  { title: "Reward and held-out accuracy", series: [{ key: "reward_mean", label: "reward" }, { key: "held_out", label: "held-out accuracy", points: true }] },
  { title: "Staleness of trained tokens (share by age in versions)", unit: " %", stacked: true, series: AGES.map((age) => ({ key: `staleness_share.${age}`, label: `age ${age}`, scale: 100 })) },
  { title: "Clip fractions", unit: " %", series: [{ key: "clip_fraction_low", label: "low", scale: 100 }, { key: "clip_fraction_high", label: "high", scale: 100 }] },
  { title: "Ratio of learner to rollout", logarithmic: true, series: [...["p1", "p10", "p50", "p90", "p99"].map((name) => ({ key: `${name}_ratio`, label: name })), { key: "max_ratio", label: "largest" }, { key: "mean_ratio", label: "mean" }] },
  { title: "KL divergence", series: [{ key: "kl_rollout", label: "to the rollout policy" }, { key: "kl_reference", label: "to the reference" }] },
  { title: "Entropy", unit: " nats", series: [{ key: "token_entropy", label: "of a token" }] },
  { title: "Throughput", unit: " tokens/s", series: [{ key: "tokens_per_second", label: "trained" }] },
  { title: "The learner's time in a step", unit: " s", stacked: true, series: [{ key: "train_seconds", label: "train" }, { key: "wait_seconds", label: "wait for a batch" }, { key: "publish_seconds", label: "publish" }, { key: "checkpoint_seconds", label: "checkpoint" }] },
  { title: "Gradient norm", series: [{ key: "gradient_norm", label: "before clipping" }] },
  { title: "Tokens without effect", unit: " %", series: [{ key: "over_age_fraction", label: "over age", scale: 100 }, { key: "zero_gradient_fraction", label: "zero gradient", scale: 100 }] },
  { title: "Answers", unit: " tokens", series: [{ key: "response_tokens_mean", label: "mean length" }] },
  { title: "Truncated, withheld", series: [{ key: "truncated_fraction", label: "truncated share" }, { key: "completions_withheld", label: "withheld completions" }] },
];
const KEYS = [...new Set(CHARTS.flatMap(({ series }) => series.map(({ key }) => key)))].filter((key) => !key.startsWith("staleness_share.") && key !== "held_out");

export async function open({ run }) {
  const page = new RunPage(run);
  await page.update();
  return { nodes: page.nodes, update: () => page.update(), redraw: () => page.redraw(), close: () => page.close(), lost: (error) => page.lost(error) };
}

class RunPage {
  constructor(run) {
    this.run = run;
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.more = [];
    this.head = h("section", { "aria-label": "State" });
    this.alarms = h("section", { "aria-label": "Alarms" });
    this.circle = h("section", { class: "panel", "aria-label": "The circle" });
    this.workers = h("section", {});
    this.ledger = h("section", {});
    this.choice = h("select", { "aria-label": "Add a chart of any metric", onchange: () => this.add(this.choice.value) });
    this.grid = h("div", { class: "grid" }, this.charts.map((chart) => chart.node));
    this.control = h("div", { class: "controls" });
    this.downloads = h("p", { class: "dim" }, "Metrics: ", file("metrics.csv", run, "CSV"), " · ", file("metrics.jsonl", run, "JSON lines"));
    this.nodes = [this.head, this.control, this.alarms, this.circle, h("h2", {}, "Curves"), this.grid, h("p", { class: "row" }, this.choice), this.downloads, this.workers, this.ledger];
    this.rows = -1;
  }

  async update() {
    const state = await get("run", { run: this.run });
    if (state.rows !== this.rows) await this.updateCharts(state);
    const { live, alarms, summary, ...rest } = state;
    const counts = live?.ledger ?? summary?.ledger;
    refill(this.head, rest, () => head(state, this.run));
    refill(this.alarms, alarms, () => alarms.map(alarm));
    this.circle.hidden = !live && ["finished", "stopped"].includes(state.state);
    refill(this.circle, [live, rest], () => circle(state));
    refill(this.workers, live, () => workers(live));
    refill(this.ledger, counts, () => ledger(counts));
    controls(this.control, this.run, state);
  }

  async updateCharts(state) {
    const rewards = state.keys.filter((key) => key.startsWith("rewards."));
    const ages = state.keys.filter((key) => key.startsWith("staleness_histogram."));
    this.addRewards(rewards);
    const keys = [...KEYS, ...rewards, ...ages, ...this.more.map((chart) => chart.series[0].key)].filter((key) => state.keys.includes(key));
    const columns = await get("series", { run: this.run, keys: [...new Set(keys)].join(",") });
    addShares(columns, ages);
    const accuracy = new Map(state.evaluations.map((each) => [each.step, each.accuracy]));
    const merged = withSteps(columns, [...accuracy.keys()]);
    merged.held_out = merged.step.map((step) => accuracy.get(step) ?? null);
    for (const chart of [...this.charts, ...this.more]) chart.show(chart.series.some(({ key }) => key === "held_out") ? merged : columns);
    const shown = new Set([...this.charts, ...this.more].flatMap((chart) => chart.series.map(({ key }) => key)));
    const others = state.keys.filter((key) => !shown.has(key));
    refill(this.choice, others, () => [h("option", { value: "" }, "Add a chart …"), ...others.map((key) => h("option", { value: key }, seen(key)))]);
    this.rows = state.rows;
  }

  addRewards(keys) {
    if (this.rewards || keys.length < 2) return;
    this.rewards = new Chart({ title: "Components of the reward", series: keys.map((key) => ({ key, label: key.slice("rewards.".length) })) });
    this.charts.splice(1, 0, this.rewards);
    this.charts[0].node.after(this.rewards.node);
  }

  async add(key) {
    if (!key) return;
    const chart = new Chart({ title: key, series: [{ key, label: key }] });
    this.more.push(chart);
    this.grid.append(chart.node);
    this.rows = -1;
    try {
      await this.update();
    } catch (error) {
      this.lost(error);
    }
  }

  lost(error) {
    refill(this.head, error.message, () => [alert(error)]);
  }

  redraw() {
    for (const chart of [...this.charts, ...this.more]) chart.redraw();
  }

  close() {
    for (const chart of [...this.charts, ...this.more]) chart.close();
  }
}

/** Return the columns with further steps, at which they have no value. */
function withSteps(columns, steps) {
  const all = [...new Set([...columns.step, ...steps])].sort((a, b) => a - b);
  const index = new Map(columns.step.map((step, at) => [step, at]));
  const spread = Object.entries(columns).map(([key, column]) => [key, all.map((step) => (index.has(step) ? column[index.get(step)] : null))]);
  return { ...Object.fromEntries(spread), step: all };
}

/** Add the share of each age to the columns of the histogram. */
function addShares(columns, keys) {
  const totals = columns.step.map((_, at) => keys.reduce((sum, key) => sum + (columns[key][at] ?? 0), 0));
  for (const key of keys) columns[key.replace("histogram", "share")] = columns[key].map((value, at) => (totals[at] ? value / totals[at] : null));
}

function head(state, run) {
  const { last, config } = state;
  const accuracy = state.evaluations.findLast((each) => each.accuracy !== null);
  const facts = [
    ["step", state.steps ? `${figure(state.step)} of ${figure(state.steps)}` : figure(state.step)],
    ["reward", figure(last.reward_mean, 3)],
    ["held-out accuracy", accuracy ? `${figure(accuracy.accuracy, 3)} (step ${figure(accuracy.step)})` : "–"],
    ["staleness", `${figure(last.staleness_mean, 3)}, max ${figure(last.staleness_max)}`],
    ["clipped low / high", `${percent(last.clip_fraction_low)} / ${percent(last.clip_fraction_high)}`],
    ["tokens/s", figure(last.tokens_per_second, 3)],
    ["learner waits", percent(last.idle_fraction)],
    ["rollouts", figure(last.workers)],
  ];
  const kind = { running: "good", finished: "good", stopped: "warn", starting: "dim" }[state.state];
  const left = state.seconds_left === null ? "" : `, about ${duration(state.seconds_left)} left`;
  const words = state.words + left;
  return [
    h("h1", {}, seen(run), " ", h("span", { class: kind, id: "state" }, seen(words))),
    state.steps ? h("progress", { max: state.steps, value: state.step, "aria-label": `step ${state.step} of ${state.steps}` }) : null,
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { "data-fact": name }, value)))),
    config ? h("p", { class: "dim" }, `${seen(config.algorithm ?? "own loss")}, ${config.groups_per_step} groups of ${config.group_size} a step, pipeline depth ${config.pipeline_depth}, at most ${config.max_staleness} versions old. `,
      h("a", { href: link("samples", { run, first_step: state.step, last_step: state.step }) }, "Samples of the last step"), " · ", h("a", { href: link("lab", { run, step: state.step }) }, "its losses")) : h("p", { class: "alarm" }, "The directory has no config.yaml that this release can read; the metrics are shown without it."),
    state.unreadable ? h("p", { class: "alarm" }, `${figure(state.unreadable)} lines of metrics.jsonl cannot be read and are left out.`) : null,
    state.stages.length ? h("p", {}, "Stages: ", state.stages.map((stage) => [h("a", { href: link("run", { run: `${run}/stages/${stage}` }) }, seen(stage)), " "])) : null,
  ].filter(Boolean);
}

function alarm({ severity, words, action }) {
  return h("p", { class: `alarm ${severity === "error" ? "bad" : ""}` }, h("strong", {}, `${severity}: ${seen(words)}. `), seen(action), ".");
}

function workers(live) {
  if (!live) return [];
  const rows = [
    ...live.rollouts.map((each) => ({ kind: "rollout", name: each.name, version: each.serving_version, state: each.draining ? "draining" : each.serving ? "serving" : "paused for weights",
      work: `${each.groups_running} of ${each.places} places`, rate: rate(each.tokens_per_second, "tokens/s"), cache: each.kv_cache_usage })),
    ...live.workers.filter((each) => each.kind === "actor").map((each) => ({ kind: "actor", name: each.worker_id, version: each.serving_version,
      state: each.scoring_failure ? `scores fail: ${each.scoring_failure}` : each.silent_seconds > 10 ? `silent for ${duration(each.silent_seconds)}` : "working", work: `${each.leases} groups`, rate: rate(each.throughput, "completions/s") })),
  ];
  return [h("h2", {}, "Workers"), table([
    ["worker", (row) => seen(row.name), "left"], ["kind", (row) => row.kind, "left"], ["version", (row) => figure(row.version)],
    ["state", (row) => seen(row.state), "left"], ["work", (row) => row.work], ["throughput", (row) => row.rate],
    ["key-value cache", (row) => (row.cache === undefined ? "–" : percent(row.cache))],
  ], rows, "Workers")];
}

function rate(value, unit) {
  return value === null || value === undefined ? "–" : `${figure(value, 3)} ${unit}`;
}

function ledger(counts) {
  if (!counts) return [];
  const sum = (part) => Object.values(part ?? {}).reduce((total, count) => total + count, 0);
  const reasons = (part) => Object.entries(part ?? {}).map(([name, count]) => `${seen(name)} ${figure(count)}`).join(", ") || "none";
  const residual = counts.residual ?? null;
  return [h("h2", {}, "Ledger"), h("div", { class: "panel" },
    h("p", {}, `leased ${figure(counts.leased)} = inserted ${figure(counts.inserted)} + returned ${figure(counts.returned)} + expired ${figure(counts.expired)} + running ${figure(counts.running)}`),
    h("p", {}, `inserted ${figure(counts.inserted)} = trained ${figure(counts.trained)} + filtered ${figure(sum(counts.filtered))} + dropped ${figure(sum(counts.dropped))} + buffered ${figure(counts.buffered)} + in flight ${figure(counts.in_flight)}`),
    h("p", { class: "dim" }, `filtered: ${reasons(counts.filtered)}; dropped: ${reasons(counts.dropped)}; retired prompts: ${reasons(counts.retired)}; withheld completions: ${figure(counts.withheld)}`),
    residual ? h("p", { class: "bad" }, `residual ${residual}: a group was lost or counted twice, which is a bug`) : null)];
}

function file(name, run, words) {
  return h("a", { href: `/api/${name}?${new URLSearchParams({ run })}`, download: "" }, words);
}
