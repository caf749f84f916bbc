"use strict";
// What all charts share, the curves of loss and accuracy, and the histograms of staleness.
const report = JSON.parse(document.getElementById("data").textContent);
const state = { shown: report.runs.map(() => true), kinds: report.kinds.map(() => true), target: null, view: null };
const charts = []; // every uPlot on the page
const wide = matchMedia("(min-width: 721px)");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const runColour = (number) => css("run" + number);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(4));
}

const percent = (share) => +(100 * share).toFixed(1) + " %";

// Marks of an axis: the increment that fits, or a smaller one until there are three.
function linearSplits(u, which, low, high, increment) {
  const marks = (step) => {
    const places = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-12); at++) places.push(+(at * step).toPrecision(10));
    return places;
  };
  let places = marks(increment);
  for (const share of [2, 2.5, 5, 10, 20, 50]) if (places.length < 3) places = marks(increment / share);
  return places;
}

// The same on a logarithmic axis: powers of ten if there are three, else as many digits between them as that takes.
const DIGITS = [[1], [1, 3], [1, 2, 5], [1, 2, 3, 5, 7], [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]];
function logSplits(u, which, low, high) {
  for (const digits of DIGITS) {
    const places = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const digit of digits) places.push(+(digit * 10 ** power).toPrecision(6));
    }
    const seen = places.filter((place) => place >= low && place <= high);
    if (seen.length >= 3) return seen.filter((_, at) => at % Math.ceil(seen.length / 9) === 0);
  }
  return linearSplits(u, which, low, high, 10 ** Math.floor(Math.log10(high - low)));
}

const LINEAR = { splits: linearSplits };
const LOG = { splits: logSplits, filter: (u, splits) => splits };
const MOVES = { pub: (kind) => kind === "mousemove" || kind === "mouseleave" }; // a drag is told by its own means

function axis(more) {
  const line = { stroke: css("grid"), width: 1 };
  return {
    stroke: css("dim"), grid: line, ticks: { ...line, size: 5 }, font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif", labelSize: 18, labelGap: 0, ...more,
  };
}

function draw(host, options, data) {
  const size = () => ({ width: Math.max(200, host.clientWidth), height: options.height });
  const chart = new uPlot({ legend: { show: false }, ...options, ...size() }, data, host);
  chart.refit = (width) => chart.setSize({ width: width || size().width, height: options.height });
  chart.host = host;
  host.setAttribute("role", "img");
  host.setAttribute("aria-label", options.words);
  charts.push(chart);
  return chart;
}

// A box beside the cursor; `describe` fills it, or answers false to hide it.
function tip(describe) {
  const box = element("div", { class: "tip", hidden: "" });
  return {
    hooks: {
      ready: (u) => {
        u.over.append(box);
        u.over.addEventListener("mouseleave", () => (box.hidden = true));
      },
      setCursor: (u) => {
        const { left, top } = u.cursor;
        box.replaceChildren();
        box.hidden = left < 0 || describe(u, box) === false;
        if (box.hidden) return;
        const beyond = left + 18 + box.offsetWidth > u.over.clientWidth;
        box.style.left = Math.max(0, beyond ? left - 14 - box.offsetWidth : left + 16) + "px";
        box.style.top = Math.max(0, Math.min(top + 12, u.over.clientHeight - box.offsetHeight)) + "px";
      },
    },
  };
}

function line(box, text, value = "", colour = null) {
  const row = element("div");
  if (colour) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour;
    row.append(swatch);
  }
  row.append(text, element("b", {}, value));
  box.append(row);
}

const AXES = { seconds: { label: report.clock }, updates: { label: "updates (logarithmic)", log: true } };
const VALUES = {
  loss: { log: true, format: short, range: (u, low, high) => spread(low, high) },
  accuracy: { format: percent, range: (u, low, high) => [Math.max(0, low - 0.02), Math.min(1.005, Math.max(high, state.target || 0) + 0.03)] },
};

function spread(low, high) {
  const room = Math.max(1.02, Math.pow(high / low, 0.06));
  return [low / room, high * room];
}

