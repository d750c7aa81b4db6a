// A query's timeline as a picture: one line for the request, then one for each attempt of each task, stage by stage.

import { account, PARTS, split } from "./account.js";
import { duration, html, percent, perMillion, svg, table, titled } from "./dom.js";

const ROW = 20;
const BAR = 12;
const TOP = 24;
const NARROW = 520;
const LEGEND = ["queue", "decode", "wait", "network", "cold", "halo", "read", "compute", "write"];

/** The round step that takes an axis over `range` in at most `most` steps. */
export function stepOf(range, most) {
  const rough = range / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

/** Round numbers along an axis from 0 to `end`, which is above 0, in at most `most` steps. */
export function ticks(end, most) {
  const step = stepOf(end, most);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

/** Pieces of an attempt's bar, [part, from, to] in ms: its worker's part stands in the middle of its invocation. */
function pieces(task) {
  const parts = split(task);
  let at = task.asked_ms;
  return ["wait", "before", "cold", "halo", "read", "compute", "write", "after"].map((name) => {
    const part = name === "before" || name === "after" ? "network" : name;
    const ms = part === "network" ? parts.network / 2 : parts[part];
    at += ms;
    return [part, at - ms, at];
  });
}

function lines(timeline, stages) {
  const { queue_ms: queue, decode_ms: decode, answered_ms: end } = timeline;
  const request = {
    label: "Request",
    kind: "request",
    pieces: [["queue", 0, queue], ["decode", queue, queue + decode]],
    from: 0,
    to: end,
    text: `Request: waited ${duration(queue)} for its turn, decoded in ${duration(decode)}, answered after ${duration(end)}`,
  };
  const all = [request];
  stages.forEach((stage, number) => {
    const tasks = timeline.tasks.filter((task) => task.stage === number);
    if (!tasks.length) return;
    const from = Math.min(...tasks.map((task) => task.asked_ms));
    const to = Math.max(...tasks.map((task) => task.ended_ms ?? task.asked_ms));
    const text = `${titled(stage.name)}: ${tasks.length} attempts for ${stage.tasks} tasks, ${duration(to - from)}`;
    all.push({ label: titled(stage.name), kind: "stage", pieces: [], from, to, text, stage: number });
    for (const task of tasks) {
      const again = task.attempt ? ` (${task.attempt + 1})` : "";
      const last = task.ended_ms ?? Math.max(to, task.asked_ms);
      all.push({ label: `Tile ${task.tile}${again}`, kind: task.outcome === "answered" ? "task" : "failed", pieces: pieces(task), from: task.asked_ms, to: last, text: told(task) });
    }
  });
  return all;
}

function told(task) {
  const parts = split(task);
  const name = `Stage ${task.stage}, tile ${task.tile}${task.attempt ? `, attempt ${task.attempt + 1}` : ""}`;
  if (task.outcome !== "answered") return `${name}: ${task.outcome} after ${duration((task.ended_ms ?? task.asked_ms) - task.asked_ms)}`;
  const steps = ["wait", "cold", "halo", "read", "compute", "write", "network"].filter((part) => parts[part] >= 0.05);
  const took = steps.map((part) => `${PARTS[part]} ${duration(parts[part])}`).join(", ");
  return `${name}: ${duration(task.ended_ms - task.asked_ms)}: ${took}. Environment ${task.environment}, ${perMillion(task.cost_usd)} a million such tasks`;
}

export class Timeline {
  #cursor = null;
  #scale = null;

  /** Draw into `box`; `detail` shows the numbers of the line that is hovered or focused. */
  constructor(box, detail) {
    this.box = box;
    this.detail = detail;
    new ResizeObserver(() => {
      if (this.timeline && Math.round(box.clientWidth) !== this.width) this.#draw();
    }).observe(box);
  }

  show(timeline, stages) {
    this.timeline = timeline;
    this.stages = stages;
    this.moment = timeline.answered_ms;
    this.#draw();
  }

  /** Mark a moment of the query. */
  mark(moment) {
    this.moment = moment;
    const x = this.#scale?.(moment);
    this.#cursor?.setAttribute("x1", x);
    this.#cursor?.setAttribute("x2", x);
  }

  #draw() {
    this.width = Math.round(this.box.clientWidth);
    const narrow = this.width < NARROW;
    const gutter = narrow ? 64 : 84;
    const end = Math.max(this.timeline.answered_ms, ...this.timeline.tasks.map((task) => task.ended_ms ?? 0));
    const scale = (ms) => gutter + (ms / end) * (this.width - gutter - 8);
    const rows = lines(this.timeline, this.stages);
    const height = TOP + rows.length * ROW + 4;
    const chart = svg("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "group", class: "chart", "aria-label": "Timeline: arrow keys go from line to line" });
    chart.append(...axis(end, scale, narrow ? 4 : 8, height));
    const drawn = rows.map((row, index) => this.#row(row, index, scale));
    this.#cursor = svg("line", { y1: TOP - 4, y2: height, class: "cursor", "aria-hidden": "true" });
    chart.append(...drawn, this.#cursor);
    this.#scale = scale;
    this.mark(this.moment);
    walkable(drawn);
    this.box.replaceChildren(legend(this.timeline), chart);
    this.detail.textContent = "Point at a line, or go from line to line with the arrow keys, to see its numbers.";
  }

  #row(row, index, scale) {
    const y = TOP + index * ROW;
    const group = svg("g", { class: `line ${row.kind}`, role: "img", tabindex: index ? -1 : 0, "aria-label": row.text });
    const least = (from, to) => Math.max(scale(to) - scale(from), 0);
    group.append(svg("rect", { x: 0, y, width: this.width, height: ROW, class: "ground" }));
    group.append(svg("text", { x: row.kind === "task" || row.kind === "failed" ? 10 : 0, y: y + ROW / 2, "dominant-baseline": "central" }, row.label));
    const thick = row.kind === "stage" ? 3 : BAR;
    const shape = { y: y + (ROW - thick) / 2, height: thick };
    group.append(svg("rect", { ...shape, x: scale(row.from), width: Math.max(least(row.from, row.to), 1.5), class: row.kind === "stage" ? `span s${row.stage % 8}` : "span" }));
    for (const [part, from, to] of row.pieces) {
      if (to > from) group.append(svg("rect", { ...shape, x: scale(from), width: least(from, to), class: `p-${part}` }));
    }
    const tell = () => (this.detail.textContent = `${row.text}.`);
    group.addEventListener("pointerenter", tell);
    group.addEventListener("focus", tell);
    return group;
  }
}

/** One stop of the tab key for all lines; arrow keys, Home and End go on from there. */
export function walkable(groups) {
  groups.forEach((group, index) => {
    group.addEventListener("keydown", (event) => {
      const [after, before] = [index + 1, index - 1];
      const to = { ArrowDown: after, ArrowRight: after, ArrowUp: before, ArrowLeft: before, Home: 0, End: groups.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = groups[Math.min(Math.max(to, 0), groups.length - 1)];
      groups.forEach((one) => one.setAttribute("tabindex", one === next ? 0 : -1));
      next.focus();
    });
  });
}

function axis(end, scale, most, height) {
  return ticks(Math.max(end, 1e-3), most).flatMap((ms) => {
    const anchor = ms === 0 ? "start" : ms > 0.93 * end ? "end" : "middle"; // nothing is cut off at the border
    const label = svg("text", { x: scale(ms), y: 10, class: "tick", "text-anchor": anchor }, ms ? duration(ms).replace(/\.0(?=\s)/, "") : "0");
    return [svg("line", { x1: scale(ms), x2: scale(ms), y1: TOP - 6, y2: height, class: "grid" }), label];
  });
}

/** The colours of the parts that some attempt has, and of the request's own. */
function legend(timeline) {
  const parts = timeline.tasks.flatMap((task) => Object.entries(split(task)).flatMap(([part, ms]) => (ms > 0 ? [part] : [])));
  const used = new Set(["queue", "decode", ...parts]);
  const names = { ...PARTS, network: "network and service", read: "reading", write: "writing", queue: "waiting for its turn", decode: "decoding" };
  const items = LEGEND.filter((part) => used.has(part)).map((part) => html("li", {}, html("span", { class: `key p-${part}` }), names[part]));
  return html("ul", { class: "legend", "aria-label": "Colours of the timeline" }, ...items);
}

/** All of a query's time as one bar of its parts, with their numbers. */
export function shareBar(timeline) {
  const total = timeline.answered_ms;
  const spent = Object.entries(account(timeline)).filter(([, ms]) => ms / total >= 0.005);
  const bar = svg("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true" });
  let at = 0;
  for (const [part, ms] of spent) {
    bar.append(svg("rect", { x: (at / total) * 1000, y: 0, width: (ms / total) * 1000, height: 10, class: `p-${part}` }));
    at += ms;
  }
  const items = spent.map(([part, ms]) =>
    html("li", {}, html("span", { class: `key p-${part}` }), html("span", { class: "grow" }, PARTS[part]), html("span", { class: "number" }, duration(ms)), html("span", { class: "number share" }, percent(ms / total))),
  );
  return [bar, html("ul", { class: "shares" }, ...items)];
}

export function timelineTable(timeline) {
  const heads = ["Stage", "Tile", "Attempt", "Outcome", "Asked", "Waited", "Cold start", "Halos", "Reading", "Computing", "Writing", "Network", "Ended", "Environment"];
  const rows = timeline.tasks.map((task) => {
    const parts = split(task);
    const inside = [parts.wait, parts.cold, parts.halo, parts.read, parts.compute, parts.write, parts.network].map(duration);
    return [`stage-${task.stage}`, task.tile, task.attempt + 1, task.outcome, duration(task.asked_ms), ...inside, duration(task.ended_ms), task.environment ?? "–"];
  });
  const caption = `Every attempt of every task; the request waited ${duration(timeline.queue_ms)}, was decoded in ${duration(timeline.decode_ms)} and answered after ${duration(timeline.answered_ms)}`;
  return table(caption, heads, rows);
}
