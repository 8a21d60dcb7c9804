/** The circle as a picture: who has how many groups, what moves and what waits. */

import { duration, figure, h, s } from "./dom.js";

const BOXES = { replay: [30, 120], actors: [300, 20], rollouts: [570, 220], verifier: [570, 20], learner: [300, 220] };
const WIDTH = 200, HEIGHT = 70;

/** Return the picture, and what the run waits for in words. */
export function circle(state) {
  const parts = describe(state);
  const picture = s("svg", { class: "circle", viewBox: "0 0 800 310", role: "img", "aria-label": parts.words });
  const arrow = s("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" });
  const head = s("path", { d: "M0 0 L10 5 L0 10", fill: "none" });
  arrow.append(head);
  picture.append(s("defs", {}, arrow));
  for (const { path, moves, words, at } of parts.arrows) {
    picture.append(s("path", { d: path, "marker-end": "url(#arrow)", class: moves ? "moves" : "" }));
    const label = s("text", { x: at[0], y: at[1], class: "small", "text-anchor": at[2] ?? "middle" });
    label.textContent = words;
    picture.append(label);
  }
  for (const [name, [x, y]] of Object.entries(BOXES)) picture.append(box(x, y, parts.boxes[name]));
  return [picture, h("p", { class: "chart-words" }, parts.words)];
}

function box(x, y, { title, lines, state }) {
  const group = s("g", { class: state }, s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 9 }));
  [title, ...lines].forEach((words, index) => {
    const text = s("text", { x: x + 12, y: y + 21 + 18 * index, class: index ? "small" : "", "font-weight": index ? 400 : 600 });
    text.textContent = words;
    group.append(text);
  });
  return group;
}

function describe({ live, last, state, config, step }) {
  const ledger = live?.ledger;
  const running = ledger?.running ?? 0, buffered = ledger?.buffered ?? 0, flight = ledger?.in_flight ?? 0;
  const needed = config?.groups_per_step;
  const places = live?.rollouts.reduce((sum, each) => sum + each.places, 0) ?? 0;
  const sampled = live?.rollouts.reduce((sum, each) => sum + each.groups_running, 0) ?? 0;
  const paused = live?.rollouts.filter((each) => !each.serving).length ?? 0;
  const rate = live?.rollouts.reduce((sum, each) => sum + (each.tokens_per_second ?? 0), 0) ?? 0;
  const actors = live?.workers.filter((each) => each.kind === "actor") ?? [];
  const training = flight > 0;
  const waits = [];
  if (live && !training) waits.push(`the learner waits for a batch: ${figure(buffered)} of ${figure(needed)} groups are buffered`);
  if (live && live.admission_free === 0) waits.push(`new prompts wait until the next version is served (pipeline depth ${config?.pipeline_depth})`);
  if (live && live.rollouts.length === 0) waits.push("actors wait for a rollout");
  if (paused) waits.push(`${paused} of ${live.rollouts.length} rollouts are paused while they take new weights`);
  if (live && places > 0 && sampled >= places) waits.push("groups wait for a place at a rollout");
  if (live?.paused) waits.push("admission is paused");
  const idle = live ? "" : state === "finished" || state === "stopped" ? "not running" : "no answer from replay";
  return {
    words: live ? (waits.length ? `Waiting: ${waits.join("; ")}.` : "Nothing waits.") : `The circle is ${idle}.`,
    boxes: {
      replay: { title: "replay", lines: live ? [`${figure(buffered)} groups buffered`, `${figure(live.admission_free)} may be started`] : [idle], state: live ? "busy" : "" },
      actors: { title: `actors${live ? ` (${actors.length})` : ""}`, lines: live ? [`${figure(running)} groups in work`, `oldest for ${duration(live.oldest_lease_seconds)}`] : [], state: running ? "busy" : live ? "waits" : "" },
      rollouts: { title: `rollouts${live ? ` (${live.rollouts.length})` : ""}`, lines: live ? [`${figure(sampled)} of ${figure(places)} places`, `${figure(rate, 3)} tokens/s`] : [], state: sampled && !paused ? "busy" : live ? "waits" : "" },
      verifier: { title: "verifier", lines: live ? ["scores the answers"] : [], state: live ? "busy" : "" },
      learner: { title: "learner", lines: [`version ${figure(last.version ?? step)}`, live ? (training ? `trains on ${figure(flight)} groups` : "waits for a batch") : ""], state: training ? "busy" : live ? "waits" : "" },
    },
    arrows: [
      { path: "M 130 118 C 140 60, 220 45, 296 48", moves: running, words: "leases", at: [185, 56, "end"] },
      { path: "M 502 42 L 566 42", moves: running, words: "answers", at: [534, 35] },
      { path: "M 568 66 L 504 66", moves: running, words: "rewards", at: [534, 82] },
      { path: "M 420 88 C 440 160, 500 190, 600 216", moves: sampled, words: "token ids", at: [420, 160, "end"] },
      { path: "M 640 218 C 620 160, 520 130, 460 90", moves: sampled, words: "sampled tokens", at: [590, 150, "start"] },
      { path: "M 330 88 C 310 130, 280 148, 234 150", moves: running, words: "scored groups", at: [300, 140, "start"] },
      { path: "M 130 190 C 150 245, 220 255, 296 255", moves: training, words: "batches", at: [185, 262, "end"] },
      { path: "M 502 255 L 566 255", moves: paused, words: "weights", at: [534, 247] },
    ],
  };
}
