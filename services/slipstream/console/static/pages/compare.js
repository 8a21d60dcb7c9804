/** Several runs in the same charts. */

import { get, link } from "../api.js";
import { Chart } from "../charts.js";
import { figure, h, percent, seen, table } from "../dom.js";

const KEYS = ["reward_mean", "staleness_mean", "clip_fraction_low", "clip_fraction_high", "kl_rollout", "token_entropy", "tokens_per_second", "idle_fraction", "gradient_norm", "response_tokens_mean"];

export async function open({ run, runs = "", key = "" }) {
  const { runs: all } = await get("runs");
  const chosen = [...new Set([run, ...runs.split(",").filter((name) => all.includes(name))])];
  const states = await Promise.all(chosen.map((name) => get("run", { run: name })));
  const common = [...new Set(states.flatMap((state) => state.keys))].sort();
  const keys = [...KEYS, ...key.split(",")].filter((name, index, list) => common.includes(name) && list.indexOf(name) === index);
  const charts = keys.map((name) => new Chart({ title: name, series: chosen.map((each) => ({ key: each, label: each })) }));
  const series = await Promise.all(chosen.map((name) => get("series", { run: name, keys: keys.join(",") })));
  keys.forEach((name, index) => charts[index].show(aligned(name, chosen, series)));
  const go = (change) => { location.hash = link("compare", { run, runs, key, ...change }); };
  const picker = h("fieldset", { class: "panel row" }, h("legend", {}, "Runs"), all.map((name) => h("label", { class: "tick" }, h("input", { type: "checkbox", value: name, checked: chosen.includes(name), disabled: name === run, onchange: (event) => go({ runs: (event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name)).slice(1).join(",") }) }), ` ${seen(name)}`)));
  const more = h("select", { "aria-label": "Add a chart of any metric", onchange: () => go({ key: [...key.split(","), more.value].filter(Boolean).join(",") }) }, h("option", {}, "Add a chart …"), common.filter((name) => !keys.includes(name)).map((name) => h("option", { value: name }, seen(name))));
  return {
    nodes: [h("h1", {}, "Compare runs"), picker, results(states), h("h2", {}, "Curves"), h("div", { class: "grid" }, charts.map((chart) => chart.node)), h("p", {}, more)],
    redraw: () => charts.forEach((chart) => chart.redraw()),
    close: () => charts.forEach((chart) => chart.close()),
  };
}

/** Return one metric of all runs over the steps of all of them. */
function aligned(key, names, series) {
  const steps = [...new Set(series.flatMap((columns) => columns.step))].sort((a, b) => a - b);
  const columns = names.map((name, index) => {
    const values = new Map(series[index].step.map((step, at) => [step, series[index][key]?.[at] ?? null]));
    return [name, steps.map((step) => values.get(step) ?? null)];
  });
  return { step: steps, ...Object.fromEntries(columns) };
}

function results(states) {
  const accuracy = (state) => state.evaluations.findLast((each) => each.accuracy !== null)?.accuracy;
  return table([
    ["run", (state) => h("a", { href: link("run", { run: state.name }) }, seen(state.name)), "left"],
    ["state", (state) => seen(state.words), "left"], ["step", (state) => figure(state.step)],
    ["algorithm", (state) => seen(state.config?.algorithm ?? "–"), "left"],
    ["reward", (state) => figure(state.last.reward_mean, 3)], ["held-out accuracy", (state) => figure(accuracy(state), 3)],
    ["staleness", (state) => figure(state.last.staleness_mean, 3)], ["learner waits", (state) => percent(state.last.idle_fraction)],
    ["tokens/s", (state) => figure(state.last.tokens_per_second, 3)],
  ], states, "Runs");
}
