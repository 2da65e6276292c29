"use strict";
// Drawing helpers. Text is inserted as text nodes only, never as markup.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const short = (value) =>
  value === null || value === undefined ? "-"
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(4)));

/** Ticks from low to high, about `count`, at a distance of 1, 2 or 5 times a power of ten. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) values.push(i * step);
  return values;
}

function legend(entries) {
  return el("div", { class: "legend" },
    ...entries.map(([kind, name]) => el("span", {}, el("i", { class: kind }), name)));
}

const FRAME = { width: 460, height: 220, left: 44, right: 12, top: 18, bottom: 26 };

/** An empty plot with its scales and grid lines. */
function frame(label, xs, ys, whole, steps) {
  const { width, height, left, right, top, bottom } = FRAME;
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
  const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (height - top - bottom);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of ticks(ys[0], ys[1], 4)) {
    if (whole && !Number.isInteger(value)) continue;
    root.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(xs[0], xs[1], 7)) {
    if (steps && !Number.isInteger(value)) continue;
    root.append(svg("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, short(value)));
  }
  return { root, x, y };
}

/** Kept rows per score, rejected ones on top, and the cut as a dashed line. */
function histogram(chart) {
  const { bins, cut } = chart;
  const most = Math.max(1, ...bins.map((bin) => bin.rows + bin.rejected));
  const { root, x, y } = frame(chart.title, [bins[0].from, bins.at(-1).to], [0, most], true);
  for (const bin of bins) {
    const place = { x: x(bin.from) + 1, width: Math.max(x(bin.to) - x(bin.from) - 2, 1) };
    const title = `${bin.from} to ${bin.to}: ${bin.rows} selected, ${bin.rejected} rejected`;
    let bottom = 0;
    for (const [kind, count] of [["", bin.rows], ["rejected", bin.rejected]]) {
      if (!count) continue;
      const [low, high] = [y(bottom), y(bottom + count)];
      root.append(svg("rect", { class: `bar ${kind}`, ...place, y: high, height: low - high },
        svg("title", {}, title)));
      bottom += count;
    }
  }
  if (cut !== null) {
    root.append(
      svg("line", { class: "cut", x1: x(cut), x2: x(cut), y1: 8, y2: y(0) }),
      svg("text", { class: "cut-label", x: x(cut) + 5, y: 14 }, `cut ${short(cut)}`));
  }
  return el("div", {}, root, legend([["", "selected"], ["rejected", "rejected"],
    ...(cut === null ? [] : [["cut", "cut"]])]));
}

/** Horizontal bars with a name, and the lost part behind them; with a filter, a name is a button that applies it. */
function bars(chart, pick) {
  const most = Math.max(1, ...chart.bars.map((bar) => bar.value + (bar.lost || 0)));
  const room = chart.bars.some((bar) => bar.lost !== undefined) ? 50 : 78;
  const grid = el("div", { class: "bars" });
  for (const bar of chart.bars) {
    const name = chart.filter
      ? el("button", { class: "name", title: "List these rows", onclick: () => pick(chart.filter, bar.name) }, bar.name)
      : el("span", { class: "name" }, bar.name);
    const fill = el("span", { class: "fill" });
    fill.style.width = `${(room * bar.value) / most}%`;
    const track = el("div", { class: "track" }, fill);
    if (bar.lost) {
      const lost = el("span", { class: "fill lost" });
      lost.style.width = `${(room * bar.lost) / most}%`;
      track.append(lost);
    }
    track.append(el("span", { class: "said" }, el("b", {}, bar.value.toLocaleString("en")), bar.note ? ` ${bar.note}` : ""));
    grid.append(name, track);
  }
  return grid;
}

/** A metric over steps, with its threshold. */
function curve(chart) {
  const values = chart.points.map(([, value]) => value);
  if (chart.threshold !== null && chart.threshold !== undefined) values.push(chart.threshold);
  let [low, high] = [Math.min(0, ...values), Math.max(...values)];
  if (low === high) high = low + 1;
  const steps = chart.points.map(([step]) => step);
  const { root, x, y } = frame(chart.title, [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1)], [low, high], false, true);
  if (chart.threshold !== null && chart.threshold !== undefined) {
    root.append(
      svg("line", { class: "cut", x1: FRAME.left, x2: FRAME.width - FRAME.right, y1: y(chart.threshold), y2: y(chart.threshold) }),
      svg("text", { class: "cut-label", x: FRAME.width - FRAME.right, y: y(chart.threshold) - 5, "text-anchor": "end" }, "success"));
  }
  root.append(svg("polyline", { class: "line", points: chart.points.map(([s, v]) => `${x(s)},${y(v)}`).join(" ") }));
  if (chart.points.length <= 400) {
    for (const [step, value] of chart.points) {
      root.append(svg("circle", { class: "dot", cx: x(step), cy: y(value), r: chart.points.length > 60 ? 2 : 3.2 },
        svg("title", {}, `step ${step}: ${short(value)}`)));
    }
  }
  return root;
}

/** Two values of each measure on one line, with their intervals if known. */
function changes(chart) {
  const grid = el("div", { class: "changes" });
  for (const { name, before, after } of chart.changes) {
    const ends = [before, after].flatMap((one) => [one.mean, one.low ?? one.mean, one.high ?? one.mean]);
    const [low, high] = [Math.min(0, ...ends), Math.max(ends.every((v) => v >= 0 && v <= 1) ? 1 : 0, ...ends)];
    const x = (v) => 8 + (184 * (v - low)) / (high - low || 1);
    const root = svg("svg", { viewBox: "0 0 200 26", role: "img", "aria-label": `${name}: ${short(before.mean)} before, ${short(after.mean)} after` },
      svg("line", { class: "grid", x1: 8, x2: 192, y1: 13, y2: 13 }));
    for (const [kind, one, y] of [["before", before, 9], ["after", after, 17]]) {
      if (one.low !== undefined && one.low !== null) root.append(svg("line", { class: `span ${kind}`, x1: x(one.low), x2: x(one.high), y1: y, y2: y }));
      root.append(svg("circle", { class: `dot ${kind}`, cx: x(one.mean), cy: y, r: 3.5 }));
    }
    grid.append(el("span", { class: "name" }, name), root,
      el("span", { class: "said" }, `${short(before.mean)} → `, el("b", {}, short(after.mean))));
  }
  return el("div", {}, grid, legend([["before", "before"], ["", "after"]]));
}

const DRAW = { histogram, bars, curve, changes };
