// Renders equations as MathML, which browsers show by themselves: no fonts, no style sheet, no network.
function renderEquations() {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const display = text.startsWith("\\[");
    const tex = text.replace(/^\\[[(]/, "").replace(/\\[\])]$/, "");
    katex.render(tex, element, { displayMode: display, output: "mathml", throwOnError: false });
  }
}

if (document.readyState === "loading") {
  document.addEventListener("DOMContentLoaded", renderEquations);
} else {
  renderEquations();
}
