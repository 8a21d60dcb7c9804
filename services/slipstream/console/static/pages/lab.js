/** The loss lab: the batch of a step under every loss of the catalogue. */

import { get, link, post } from "../api.js";
import { Chart } from "../charts.js";
import { shade } from "../colours.js";
import { figure, h, percent, seen, table } from "../dom.js";

const WAIT_MILLISECONDS = 1000;
const AXES = ["objective", "correction", "aggregation"];
const COURSES = {
  ratio: "Mean ratio to the rollout", clipped: "Share of clipped tokens", excluded: "Share of excluded tokens", entropy: "Entropy in nats", raised: "Change of logprobs, advantage above 0",
  lowered: "Change of logprobs, advantage below 0", kl: "KL divergence from the checkpoint", norm: "Gradient norm", stored: "Distance to the logprobs of the run",
};

export async function open({ run, step }) {
  const { steps } = await get("samples/steps", { run });
  const trained = steps.filter((each) => each.trained > 0).map((each) => each.step);
  if (!trained.length) return { nodes: [h("h1", {}, "Loss lab"), h("p", {}, "No step has stored completions yet.")] };
  const page = new LabPage(run, trained.includes(Number(step)) ? Number(step) : trained.at(-1));
  page.fill();
  return { nodes: [h("h1", {}, `Loss lab: step ${figure(page.step)}`), page.form(trained), page.body], redraw: () => page.redraw(), close: () => page.close() };
}

class LabPage {
  constructor(run, step) {
    Object.assign(this, { run, step, open: true, charts: [] });
    this.body = h("div", { "aria-live": "polite" }, h("p", {}, "The losses are computed on the stored batch; this takes from seconds to some minutes …"));
  }

  form(trained) {
    const form = h("form", { class: "filters" }, h("label", {}, "step", h("input", { name: "step", type: "number", min: trained[0], max: trained.at(-1), value: this.step })), h("button", {}, "Compare"));
    form.onsubmit = (event) => {
      event.preventDefault();
      location.hash = link("lab", { run: this.run, step: new FormData(form).get("step") });
    };
    return form;
  }

  async fill() {
    try {
      await post("lab", { run: this.run, step: this.step });
      while (this.open) {
        const { done, report } = await get("lab", { run: this.run, step: this.step });
        if (done) return this.show(report);
        await new Promise((later) => setTimeout(later, WAIT_MILLISECONDS));
      }
    } catch (error) {
      this.body.replaceChildren(h("p", { class: "alarm bad", role: "alert" }, error.message));
    }
  }

