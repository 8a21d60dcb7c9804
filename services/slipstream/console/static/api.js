/** Requests to the console, and the address of the page that is shown: #/PAGE?run=NAME&… */

export class Problem extends Error {}

/** Return the JSON of an endpoint. Errors: Problem with a message for the reader. */
export async function get(path, query = {}) {
  return answer(await reach(`/api/${path}?${new URLSearchParams(query)}`));
}

/** Ask for an act, with the header that another site cannot send. Errors: Problem. */
export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-slipstream": "console" };
  return answer(await reach(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch {
    throw new Problem("The console does not answer. It ends with `slipstream run`; `slipstream console RUN_DIR` starts it again.");
  }
}

async function answer(response) {
  if (response.status === 401) location.reload();
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Problem(`The console answered with status ${response.status}.`);
  }
  if (!response.ok) throw new Problem(body.error ?? detail(body) ?? `status ${response.status}`);
  return body;
}

function detail(body) {
  return Array.isArray(body.detail) ? body.detail.map((each) => `${each.loc.at(-1)}: ${each.msg}`).join("; ") : body.detail;
}

/** Return page and query of the address. */
export function place() {
  const [path, query] = location.hash.slice(2).split("?");
  return { page: path || "run", query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** Return the address of a page; empty values are left out. */
export function link(page, query) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return `#/${page}?${new URLSearchParams(kept.map(([name, value]) => [name, value === true ? "1" : value]))}`;
}

/** Return the numbers of a packed list; null if the completion has none. */
export function unpack(list) {
  if (list === null || list === undefined) return null;
  const bytes = Uint8Array.from(atob(list.data), (character) => character.charCodeAt(0));
  const kinds = { float32: Float32Array, int32: Int32Array, int8: Int8Array, uint8: Uint8Array };
  return new kinds[list.dtype](bytes.buffer);
}
