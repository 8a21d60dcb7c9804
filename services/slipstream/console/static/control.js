/** Pause, resume, checkpoint and scale: acts on a running run, each asked for twice. */

import { get, post } from "./api.js";
import { announce, figure, h, seen } from "./dom.js";

const ACTS = {
  pause: { label: "Pause", asks: "No new prompts are leased. What is sampled now is finished and trained; then the learner waits. Engines and learner keep their GPUs." },
  resume: { label: "Resume", asks: "Prompts are leased again." },
  checkpoint: { label: "Checkpoint now", asks: "The learner writes a checkpoint after the step that it is in." },
};
const SCALE = "Scale rollouts";

/** Show the acts that fit the state of a run. */
export function controls(box, run, state) {
  const able = state.live !== null && !state.read_only;
  const key = `${able} ${state.live?.paused} ${state.scales}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  if (!able) return box.replaceChildren();
  const names = state.live.paused ? ["resume", "checkpoint"] : ["pause", "checkpoint"];
  const words = h("span", { class: "dim", role: "status" });
  const buttons = names.map((name) => button(name, ACTS[name].label, () => ask(name, run, words)));
  if (state.scales) buttons.push(button("scale", SCALE, () => askScale(run, words)));
  box.replaceChildren(h("div", { class: "row" }, buttons, words));
}

function button(act, label, onclick) {
  return h("button", { type: "button", "data-act": act, onclick }, label);
}

async function ask(name, run, words) {
  const { label, asks } = ACTS[name];
  if ((await confirmed(`${label}: ${seen(run)}?`, h("p", {}, asks), { yes: label })) === "yes") {
    await say(words, label, () => post("control", { run, act: name }));
  }
}

/** Ask for a pool and its number of rollouts, and set it. */
async function askScale(run, words) {
  let pools;
  try {
    ({ pools } = await get("pools"));
  } catch (error) {
    return show(words, error.message);
  }
  const form = new ScaleForm(pools);
  const answer = await confirmed(`${SCALE}: ${seen(run)}?`, form.nodes, { yes: "Scale", auto: "Let KEDA scale it" }, (dialog) => form.follow(dialog));
  if (answer === "yes") await say(words, SCALE, () => post("scale", form.order()));
  if (answer === "auto") await say(words, SCALE, () => post("scale", { pool: form.pool.name }));
}

class ScaleForm {
  constructor(pools) {
    this.pools = pools;
    this.choice = h("select", { id: "pool", onchange: () => this.update() }, pools.map(({ name }) => h("option", {}, name)));
    this.number = h("input", { id: "replicas", type: "number", min: 0, max: 10000, step: 1, required: true });
    this.words = h("p", { role: "status" });
    this.nodes = [
      h("p", {}, h("label", { for: "pool" }, "Pool "), this.choice),
      h("p", {}, h("label", { for: "replicas" }, "Rollouts "), this.number), this.words,
      h("p", {}, "A rollout that goes hands its unfinished completions to the others. New ones start their engines, which takes a while."),
    ];
  }

  get pool() {
    return this.pools[this.choice.selectedIndex];
  }

  /** Show what holds for the chosen pool, also in the buttons of the dialog. */
  follow(dialog) {
    this.yes = dialog.querySelector("[value=yes]");
    this.auto = dialog.querySelector("[value=auto]");
    this.update();
  }

  update() {
    const { desired, ready, autoscaler } = this.pool;
    this.number.value = autoscaler?.held ?? desired;
    this.yes.disabled = this.number.disabled = autoscaler !== null && autoscaler.kind !== "ScaledObject";
    this.auto.hidden = autoscaler === null || autoscaler.held === null;
    this.words.textContent = `${figure(desired)} wanted, ${figure(ready)} ready. ${owner(autoscaler)}`;
  }

  order() {
    return { pool: this.pool.name, replicas: this.number.valueAsNumber, hold: this.pool.autoscaler !== null };
  }
}

function owner(autoscaler) {
  if (autoscaler === null) return "No autoscaler changes the number.";
  const bounds = `${figure(autoscaler.minimum)} to ${figure(autoscaler.maximum)}`;
  if (autoscaler.kind !== "ScaledObject") return `A HorizontalPodAutoscaler scales the pool, ${bounds}: change its bounds in the values of the release.`;
  const held = autoscaler.held === null ? "" : ` It holds ${figure(autoscaler.held)} now.`;
  return `KEDA scales the pool, ${bounds}, and keeps the number that is set here until it may scale again.${held}`;
}

/** Return the value of the button that a visitor chooses; empty for none. `buttons`: label by value. */
function confirmed(title, body, buttons, opened = () => {}) {
  const cancel = h("button", { type: "button", autofocus: true, onclick: () => dialog.close("") }, "Cancel");
  const dialog = h("dialog", { "aria-labelledby": "act" },
    h("h2", { id: "act" }, title),
    h("form", { method: "dialog" }, body, h("div", { class: "row" }, Object.entries(buttons).map(([value, label]) => h("button", { value, formnovalidate: value !== "yes", "data-act": value === "yes" ? "confirm" : value }, label)), cancel)));
  document.body.append(dialog);
  opened(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

async function say(words, label, act) {
  words.textContent = `${label} …`;
  try {
    show(words, (await act()).words);
  } catch (error) {
    show(words, error.message);
  }
}

function show(words, text) {
  words.textContent = seen(text);
  announce(text);
}
