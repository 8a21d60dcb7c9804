/** The frame of the console: which page is shown, of which run, and when it is read again. */

import { get, link, place, Problem } from "./api.js";
import { announce, h, seen } from "./dom.js";
import * as compare from "./pages/compare.js";
import * as completion from "./pages/completion.js";
import * as lab from "./pages/lab.js";
import * as run from "./pages/run.js";
import * as samples from "./pages/samples.js";
import * as timeline from "./pages/timeline.js";

const PAGES = { run, samples, completion, timeline, lab, compare };
const TITLES = { run: "Run", samples: "Samples", timeline: "Timeline", lab: "Loss lab", compare: "Compare" };
const LIVE_MILLISECONDS = 2000;

const main = document.getElementById("main");
const choice = document.getElementById("run");
let shown = null; // {page, run, update, close}
let following = 0; // number of the newest navigation: an older one that answers late shows nothing

function choose(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  localStorage.setItem("theme", theme);
}

function problem(error) {
  const words = error instanceof Problem ? error.message : `The page failed: ${error.message}`;
  if (!(error instanceof Problem)) console.error(error);
  main.replaceChildren(h("section", { class: "problem", role: "alert" }, h("h1", {}, "This cannot be shown"), h("p", { class: "lines" }, seen(words))));
}

async function show() {
  const number = ++following;
  const { page, query } = place();
  const name = PAGES[page] ? page : "run";
  try {
    const { first, runs } = await get("runs");
    const current = query.run || first;
    if (number !== following) return;
    frame(name, current, runs);
    shown?.close?.();
    const view = await PAGES[name].open({ ...query, run: current });
    if (number !== following) return view.close?.();
    shown = view;
    main.replaceChildren(...view.nodes);
    view.drawn?.();
    document.title = `${TITLES[name] ?? "Completion"} · ${seen(current)} · Slipstream`;
    announce(`${TITLES[name] ?? "Completion"} of ${seen(current)}`);
  } catch (error) {
    if (number === following) problem(error);
  }
}

function frame(page, current, runs) {
  const names = runs.includes(current) ? runs : [current, ...runs];
  choice.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === current }, seen(name))));
  choice.onchange = () => { location.hash = link(page === "completion" ? "samples" : page, { run: choice.value }); };
  document.getElementById("pages").replaceChildren(...Object.entries(TITLES).map(([name, title]) =>
    h("a", { href: link(name, { run: current }), "aria-current": name === page || (page === "completion" && name === "samples") ? "page" : null }, title)));
}

async function refresh() {
  if (document.visibilityState === "visible" && shown?.update) {
    try {
      await shown.update();
    } catch (error) {
      shown.lost?.(error);
    }
  }
  setTimeout(refresh, LIVE_MILLISECONDS);
}

document.getElementById("theme").onclick = () => {
  choose(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  shown?.redraw?.();
};
choose(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", show);
show().then(refresh);
