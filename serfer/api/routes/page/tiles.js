// The picture with a stage's tiles and halos over it, the strip of stages, and both as a table.

import { bytes, count, gridText, html, percent, plural, svg, table, titled } from "./dom.js";

const PATHS = { inline: "with responses and requests", cache: "through the store", objects: "through the object store" };
const GROUPS_HEIGHT = 0.12; // of the picture: the band that stands for a vector's groups

/** The part of a picture that the network sees, in the picture's pixels, as Preprocess.placement of
 * serfer/core/plan/preprocess.py has it; it is larger than the picture where that is padded. */
export function cropOf(width, height, fit, input) {
  if (fit?.pad) return paddedOf(width, height, fit.pad, input);
  if (!fit || fit.resize === null) return { left: 0, top: 0, width, height };
  const shorter = Math.max(fit.resize, Math.round(Math.min(width, height) * Math.max(input.width / width, input.height / height)));
  const whole = [width, height].map((side) => Math.floor((shorter * side) / Math.min(width, height)));
  const total = { width: Math.max(input.width, whole[0]), height: Math.max(input.height, whole[1]) };
  const [across, down] = [width / total.width, height / total.height];
  const [left, top] = [Math.round((total.width - input.width) / 2), Math.round((total.height - input.height) / 2)];
  return { left: left * across, top: top * down, width: input.width * across, height: input.height * down };
}

function paddedOf(width, height, pad, input) {
  if (pad === "square") {
    const side = Math.max(width, height);
    return { left: 0, top: 0, width: side, height: side };
  }
  if (pad === "height") {
    const across = Math.min(input.width, Math.ceil(input.height * (width / height))) / width;
    return { left: 0, top: 0, width: input.width / across, height };
  }
  const ratio = Math.min(input.height / height, input.width / width);
  const [across, down] = [input.width / ratio, input.height / ratio];
  const before = pad === "centre" ? 0.5 : 0; // the share of the padding on the left and above
  return { left: -before * (across - width), top: -before * (down - height), width: across, height: down };
}

export class Tiles {
  #stage = 0;
  #chosen = false; // by hand: from then on the running stage does not take over
  #states = null;
  #picture = null;
  #model = null;
  #absent = "";
  #drawn = [];
  #found = null; // the image of an answer, with its boxes
  #boxes = [];

  /** `parts` are the elements to fill: picture, strip, note, table. */
  constructor(parts) {
    this.parts = parts;
  }

  /** Show a model's plan, as GET /v1/models/NAME describes it; null for none, and `absent` says why. */
  setModel(model, absent = "") {
    this.#model = model;
    this.#absent = absent;
    this.#stage = this.#home;
    this.#chosen = false;
    this.#states = null;
    this.#drawStrip();
    this.#drawPicture();
    this.parts.table.replaceChildren(...(model ? [tilesTable(model)] : []));
  }

  /** Show another picture: its address and size, or null for none. */
  setPicture(picture) {
    this.#picture = picture;
    this.#states = null;
    this.#drawPicture();
    this.#light();
  }

