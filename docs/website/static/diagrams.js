// Draws the diagrams of a page, and again when the reader changes between light and dark.
const diagrams = [...document.querySelectorAll("pre.mermaid")];
const sources = diagrams.map((diagram) => diagram.textContent);

function isDark() {
  const theme = document.body.dataset.theme;
  if (theme === "dark" || theme === "light") return theme === "dark";
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

let drawnDark = null;

function draw() {
  if (isDark() === drawnDark) return;
  drawnDark = isDark();
  diagrams.forEach((diagram, index) => {
    diagram.textContent = sources[index];
    diagram.removeAttribute("data-processed");
  });
  mermaid.initialize({ startOnLoad: false, theme: drawnDark ? "dark" : "neutral" });
  mermaid.run({ nodes: diagrams });
}

draw();
new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
