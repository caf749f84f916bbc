"use strict";
// Puts the page together: legends, target, theme, size, print.
function render() {
  for (const chart of charts.splice(0)) chart.destroy();
  for (const up of Object.keys(report.curves)) for (const across of ["seconds", "updates"]) curve(across, up);
  timelines();
  histograms();
  hideRuns();
}

function toggles(place, names, flags, mark, changed) {
  const host = document.getElementById(place);
  names.forEach((name, i) => {
    const button = element("button", { type: "button", "aria-pressed": "true" }, mark(i), name);
    button.addEventListener("click", () => {
      flags[i] = !flags[i];
      button.setAttribute("aria-pressed", flags[i]);
      changed(i);
    });
    host.append(button);
  });
}

function runMark(i) {
  const mark = element("span", { class: "swatch line" });
  mark.style.borderTopColor = `var(--run${i})`;
  const { dashes } = report.runs[i];
  mark.style.borderTopStyle = !dashes.length ? "solid" : dashes[0] < 5 ? "dotted" : "dashed";
  return mark;
}

function hideRuns() {
  document.querySelectorAll("figure[data-run], details[data-run]").forEach((each) => (each.hidden = !state.shown[each.dataset.run]));
  document.querySelectorAll("tr[data-run]").forEach((each) => each.classList.toggle("off", !state.shown[each.dataset.run]));
}

function toggleRun(i) {
  for (const chart of charts) if (chart.across) chart.setSeries(i + 1, { show: state.shown[i] });
  hideRuns();
  refit();
}

function reached({ curves }) {
  const at = curves.accuracy.findIndex((each) => each !== null && each >= state.target);
  return at < 0 ? null : curves.seconds[at];
}

function setTarget(target) {
  state.target = target;
  const times = report.runs.map((run) => (target === null ? null : reached(run)));
  const best = Math.min(...times.filter((time) => time !== null));
  times.forEach((time, i) => {
    const row = document.querySelector(`tr[data-run="${i}"]`);
    row.classList.toggle("best", time !== null && time === best);
    row.querySelector(".reached").textContent = target === null ? "–" : time === null ? "not reached" : time.toFixed(1) + " s";
  });
  document.getElementById("verdict").textContent = target === null ? "" : verdict(times, best);
  for (const chart of charts) if (chart.across) chart.redraw(false, true);
}

function verdict(times, best) {
  const goal = percent(state.target), names = report.runs.map((run) => run.name);
  if (!Number.isFinite(best)) return `No run was seen at ${goal}.`;
  const first = times.indexOf(best);
  const others = times.map((time, i) => [time, i]).filter(([, i]) => i !== first).map(([time, i]) =>
    time === null ? `${names[i]} was not seen there` : `${names[i]} took ${best > 0 ? (time / best).toFixed(2) + " times as long" : time.toFixed(1) + " s"}`);
  return `${names[first]} reached ${goal} after ${best.toFixed(1)} s` + (others.length ? "; " + others.join(", ") : "") + ".";
}

function startTarget() {
  if (!("accuracy" in report.curves)) {
    document.getElementById("target-row").hidden = true;
    return;
  }
  const input = document.getElementById("target");
  const known = report.runs.map((run) => run.target).filter((target) => target !== null);
  if (known.length) input.value = +(100 * Math.max(...known)).toFixed(2);
  else if (report.runs.length > 1) {
    // The highest whole percentage that every run was seen at
    const best = report.runs.map(({ curves }) => Math.max(0, ...curves.accuracy)), common = Math.floor(100 * Math.min(...best));
    if (common > 0) {
      input.value = common;
      document.getElementById("target-note").textContent = "No run had a target: this is what all of them reached.";
    }
  }
  const read = () => setTarget(input.value === "" || !Number.isFinite(+input.value) ? null : +input.value / 100);
  input.addEventListener("input", () => {
    document.getElementById("target-note").textContent = "";
    read();
  });
  read();
}

function refit(width) {
  for (const chart of charts) if (width || chart.host.clientWidth) chart.refit(width && (chart.timeline ? width : (width - 22) / 2));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "☀ light" : "☾ dark";
  render();
}

function startPrinting() {
  const closed = [], theme = () => document.documentElement.dataset.theme;
  let before = null;
  addEventListener("beforeprint", () => {
    before = theme();
    if (before !== "light") setTheme("light");
    document.querySelectorAll("#stragglers details:not([open])").forEach((each) => (closed.push(each), (each.open = true)));
    refit(690);
  });
  addEventListener("afterprint", () => {
    closed.splice(0).forEach((each) => (each.open = false));
    if (before && before !== theme()) setTheme(before);
    else refit();
  });
}

function start() {
  toggles("legend", report.runs.map((run) => run.name), state.shown, runMark, toggleRun);
  toggles("kinds", report.kinds, state.kinds, (i) => element("span", { class: "swatch " + report.kinds[i] }), () => charts.forEach((chart) => chart.timeline && chart.redraw()));
  document.querySelectorAll("[data-zoom]").forEach((each) => each.addEventListener("click", () => zoom(each.dataset.zoom)));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = false;
  button.addEventListener("click", () => {
    chosen = true;
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
  dark.addEventListener("change", () => chosen || setTheme(dark.matches ? "dark" : "light"));
  setTheme(dark.matches ? "dark" : "light");
  startTarget();
  wide.addEventListener("change", render);
  let width = innerWidth;
  addEventListener("resize", () => innerWidth !== width && ((width = innerWidth), refit()));
  startPrinting();
}

start();