  /** Light up what is done: for each stage and tile "waiting", "running" or "done"; null before any query. */
  show(states) {
    this.#states = states;
    if (states && this.#model && !this.#chosen) {
      const running = states.findIndex((tiles) => tiles.includes("running"));
      const ended = states.flat().every((tile) => tile === "done");
      const next = ended ? this.#home : running >= 0 ? running : this.#stage;
      if (next !== this.#stage) this.#select(next);
    }
    this.#light();
  }

  /** Draw the boxes of an answer's image, which has its size, over the picture; null for none. */
  showBoxes(image) {
    this.#found = image?.boxes ? image : null;
    this.#drawPicture();
    this.#light();
  }

  /** Let a box, by its number, stand out, or no longer. */
  lightBox(number, lit) {
    this.#boxes[number]?.classList.toggle("lit", lit);
  }

  /** The stage to show before and after a query: the first that has tiles. */
  get #home() {
    return Math.max(0, (this.#model?.stages ?? []).findIndex((stage) => stage.spread === "map"));
  }

  #select(number) {
    this.#stage = number;
    this.#drawPicture();
    this.#light();
  }

  #drawStrip() {
    const buttons = (this.#model?.stages ?? []).map((stage, number) => {
      const words = [["strong", titled(stage.name)], ["note", gridText(stage)], ["note state", ""]];
      const spans = words.map(([kind, text]) => html("span", { class: kind }, text));
      const button = html("button", { type: "button", class: `stage s${number % 8}` }, miniature(stage), ...spans);
      button.addEventListener("click", () => {
        this.#chosen = true;
        this.#select(number);
      });
      return button;
    });
    this.parts.strip.replaceChildren(...buttons);
    this.#light();
  }

  #drawPicture() {
    const { fit, input, stages } = this.#model ?? { fit: null, input: { width: 4, height: 3 }, stages: [] };
    const { url, width, height } = this.#picture ?? { url: null, width: input.width, height: input.height };
    const image = url ? html("img", { src: url, alt: "The chosen picture" }) : html("div", { class: "blank" });
    this.parts.picture.style.aspectRatio = `${width} / ${height}`;
    this.parts.picture.style.maxWidth = `${Math.round((26 * width) / height)}rem`;
    if (!this.#model) {
      this.#drawn = [];
      this.parts.picture.replaceChildren(image);
      return this.parts.note.replaceChildren(this.#absent);
    }
    const stage = stages[this.#stage];
    const crop = this.#picture ? cropOf(width, height, fit, input) : { left: 0, top: 0, width, height };
    const told = { role: "img", "aria-label": spoken(stage), class: `s${this.#stage % 8}` };
    const layers = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", ...told }, shade(width, height, crop));
    this.#drawn = shapes(stage, crop);
    layers.append(...this.#drawn.map(({ own }) => own), ...this.#drawn.flatMap(({ around }) => around));
    this.#boxes = this.#picture && this.#found ? boxShapes(this.#found, width, height) : [];
    layers.append(...[...this.#boxes].reverse()); // the best on top
    this.parts.picture.replaceChildren(image, layers);
    this.parts.note.replaceChildren(...noted(stage, this.#stage));
  }

  #light() {
    const stages = [...this.parts.strip.children];
    stages.forEach((button, number) => {
      const tiles = this.#states?.[number];
      button.setAttribute("aria-pressed", number === this.#stage);
      button.querySelector(".state").textContent = tiles ? progressOf(tiles) : `${count(this.#model.stages[number].memory_mb)} MB`;
      [...button.querySelectorAll("rect")].forEach((cell, tile) => cell.setAttribute("class", tiles?.[tile] ?? "planned"));
    });
    const tiles = this.#states?.[this.#stage];
    this.#drawn.forEach(({ own }, tile) => own.setAttribute("class", `tile ${tiles?.[tile] ?? "planned"}`));
  }
}

function progressOf(tiles) {
  const done = tiles.filter((tile) => tile === "done").length;
  if (done === tiles.length) return "done";
  return tiles.includes("running") ? `${done} of ${tiles.length} done` : "waiting";
}

/** A stage's grid, small: a square for each task. */
function miniature(stage) {
  const [cols, rows] = [stage.cols, stage.rows];
  const cells = Array.from({ length: cols * rows }, (_, tile) =>
    svg("rect", { x: (tile % cols) + 0.06, y: Math.floor(tile / cols) + 0.06, width: 0.88, height: 0.88, class: "planned" }),
  );
  return svg("svg", { viewBox: `0 0 ${cols} ${rows}`, preserveAspectRatio: "none", class: "mini", "aria-hidden": "true" }, ...cells);
}

/** What the network does not see, as a shade around the crop. */
function shade(width, height, crop) {
  const { left, top, width: across, height: down } = crop;
  const path = `M0 0H${width}V${height}H0Z M${left} ${top}V${top + down}H${left + across}V${top}Z`;
  return svg("path", { d: path, class: "shade", "fill-rule": "evenodd" });
}

/** An answer's boxes with their classes, on a picture of a size. */
function boxShapes(image, width, height) {
  const [across, down] = [width / image.width, height / image.height];
  const size = Math.max(width, height) / 36;
  return image.boxes.map(({ label, index, score, box: [left, top, right, bottom] }) =>
    svg(
      "g",
      { class: `box s${index % 8}` },
      svg("rect", { x: left * across, y: top * down, width: (right - left) * across, height: (bottom - top) * down }),
      svg("text", { x: left * across + size / 4, y: Math.max(top * down, 0) + size, "font-size": size }, `${label} ${percent(score)}`),
    ),
  );
}

function place(box, crop) {
  const [x, y] = [crop.left + box.left * crop.width, crop.top + box.top * crop.height];
  return { x, y, width: box.width * crop.width, height: box.height * crop.height };
}

/** For each task its own share, and what is drawn around it. */
function shapes(stage, crop) {
  if (stage.spread === "map") {
    return stage.tiles.map((tile, number) => {
      const own = svg("rect", place(tile.own, crop));
      const around = [svg("rect", { ...place(tile.reads, crop), class: "reads" })];
      if (tile.pixels) around.push(svg("rect", { ...place(tile.pixels, crop), class: "pixels" }));
      own.append(svg("title", {}, tileText(stage, number)));
      for (const [event, lit] of [["pointerenter", true], ["pointerleave", false]]) {
        own.addEventListener(event, () => around.forEach((shape) => shape.classList.toggle("lit", lit)));
      }
      return { own, around };
    });
  }
  const many = stage.spread === "columns" ? stage.tasks : 1;
  const height = many > 1 ? GROUPS_HEIGHT : 1;
  return Array.from({ length: many }, (_, number) => ({
    own: svg("rect", place({ left: number / many, top: 1 - height, width: 1 / many, height }, crop)),
    around: [],
  }));
}

const share = (start, size) => `${Math.round(start * 100)}–${Math.round((start + size) * 100)}%`;
const span = (box) => (box ? `${share(box.left, box.width)} across, ${share(box.top, box.height)} down` : "–");
const tileText = (stage, number) => `${titled(stage.name)}, tile ${number}: computes ${span(stage.tiles[number].own)}; reads ${span(stage.tiles[number].reads)}`;

function spoken(stage) {
  if (stage.spread === "map") return `${titled(stage.name)}: ${gridText(stage)} over the part of the picture that the network sees; the table below has their places`;
  return `${titled(stage.name)}: ${gridText(stage)}, which sees all of it`;
}

function noted(stage, number) {
  const { count: many, first, last } = stage.operators;
  const weights = stage.weights_bytes ? ` ${bytes(stage.weights_bytes)} of weights;` : ""; // small ones stand in the graph
  const what = `${plural(many, "operator")}, ${first.kind} to ${last.kind};${weights} ${count(stage.memory_mb)} MB of memory. `;
  const way = `Its output is passed on ${PATHS[stage.output]}.`;
  const head = html("strong", {}, `${titled(stage.name)}: `);
  if (stage.spread === "none") return [head, what, "One task does all of it. ", way];
  if (stage.spread === "columns") return [head, what, "Every task reads the whole input and computes its group of the output's values. ", way];
  const key = [html("span", { class: `key own s${number % 8}` }), "a task's own share, ", html("span", { class: "key reads" }), "what it reads"];
  if (stage.tiles.some((tile) => tile.pixels)) key.push(", ", html("span", { class: "key pixels" }), "the pixels that this depends on");
  return [head, what, ...key, `. Together they read ${percent(stage.halo)} more than there is. `, way];
}

function tilesTable(model) {
  const rows = model.stages.flatMap((stage) =>
    stage.spread === "map"
      ? stage.tiles.map((tile, number) => [stage.name, number, span(tile.own), span(tile.reads), stage.name === "stage-0" ? span(tile.reads) : span(tile.pixels)])
      : [[stage.name, stage.tasks === 1 ? 0 : `0–${stage.tasks - 1}`, gridText(stage), "everything", "everything"]],
  );
  const caption = "Where each tile lies, as shares of the part of the picture that the network sees";
  return table(caption, ["Stage", "Tile", "Computes", "Reads", "Depends on pixels"], rows);
}
