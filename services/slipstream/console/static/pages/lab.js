/** The loss lab: the batch of a step under every loss of the catalogue. */

import { get, link, post, Problem } from "../api.js";
import { Chart } from "../charts.js";
import { shade } from "../colours.js";
import { alert, figure, h, percent, seen, table, unreadable } from "../dom.js";

const WAIT_MILLISECONDS = 1000;
const AXES = ["objective", "correction", "aggregation"];
const COURSES = {
  ratio: "Mean ratio to the rollout", clipped: "Share of clipped tokens", excluded: "Share of excluded tokens", entropy: "Entropy in nats", raised: "Change of logprobs, advantage above 0",
  lowered: "Change of logprobs, advantage below 0", kl: "KL divergence from the checkpoint", norm: "Gradient norm", stored: "Distance to the logprobs of the run",
};

export async function open({ run, step, candidates = "", objectives = "" }) {
  const [stored, own] = await Promise.all([get("samples/steps", { run }), get("lab/objectives")]);
  const trained = stored.steps.filter((each) => each.trained > 0).map((each) => each.step);
  if (!trained.length) return { nodes: [h("h1", {}, "Loss lab"), h("p", {}, "No step has stored completions yet.")] };
  const page = new LabPage(run, trained.includes(Number(step)) ? Number(step) : trained.at(-1), candidates, objectives);
  page.fill();
  return { nodes: [h("h1", {}, `Loss lab: step ${figure(page.step)}`), page.form(trained, own.objectives), unreadable(stored.unreadable), page.body].filter(Boolean), redraw: () => page.redraw(), close: () => page.close() };
}

class LabPage {
  /** `candidates`, `objectives`: names with commas between them; without candidates all losses are compared. */
  constructor(run, step, candidates, objectives) {
    Object.assign(this, { run, step, candidates, objectives, open: true, charts: [] });
    this.body = h("div", { "aria-live": "polite" }, h("p", {}, "The losses are computed on the stored batch; this takes from seconds to some minutes …"));
  }

  form(trained, own) {
    const chosen = names(this.objectives);
    const form = h("form", { class: "filters" }, h("label", {}, "step", h("input", { name: "step", type: "number", min: trained[0], max: trained.at(-1), value: this.step })),
      h("label", {}, "losses", h("input", { name: "candidates", placeholder: "all", title: "Kinds of the catalogue, such as gspo icepop; empty: all", value: names(this.candidates).join(" ") })),
      own.length ? h("fieldset", { class: "row" }, h("legend", {}, "objectives of your own"), own.map((name) => h("label", { class: "tick" }, h("input", { type: "checkbox", name: "objectives", value: name, checked: chosen.includes(name) }), seen(name)))) : null,
      h("button", {}, "Compare"));
    form.onsubmit = (event) => {
      event.preventDefault();
      const values = new FormData(form);
      location.hash = link("lab", { run: this.run, step: values.get("step"), candidates: names(values.get("candidates")).join(","), objectives: values.getAll("objectives").join(",") });
    };
    return form;
  }

  async fill() {
    try {
      const { run, step, candidates, objectives } = this;
      await post("lab", { run, step, candidates: names(candidates), objectives: names(objectives) });
      while (this.open) {
        const { begun, done, report } = await get("lab", { run, step, candidates, objectives });
        if (done) return this.show(report);
        if (!begun) throw new Problem("The comparison is no longer kept: the completions of the step were stored again, or others took its place. Compare once more.");
        await new Promise((later) => setTimeout(later, WAIT_MILLISECONDS));
      }
    } catch (error) {
      this.body.replaceChildren(alert(error));
    }
  }

  show(report) {
    const objectives = report.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => trial.axis === "objective");
    this.body.replaceChildren(...[
      h("p", { class: "panel", id: "words" }, seen(report.words)),
      h("p", { class: "dim" }, `${figure(report.tokens)} tokens of ${figure(report.completions)} completions`),
      h("h2", {}, "Gate weight against ratio"), h("div", { class: "grid" }, this.gates(objectives, "positive", "Advantage above 0"), this.gates(objectives, "negative", "Advantage below 0")),
      AXES.map((axis) => [h("h2", {}, `By ${axis}`), numbers(axis, report.trials.filter((trial) => trial.axis === axis))]),
      h("h2", {}, "Cosines between the slopes of objectives"), matrix(objectives, report.slope_cosines, "Cosines of slopes"),
      this.weights(report, objectives),
      report.refused.length ? [h("h2", {}, "Not on this batch"), h("ul", {}, report.refused.map((each) => h("li", {}, seen(`${each.axis} ${each.name}: ${each.reason}`))))] : [],
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

/** Return the names in a text, which has commas or spaces between them. */
function names(text) {
  return text.split(/[\s,]+/).filter(Boolean);
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
