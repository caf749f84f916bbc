"use strict";
// The timeline of the workers: one panel a run, one row a worker, all panels on the same stretch of time.
const FIELDS = 5; // of a span: start, end, kind, ticket, staleness

function wholeView() {
  return [0, Math.max(1e-9, ...report.runs.map(({ timeline }) => timeline.until ?? timeline.end))];
}

// At first some rounds, so that single pieces of work can be told apart.
function firstView() {
  const [, end] = wholeView(), lengths = [];
  for (const { timeline } of report.runs) {
    for (const row of timeline.rows) {
      for (let at = 0; at < row.length && at < 40 * FIELDS; at += FIELDS) {
        if (report.kinds[row[at + 2]] !== "wait" && report.kinds[row[at + 2]] !== "transfer" && report.kinds[row[at + 2]] !== "relabel") lengths.push(row[at + 1] - row[at]);
      }
    }
  }
  lengths.sort((a, b) => a - b);
  const typical = lengths[Math.floor(lengths.length * 0.9)] || end;
  return [0, Math.min(end, typical * (wide.matches ? 10 : 5))];
}

function timelines() {
  const place = document.getElementById("timeline-panels");
  place.replaceChildren();
  state.view ??= firstView();
  report.runs.forEach((run, i) => {
    const host = element("div", { class: "chart" }), title = element("figcaption", {}, element("span", { class: "swatch run" + i }), run.name);
    place.append(element("figure", { class: "panel", "data-run": i }, title, host));
    if (!run.timeline.rows.some((row) => row.length)) return host.append(element("div", { class: "nothing" }, "No worker has done anything yet."));
    panel(host, run);
  });
}

function panel(host, run) {
  const line_ = run.timeline;
  const count = line_.workers.length, row = Math.max(7, Math.min(20, 560 / count));
  const every = Math.ceil(14 / row);
  const paint = { colours: report.kinds.map(css), ground: css("ground"), text: css("text"), dim: css("dim") };
  const chart = draw(host, {
    words: `Timeline of ${run.name}: ${count} workers; the table of stragglers has it in numbers`,
    height: Math.round(count * row) + 62,
    padding: [14, 18, 0, 0],
    scales: { x: { time: false, range: () => state.view }, y: { range: () => [0, count], dir: -1 } },
    axes: [axis({ label: report.clock, size: 30, grid: { show: false }, ...LINEAR }),
           axis({ size: 58, grid: { show: false }, ticks: { show: false }, splits: () => line_.workers.map((_, at) => at + 0.5).filter((_, at) => at % every === 0),
                  values: (u, splits) => splits.map((at) => "w" + line_.workers[Math.floor(at)]) })],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "timeline", filters: MOVES }, points: { show: false } },
    hooks: {
      draw: [(u) => paintRows(u, line_, paint)],
      setSelect: [(u) => {
        if (u.select.width > 3) look(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
      ready: [(u) => u.over.addEventListener("dblclick", () => look(...wholeView()))],
    },
    plugins: [tip((u, box) => describeSpan(u, box, line_, paint))],
  }, [wholeView(), [0, count]]);
  chart.timeline = true;
}

// The first span of a row that ends after a time.
function firstAfter(row, time) {
  let low = 0, high = row.length / FIELDS;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle * FIELDS + 1] > time) high = middle;
    else low = middle + 1;
  }
  return low * FIELDS;
}

