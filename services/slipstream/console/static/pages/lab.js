/** The loss lab: the batch of a step under every loss of the catalogue. */

import { get, link } from "../api.js";
import { figure, h, percent, seen, table } from "../dom.js";

const WAIT_MILLISECONDS = 1000;

export async function open({ run, step }) {
  const { steps } = await get("samples/steps", { run });
  const trained = steps.filter((each) => each.trained > 0).map((each) => each.step);
  if (!trained.length) return { nodes: [h("h1", {}, "Loss lab"), h("p", {}, "No step has stored completions yet.")] };
  const chosen = trained.includes(Number(step)) ? Number(step) : trained.at(-1);
  const form = h("form", { class: "filters" }, h("label", {}, "step", h("input", { name: "step", type: "number", min: trained[0], max: trained.at(-1), value: chosen })), h("button", {}, "Compare"));
  form.onsubmit = (event) => {
    event.preventDefault();
    location.hash = link("lab", { run, step: new FormData(form).get("step") });
  };
  const body = h("div", { "aria-live": "polite" }, h("p", {}, "The losses are computed on the stored batch …"));
  const page = { open: true };
  fill(body, run, chosen, page);
  return { nodes: [h("h1", {}, `Loss lab: step ${figure(chosen)}`), form, body], close: () => { page.open = false; } };
}

async function fill(body, run, step, page) {
  try {
    while (page.open) {
      const { done, report } = await get("lab", { run, step });
      if (done) return body.replaceChildren(...show(report));
      await new Promise((later) => setTimeout(later, WAIT_MILLISECONDS));
    }
  } catch (error) {
    body.replaceChildren(h("p", { class: "alarm bad", role: "alert" }, error.message));
  }
}

function show(report) {
  const parts = [h("p", { class: "panel", id: "words" }, report.words), h("p", { class: "dim" }, `${figure(report.tokens)} tokens of ${figure(report.completions)} completions`)];
  for (const axis of ["objective", "correction", "aggregation"]) {
    parts.push(h("h2", {}, `By ${axis}`), table([
      [axis, (trial) => seen(trial.name), "left"], ["excluded", (trial) => percent(trial.excluded)], ["over age", (trial) => percent(trial.over_age)],
      ["clipped low", (trial) => percent(trial.clipped_low)], ["clipped high", (trial) => percent(trial.clipped_high)], ["effective", (trial) => percent(trial.effective)],
      ["norm", (trial) => figure(trial.norm, 3)], ["cosine", (trial) => figure(trial.cosine, 3)],
    ], report.trials.filter((trial) => trial.axis === axis), `Losses by ${axis}`));
  }
  if (report.refused.length) parts.push(h("h2", {}, "Not on this batch"), h("ul", {}, report.refused.map((each) => h("li", {}, `${each.axis} ${each.name}: ${each.reason}`))));
  return parts;
}
