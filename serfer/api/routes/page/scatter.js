// Variants as a picture: accuracy with its interval against another figure; a shape for each state, dashes for what is predicted.

import { html, percent, svg } from "./dom.js";
import { stepOf, ticks, walkable } from "./timeline.js";

const HEIGHT = 250;
const [TOP, RIGHT, BOTTOM, LEFT] = [14, 14, 24, 46];
const NUMBER = { width: 20, height: 10 }; // the room of a point's number
const WIDE = 20; // times from the least to the greatest: then the axis is logarithmic
const NARROW = 300;

const SHAPES = {
  active: (x, y) => svg("circle", { cx: x, cy: y, r: 5.5 }),
  inactive: (x, y) => svg("circle", { cx: x, cy: y, r: 4.5 }),
  overloaded: (x, y) => svg("path", { d: `M${x} ${y - 7}l7 12h-14z` }),
  interfered: (x, y) => svg("path", { d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z` }),
};
const STATES = {
  active: "active: loaded",
  inactive: "inactive: not loaded",
  overloaded: "overloaded",
  interfered: "interfered: slower than profiled",
};

/** A state's shape at a place of a picture. */
const shapeOf = (state, x, y) => svg("g", { class: `shape ${state}` }, (SHAPES[state] ?? SHAPES.inactive)(x, y));

/** A small picture of something in the legend or in a table. */
const icon = (...drawn) => svg("svg", { viewBox: "0 0 18 18", class: "icon", "aria-hidden": "true" }, ...drawn);

/** A state as a small picture and its name. */
export const stateText = (state) => html("span", { class: "state-text" }, icon(shapeOf(state, 9, 9)), state);

/** What shapes and lines mean; `canary` says whether there is one. */
export function scatterLegend(canary) {
  const states = Object.entries(STATES).map(([state, text]) => [icon(shapeOf(state, 9, 9)), text]);
  const dashed = svg("g", { class: "predicted" }, shapeOf("inactive", 9, 9));
  const others = [
    [icon(dashed), "dashed: figure predicted, else measured"],
    [icon(...whisker(9, 2, 16)), "95% interval of the accuracy"],
    [icon(svg("circle", { cx: 9, cy: 9, r: 8, class: "ring" })), "ring: answered last"],
    ...(canary ? [["*", "canary"]] : []),
  ];
  const items = [...states, ...others].map(([drawn, text]) => html("li", {}, drawn, ` ${text}`));
  return html("ul", { class: "legend", "aria-label": "Shapes of the pictures" }, ...items);
}

function whisker(x, high, low) {
  const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, class: "whisker" });
  return [line(x, high, x, low), line(x - 4, high, x + 4, high), line(x - 4, low, x + 4, low)];
}

/** A scale from values to pixels, with its `ticks`: from 0, or logarithmic where values are far apart. */
function scaleOf(values, from, to, most) {
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  if (least > 0 && greatest / least > WIDE) {
    const [low, high] = [Math.log(least / 1.3), Math.log(greatest * 1.3)];
    const at = (value) => from + ((Math.log(value) - low) / (high - low)) * (to - from);
    return { at, ticks: decades(least / 1.3, greatest * 1.3, most) };
  }
  const end = greatest * 1.1 || 1;
  return { at: (value) => from + (value / end) * (to - from), ticks: ticks(end, most) };
}

/** Round numbers between two, for a logarithmic axis. */
function decades(low, high, most) {
  const powers = Array.from({ length: Math.ceil(Math.log10(high / low)) + 2 }, (_, nth) => 10 ** (Math.floor(Math.log10(low)) + nth));
  const within = (steps) => powers.flatMap((power) => steps.map((step) => step * power)).filter((value) => value >= low && value <= high);
  return [[1, 2, 5], [1, 3], [1]].map(within).find((found) => found.length <= most) ?? within([1]).filter((_, nth) => nth % 2 === 0);
}

/** A scale of accuracies, upwards: as much of 0 to 1 as intervals need. */
function accuracyScale(rows) {
  const [least, greatest] = [Math.min(...rows.map((row) => row.accuracy.low)), Math.max(...rows.map((row) => row.accuracy.high))];
  const step = stepOf(Math.max(greatest - least, 0.01), 4);
  const low = Math.max(0, Math.floor(least / step) * step);
  const high = Math.min(1, Math.ceil(greatest / step) * step);
  const at = (share) => HEIGHT - BOTTOM - ((share - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  return { at, ticks: Array.from({ length: Math.round((high - low) / step) + 1 }, (_, nth) => low + nth * step) };
}

/** Where each point's number stands, as {x, y, anchor}, beside other points and numbers; null where there is no room. */
function numberPlaces(points, width) {
  const taken = points.map(({ x, y }) => ({ x, y, width: 8, height: 8 }));
  const meets = (one, other) => Math.abs(one.x - other.x) < (one.width + other.width) / 2 && Math.abs(one.y - other.y) < (one.height + other.height) / 2;
  return points.map(({ x, y }) => {
    const sides = [[1, -9], [-1, -9], [1, 9], [-1, 9]].map(([side, down]) => ({ side, x: x + side * 20, y: y + down, ...NUMBER }));
    const found = sides.find((box) => box.x < width - NUMBER.width / 2 && !taken.some((other) => meets(box, other)));
    if (!found) return null;
    taken.push(found);
    return { x: x + found.side * 11, y: found.y, anchor: found.side > 0 ? "start" : "end" };
  });
}

export class Scatter {
  #rows = [];
  #current = ""; // the variant that the tab key leads to

  /** `about` says what is drawn: `field` of a variant, `title`, and `written` for the axis; `detail` shows a variant's words. */
  constructor(box, detail, about) {
    this.box = box;
    this.detail = detail;
    this.about = about;
    new ResizeObserver(() => Math.round(box.clientWidth) !== this.width && this.#draw()).observe(box);
  }

  /** Draw variants, each with its number and words; `last` is the name of the one that answered last. */
  show(rows, last) {
    this.#rows = rows.filter((row) => row.accuracy);
    this.last = last;
    this.#draw();
  }

  #draw() {
    this.width = Math.round(this.box.clientWidth);
    if (!this.width || !this.#rows.length) return this.box.replaceChildren();
    const held = this.box.contains(document.activeElement);
    const across = scaleOf(this.#rows.map((row) => row[this.about.field].value), LEFT + 4, this.width - RIGHT, this.width < NARROW ? 3 : 5);
    const up = accuracyScale(this.#rows);
    const label = `${this.about.title}: arrow keys go from variant to variant`;
    const chart = svg("svg", { width: this.width, height: HEIGHT, viewBox: `0 0 ${this.width} ${HEIGHT}`, role: "group", class: "chart", "aria-label": label });
    if (!this.#rows.some((row) => row.name === this.#current)) this.#current = this.#rows[0].name;
    const places = this.#rows.map((row) => ({ x: across.at(row[this.about.field].value), y: up.at(row.accuracy.share) }));
    const numbers = numberPlaces(places, this.width);
    const points = this.#rows.map((row, index) => this.#point(row, places[index], numbers[index], up));
    chart.append(...this.#axes(across, up), ...points);
    walkable(points);
    this.box.replaceChildren(chart);
    if (held) points.find((point) => point.dataset.name === this.#current).focus({ preventScroll: true });
  }

  #axes(across, up) {
    const lines = up.ticks.flatMap((share) => {
      const y = up.at(share);
      const text = svg("text", { x: LEFT - 8, y, class: "tick", "text-anchor": "end", "dominant-baseline": "central" }, percent(share).replace(/\.0(?=%)/, ""));
      return [svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y, class: "grid" }), text];
    });
    const columns = across.ticks.flatMap((value) => {
      const x = across.at(value);
      const anchor = x > this.width - RIGHT - 20 ? "end" : "middle";
      const text = svg("text", { x, y: HEIGHT - 6, class: "tick", "text-anchor": anchor }, this.about.written(value));
      return [svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM + 4, class: "grid" }), text];
    });
    return [...lines, ...columns];
  }

  #point(row, { x, y }, number, up) {
    const is = row.name === this.last ? " last" : "";
    const source = row[this.about.field].source === "measured" ? "" : " predicted";
    const tabindex = row.name === this.#current ? 0 : -1;
    const point = svg("g", { class: `line variant${source}${is}`, role: "img", tabindex, "aria-label": row.text, "data-name": row.name });
    point.append(svg("circle", { cx: x, cy: y, r: 13, class: "ground" }), ...whisker(x, up.at(row.accuracy.high), up.at(row.accuracy.low)));
    if (is) point.append(svg("circle", { cx: x, cy: y, r: 10, class: "ring" }));
    point.append(shapeOf(row.state, x, y));
    const written = `${row.number}${row.release === "canary" ? "*" : ""}`;
    if (number) point.append(svg("text", { x: number.x, y: number.y, "text-anchor": number.anchor, "dominant-baseline": "central" }, written));
    const tell = () => (this.detail.textContent = `${row.text}.`);
    point.addEventListener("pointerenter", tell);
    point.addEventListener("focus", () => {
      this.#current = row.name;
      tell();
    });
    return point;
  }
}