function curve(across, up) {
  const host = document.getElementById(`${up}-${across}`);
  host.replaceChildren();
  const { label, log } = AXES[across], value = VALUES[up] || { format: short };
  const usable = (x, y) => y !== null && (!log || x > 0) && (!value.log || y > 0);
  const tables = report.runs.map(({ curves }) => {
    const kept = curves[across].map((x, i) => i).filter((i) => usable(curves[across][i], curves[up][i]));
    const last = new Map(kept.map((i) => [curves[across][i], curves[up][i]])); // one value a place
    return [[...last.keys()], [...last.values()]];
  });
  if (tables.every(([places]) => !places.length)) {
    host.append(element("div", { class: "nothing" }, `No ${report.curves[up]} was recorded.`));
    return;
  }
  const format = (u, splits) => splits.map((v) => (v === null ? "" : value.format(v)));
  const ends = report.runs.map((run, i) => `${run.name} ends at ${tables[i][1].length ? value.format(tables[i][1].at(-1)) : "no value"}`);
  draw(host, {
    words: `${report.curves[up]} against ${across}: ${ends.join("; ")}`,
    height: wide.matches ? 290 : 230,
    scales: { x: { time: false, distr: log ? 3 : 1, range: log ? (u, low, high) => [low, Math.max(high, low * 2)] : undefined },
              y: { distr: value.log ? 3 : 1, range: value.range } },
    axes: [axis({ label, size: 30, ...(log ? LOG : LINEAR), values: (u, splits) => splits.map((v) => (v === null ? "" : short(v))) }),
           axis({ size: 58, values: format, space: 34, ...(value.log ? LOG : LINEAR) })],
    series: [{}, ...report.runs.map((run, i) => ({
      label: run.name, show: state.shown[i], stroke: runColour(i), width: 2, dash: run.dashes, spanGaps: true,
      points: { show: tables[i][0].length === 1, size: 7, fill: runColour(i) },
    }))],
    cursor: {
      sync: { key: across, filters: MOVES }, drag: { x: true, y: false }, focus: { prox: 1e6 },
      dataIdx: (u, series, at) => { // what was last seen there
        const seen = u.data[series];
        while (series && at > 0 && (seen[at] === null || seen[at] === undefined)) at--;
        return at;
      },
    },
    focus: { alpha: 1 },
    hooks: { setScale: [(u, key) => key === "x" && follow(u, across)], draw: up === "accuracy" ? [drawTarget] : [] },
    plugins: [tip((u, box) => describeCurves(u, box, across, value.format))],
  }, uPlot.join(tables)).across = across;
}

function describeCurves(u, box, across, format) {
  if (u.cursor.idx === null || u.cursor.idx === undefined) return false;
  line(box, "", across === "seconds" ? short(u.data[0][u.cursor.idx]) + " s" : short(u.data[0][u.cursor.idx]) + " updates");
  report.runs.forEach((run, i) => {
    const seen = u.data[i + 1][u.cursor.idxs[i + 1]];
    if (state.shown[i] && seen !== null && seen !== undefined) line(box, run.name + "  ", format(seen), runColour(i));
  });
  return true;
}

// Charts over the same abscissa are zoomed together.
function follow(source, across) {
  const { min, max } = source.scales.x;
  for (const other of charts) {
    const x = other.scales.x;
    if (other !== source && other.across === across && other.status === 1 && (x.min !== min || x.max !== max)) {
      other.setScale("x", { min, max });
    }
  }
}

function drawTarget(u) {
  if (state.target === null) return;
  const y = u.valToPos(state.target, "y", true), { left, width, top, height } = u.bbox;
  if (y < top || y > top + height) return;
  u.ctx.save();
  u.ctx.strokeStyle = css("dim");
  u.ctx.setLineDash([4, 4].map((each) => each * devicePixelRatio));
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.beginPath();
  u.ctx.moveTo(left, y);
  u.ctx.lineTo(left + width, y);
  u.ctx.stroke();
  u.ctx.restore();
}

function histograms() {
  const place = document.getElementById("histograms");
  place.replaceChildren();
  report.runs.forEach((run, i) => {
    const { width, counts } = run.histogram, total = counts.reduce((sum, each) => sum + each, 0);
    const host = element("div", { class: "chart" });
    place.append(element("figure", { "data-run": i }, element("figcaption", {}, element("span", { class: "swatch run" + i }), run.name), host));
    if (!total) return host.append(element("div", { class: "nothing" }, "No contribution was used."));
    const places = counts.map((_, at) => at * width), most = Math.max(5, counts.length);
    const name = (at) => (width === 1 ? `${at}` : `${at} to ${at + width - 1}`);
    draw(host, {
      words: `Staleness of ${run.name}: ${percent(counts[0] / total)} of ${total.toLocaleString("en")} contributions at most ${width - 1} updates behind`,
      height: 190,
      scales: { x: { time: false, range: () => [-0.6 * width, (most - 0.4) * width] }, y: { range: (u, low, high) => [0, high * 1.08] } },
      axes: [axis({ label: "updates behind", size: 30, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }),
             axis({ size: 58, space: 34, ...LINEAR, values: (u, splits) => splits.map(percent) })],
      series: [{}, { stroke: runColour(i), fill: runColour(i), width: 0, paths: uPlot.paths.bars({ size: [0.86, 60] }), points: { show: false } }],
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
      plugins: [tip((u, box) => {
        const at = u.cursor.idx;
        if (at === null || at === undefined) return false;
        line(box, `${name(places[at])} behind: `, percent(counts[at] / total));
        line(box, `${counts[at].toLocaleString("en")} of ${total.toLocaleString("en")} contributions`);
        return true;
      })],
    }, [places, counts.map((each) => each / total)]);
  });
}