  show(report) {
    const objectives = report.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => trial.axis === "objective");
    this.body.replaceChildren(...[
      h("p", { class: "panel", id: "words" }, report.words),
      h("p", { class: "dim" }, `${figure(report.tokens)} tokens of ${figure(report.completions)} completions`),
      h("h2", {}, "Gate weight against ratio"), h("div", { class: "grid" }, this.gates(objectives, "positive", "Advantage above 0"), this.gates(objectives, "negative", "Advantage below 0")),
      AXES.map((axis) => [h("h2", {}, `By ${axis}`), numbers(axis, report.trials.filter((trial) => trial.axis === axis))]),
      h("h2", {}, "Cosines between the slopes of objectives"), matrix(objectives, report.slope_cosines, "Cosines of slopes"),
      this.weights(report, objectives),
      report.refused.length ? [h("h2", {}, "Not on this batch"), h("ul", {}, report.refused.map((each) => h("li", {}, `${each.axis} ${each.name}: ${each.reason}`)))] : [],
    ].flat(3));
    for (const show of this.later ?? []) show();
  }

  chart(options, columns) {
    const chart = new Chart(options);
    this.charts.push(chart);
    this.later = [...(this.later ?? []), () => chart.show(columns)];
    return chart.node;
  }

  gates(objectives, sign, title) {
    const ratios = [...new Set(objectives.flatMap((trial) => trial.gates[sign].ratios))].sort((a, b) => a - b);
    const columns = { step: ratios };
    for (const { name, gates } of objectives) {
      const values = new Map(gates[sign].ratios.map((ratio, at) => [ratio, gates[sign].gates[at]]));
      columns[name] = ratios.map((ratio) => values.get(ratio) ?? null);
    }
    return this.chart({ title, across: "ratio", acrossLogarithmic: true, series: objectives.map(({ name }) => ({ key: name, label: name })) }, columns);
  }

  /** Return what the losses make of the weights of a checkpoint, if there is one. */
  weights({ weights, without_weights: why }, objectives) {
    if (!weights) return why ? [h("h2", {}, "On the weights"), h("p", { class: "dim" }, why)] : [];
    const rows = objectives.map((trial) => ({ ...trial, effect: weights.effects[trial.index] })).filter(({ effect }) => effect);
    return [h("h2", {}, `On the weights of version ${figure(weights.version)}`), effects(rows),
      h("h2", {}, "Cosines between the gradients of objectives"), matrix(objectives, weights.cosines, "Cosines of gradients"),
      h("h2", {}, "The next updates"), h("div", { class: "grid" }, this.courses(weights, objectives))];
  }

  courses({ courses }, objectives) {
    const followed = objectives.filter(({ index }) => courses[index] && !courses[index].problem);
    return Object.entries(COURSES).filter(([key]) => followed.some(({ index }) => courses[index][key]?.some((value) => value !== null))).map(([key, title]) => {
      const length = Math.max(...followed.map(({ index }) => courses[index][key].length));
      const columns = { step: Array.from({ length }, (_, at) => at + 1), ...Object.fromEntries(followed.map(({ name, index }) => [name, Array.from({ length }, (_, at) => courses[index][key][at] ?? null)])) };
      return this.chart({ title, across: "minibatch", series: followed.map(({ name }) => ({ key: name, label: name })) }, columns);
    });
  }

  redraw() {
    for (const chart of this.charts) chart.redraw();
  }

  close() {
    this.open = false;
    for (const chart of this.charts) chart.close();
  }
}

function numbers(axis, trials) {
  return table([
    [axis, (trial) => seen(trial.name), "left"], ["excluded", (trial) => percent(trial.excluded)], ["over age", (trial) => percent(trial.over_age)],
    ["clipped low", (trial) => percent(trial.clipped_low)], ["clipped high", (trial) => percent(trial.clipped_high)], ["effective", (trial) => percent(trial.effective)],
    ["norm", (trial) => figure(trial.norm, 3)], ["cosine", (trial) => figure(trial.cosine, 3)],
  ], trials, `Losses by ${axis}`);
}

function effects(rows) {
  const of = (key) => ({ effect }) => figure(typeof effect.step[key] === "object" ? null : effect.step[key], 3);
  const keys = Object.keys(rows[0]?.effect.step ?? {}).filter((key) => !Array.isArray(rows[0].effect.step[key]));
  return table([["objective", (row) => seen(row.name), "left"], ["gradient norm", ({ effect }) => figure(effect.norm, 3)], ...keys.map((key) => [key.replaceAll("_", " "), of(key)])], rows, "What one optimizer step of each loss changes");
}

/** Return a matrix of cosines: orange agrees, blue contradicts. */
function matrix(objectives, cosines, caption) {
  const cell = (value) => {
    const node = h("td", {}, figure(value, 2));
    if (value !== null) node.style.backgroundColor = shade(value < 0 ? "blue" : "orange", Math.abs(value));
    return node;
  };
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, h("td", {}), objectives.map(({ name }) => h("th", { scope: "col" }, seen(name))))),
    h("tbody", {}, objectives.map((one) => h("tr", {}, h("th", { scope: "row", class: "left" }, seen(one.name)), objectives.map((other) => cell(cosines[one.index][other.index])))))));
}
