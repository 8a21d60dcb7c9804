/** Pause, resume and checkpoint: acts on a running run, each asked for twice. */

import { post } from "./api.js";
import { announce, h } from "./dom.js";

const ACTS = {
  pause: { label: "Pause", asks: "No new prompts are leased. What is sampled now is finished and trained; then the learner waits. Engines and learner keep their GPUs." },
  resume: { label: "Resume", asks: "Prompts are leased again." },
  checkpoint: { label: "Checkpoint now", asks: "The learner writes a checkpoint after the step that it is in." },
};

/** Show the acts that fit the state of a run. */
export function controls(box, run, state) {
  const able = state.live !== null && !state.read_only;
  const key = `${able} ${state.live?.paused}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  if (!able) return box.replaceChildren();
  const names = state.live.paused ? ["resume", "checkpoint"] : ["pause", "checkpoint"];
  const words = h("span", { class: "dim", role: "status" });
  box.replaceChildren(h("div", { class: "row" }, names.map((name) => h("button", { type: "button", "data-act": name, onclick: () => ask(name, run, words) }, ACTS[name].label)), words));
}

function ask(name, run, words) {
  const dialog = h("dialog", { "aria-labelledby": "act" },
    h("h2", { id: "act" }, `${ACTS[name].label}: ${run}?`), h("p", {}, ACTS[name].asks),
    h("form", { method: "dialog", class: "row" }, h("button", { value: "yes", "data-act": "confirm" }, ACTS[name].label), h("button", { value: "no", autofocus: true }, "Cancel")));
  dialog.addEventListener("close", async () => {
    dialog.remove();
    if (dialog.returnValue === "yes") await act(name, run, words);
  });
  document.body.append(dialog);
  dialog.showModal();
}

async function act(name, run, words) {
  words.textContent = `${ACTS[name].label} …`;
  try {
    words.textContent = (await post("control", { run, act: name })).words;
  } catch (error) {
    words.textContent = error.message;
  }
  announce(words.textContent);
}
