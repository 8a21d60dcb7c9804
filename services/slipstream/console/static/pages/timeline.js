/** The timeline of a run. */

import { h } from "../dom.js";

export async function open() {
  return { nodes: [h("h1", {}, "Timeline"), h("p", {}, "…")] };
}
