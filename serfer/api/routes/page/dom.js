// Elements and numbers, as every part of the page makes them. Text is always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => build(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** A table with a caption; the first cell of each row is its header. Numbers are set to the right; elements stand as they are. */
export function table(caption, heads, rows) {
  const cell = (value, index) => {
    const right = typeof value === "number" || /^[-–$<]?[\d.,]+(\s|%|$)/.test(value);
    return html(index ? "td" : "th", { scope: index ? null : "row", class: index && right ? "number" : null }, value instanceof Node ? value : String(value));
  };
  const head = html("thead", {}, html("tr", {}, ...heads.map((text) => html("th", { scope: "col" }, text))));
  const body = html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map(cell))));
  return html("table", {}, html("caption", {}, caption), head, body);
}

const GAP = "\u00a0"; // a number and its unit stay on one line
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);

/** Milliseconds for people: 3.4 ms, 128 ms, 12.3 s. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 9_999.5) return `${tenth.format(ms / 1000)}${GAP}s`;
  return `${(ms < 9.95 ? tenth : whole).format(ms)}${GAP}ms`;
}

export function bytes(value) {
  if (value >= 1024 ** 2) return `${tenth.format(value / 1024 ** 2)}${GAP}MB`;
  return value >= 1024 ? `${tenth.format(value / 1024)}${GAP}kB` : `${value}${GAP}B`;
}

/** Dollars of a million queries that cost `usd` each. */
export const perMillion = (usd) => `$${usd > 0 && usd < 1e-8 ? (usd * 1e6).toPrecision(2) : (usd * 1e6).toFixed(2)}`;

export const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}%`;

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** "2x2" as people write it. */
export const gridText = (stage) => {
  if (stage.spread === "columns") return plural(stage.tasks, "column group");
  return stage.spread === "map" ? `${stage.rows}×${stage.cols} tiles` : "one task";
};

export const titled = (name) => name.replace(/^stage-/, "Stage ");
