/** The colour of a token: a background that leaves its text readable, from the numbers that are stored. */

const STRONGEST = 0.5;
/** Most opaque background; text on it keeps a contrast of 4.5 in both themes. */
const HUES = { blue: [37, 99, 235], orange: [234, 88, 12], green: [5, 150, 105], red: [220, 38, 38], violet: [147, 51, 234], grey: [107, 114, 128] };
const CYCLE = ["blue", "orange", "green", "violet", "red", "grey"];

/** Return a colour of a hue, of a strength from 0 to 1; empty for none. */
export function shade(hue, strength) {
  const bounded = Math.min(1, Math.max(0, strength));
  if (!(bounded > 0)) return "";
  return `rgba(${HUES[hue].join(", ")}, ${(STRONGEST * bounded).toFixed(3)})`;
}

const bySign = (value, most, low, high) => shade(value < 0 ? low : high, Math.abs(value) / most);

/**
 * What tokens may be coloured by. `of`: the number of a token, null where it has none; `colour`: of a number;
 * `legend`: numbers that the legend shows.
 */
export const SCALES = {
  staleness: { label: "age in versions", of: (c, i) => (c.mask[i] ? Math.max(0, c.step - 1 - c.versions[i]) : null), colour: (value) => shade("orange", value / 8), legend: [0, 1, 2, 4, 8] },
  ratio: { label: "ratio of learner to rollout", of: (c, i) => c.ratio(i), colour: (value) => bySign(Math.log2(value), 1, "blue", "orange"), legend: [0.5, 0.8, 1, 1.25, 2] },
  gate: { label: "gate weight", of: (c, i) => c.at("gates", i), colour: (value) => (value === 0 ? shade("red", 1) : shade("green", value / 2)), legend: [0, 0.5, 1, 2] },
  advantage: { label: "advantage", of: (c, i) => c.at("advantages", i), colour: (value) => bySign(value, 2, "blue", "orange"), legend: [-2, -1, 0, 1, 2] },
  logprob: { label: "logprob of the rollout", of: (c, i) => (c.mask[i] ? c.rollout_logprobs[i] : null), colour: (value) => shade("violet", -value / 5), legend: [0, -1, -2.5, -5] },
  entropy: { label: "entropy in nats", of: (c, i) => c.at("entropies", i), colour: (value) => shade("violet", value / 4), legend: [0, 1, 2, 4] },
  version: { label: "version that sampled it", of: (c, i) => (c.mask[i] ? c.versions[i] : null), colour: (value) => shade(CYCLE[value % CYCLE.length], 0.7), legend: [] },
  mask: { label: "who wrote it, and what trained", of: (c, i) => c.role(i), colour: (value) => shade(["grey", "green", "red", "blue", "orange", "violet"][value], value === 1 ? 0.35 : 0.8), legend: [0, 1, 2, 3, 4, 5] },
};
export const ROLES = ["environment", "trained", "over age", "clipped low", "clipped high", "not trained"];