function paintRows(u, line_, paint) {
  const { ctx, bbox } = u, [from, to] = state.view, pixel = devicePixelRatio;
  const x = (time) => bbox.left + ((time - from) / (to - from)) * bbox.width;
  const height = bbox.height / line_.rows.length, gap = Math.min(3 * pixel, height * 0.16);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 12 * pixel, bbox.width, bbox.height + 12 * pixel);
  ctx.clip();
  line_.rows.forEach((row, number) => {
    const top = bbox.top + number * height + gap / 2;
    for (let at = firstAfter(row, from); at < row.length && row[at] < to; at += FIELDS) {
      if (!state.kinds[row[at + 2]]) continue;
      const left = x(row[at]), width = x(row[at + 1]) - left;
      ctx.fillStyle = paint.colours[row[at + 2]];
      ctx.fillRect(left, top, Math.max(width - (width > 5 * pixel ? pixel : 0), 0.6), height - gap);
    }
  });
  const room = paintUpdates(u, line_, paint, x);
  ctx.fillStyle = paint.text;
  for (const [at, number] of line_.recalls) {
    if (!room || at < from || at > to) continue;
    const left = x(at), top = bbox.top + number * height, size = Math.min(4 * pixel, height * 0.3);
    ctx.beginPath();
    ctx.moveTo(left - size, top);
    ctx.lineTo(left + size, top);
    ctx.lineTo(left, top + size * 1.5);
    ctx.fill();
  }
  if (line_.until !== null && line_.until < to) {
    ctx.fillStyle = paint.dim;
    ctx.font = `${12 * pixel}px system-ui, sans-serif`;
    ctx.fillText("not drawn from here on", x(line_.until) + 8 * pixel, bbox.top + 16 * pixel);
  }
  ctx.restore();
}

function paintUpdates(u, line_, paint, x) {
  const { ctx, bbox } = u, [from, to] = state.view, pixel = devicePixelRatio;
  const seen = line_.updates.filter(([at]) => at >= from && at <= to);
  const sparse = seen.length < bbox.width / pixel / 16;
  ctx.lineWidth = pixel;
  ctx.strokeStyle = paint.text;
  const height = bbox.height / line_.rows.length;
  for (const [at, , , , rows] of seen) {
    const left = Math.round(x(at)) + 0.5;
    ctx.globalAlpha = sparse ? 0.9 : 0.55;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top - 9 * pixel);
    ctx.lineTo(left, bbox.top - 2 * pixel);
    ctx.stroke();
    if (!sparse) continue;
    ctx.beginPath(); // through the rows of those whose work it used
    for (const row of rows) {
      ctx.moveTo(left, bbox.top + row * height);
      ctx.lineTo(left, bbox.top + (row + 1) * height);
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  return sparse;
}

function describeSpan(u, box, line_, paint) {
  if (u.cursor.top < 0 || !u.over.matches(":hover")) return false; // the cursor of another panel is only shown as a line
  const time = u.posToVal(u.cursor.left, "x");
  const number = Math.min(line_.rows.length - 1, Math.floor((u.cursor.top / u.over.clientHeight) * line_.rows.length));
  const row = line_.rows[number], at = firstAfter(row, time);
  line(box, `worker ${line_.workers[number]} at `, short(time) + " s");
  if (at < row.length && row[at] <= time) {
    const [start, end, kind, ticket, staleness] = row.slice(at, at + FIELDS);
    line(box, report.kinds[kind] + " ", short(end - start) + " s", paint.colours[kind]);
    if (ticket >= 0) line(box, `ticket ${ticket}` + (staleness >= 0 ? `, staleness ${staleness}` : ""));
  } else line(box, "not there");
  const next = line_.updates.find(([moment, , , , rows]) => moment >= time && rows.includes(number));
  if (next) {
    const last = next[3] < 0 ? "" : `; worker ${next[3]} came last`;
    line(box, `its next update: number ${next[1]} in ${short(next[0] - time)} s, with ${next[2]} contribution${next[2] > 1 ? "s" : ""}${last}`);
  }
  return true;
}

function look(from, to) {
  const [, end] = wholeView(), length = Math.min(end, Math.max(to - from, end * 1e-5));
  const start = Math.max(0, Math.min(from, end - length));
  state.view = [start, start + length];
  for (const chart of charts) if (chart.timeline) chart.setScale("x", { min: start, max: start + length });
}

function zoom(how) {
  const [from, to] = state.view, length = to - from, middle = (from + to) / 2;
  const views = {
    left: [from - length / 2, to - length / 2], right: [from + length / 2, to + length / 2], all: wholeView(),
    in: [middle - length / 4, middle + length / 4], out: [middle - length, middle + length],
  };
  look(...views[how]);
}
