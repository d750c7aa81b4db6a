// What a query answered and took: classes or boxes with bars, outputs, the figures, and the comparison with one function.

import { bytes, count, duration, html, percent, perMillion, plural, svg } from "./dom.js";

/** A bar of `share` (0..1) of its place. */
function bar(share) {
  const widths = { rest: 100, full: Math.max(0, Math.min(1, share)) * 100 };
  const rects = Object.entries(widths).map(([kind, width]) => svg("rect", { width, height: 1, class: kind }));
  return svg("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true" }, ...rects);
}

/** An item of a list: what was found, its score as text, and a bar. */
const item = (attributes, what, score, share) =>
  html("li", attributes, html("span", { class: "label" }, ...what), html("span", { class: "number" }, score), bar(share));
const note = (...parts) => html("p", { class: "note" }, ...parts);

const MOST_VALUES = 12; // of a vector

/** What was found in the one image that was sent, by the kind of the answer. */
export function findings(report) {
  const [image] = report.images;
  const parts = image.boxes ? boxes(image.boxes) : image.outputs ? image.outputs.map(output) : [predictions(image.predictions)];
  if (report.untrained) parts.push(note("This network's weights are random: its answers mean nothing."));
  return [html("h3", {}, "What it shows"), ...parts];
}

/** One line that says the same. */
export function summary(report) {
  const [image] = report.images;
  if (image.boxes) return image.boxes.length ? `${plural(image.boxes.length, "object")}, first ${named(image.boxes[0])}` : "nothing was found";
  if (image.outputs) return image.outputs.map((one) => one.name).join(", ");
  return named(image.predictions[0]);
}

const named = ({ label, score }) => `${label}${score >= 0 && score <= 1 ? `, ${percent(score)}` : ""}`;

/** The boxes as a list; each item has the number of its box in `data-box`. */
function boxes(found) {
  if (!found.length) return [note("Nothing was found.")];
  const key = () => html("span", { class: "key own" });
  const items = found.map(({ label, score, index }, number) =>
    item({ "data-box": number, class: `s${index % 8}` }, [key(), label], percent(score), score));
  return [html("ol", { class: "classes boxes scroll", tabindex: 0, role: "region", "aria-label": "Boxes" }, ...items)];
}

/** A map as a picture, a vector's first values, or where the service keeps an output. */
function output({ name, type, shape, values, png, href }) {
  const what = html("p", {}, html("strong", {}, name), ` ${shape.join("×") || "1"} ${type}`);
  if (png) {
    const url = URL.createObjectURL(new Blob([Uint8Array.from(atob(png), (sign) => sign.charCodeAt(0))], { type: "image/png" }));
    const image = html("img", { src: url, alt: `The output ${name}`, class: "map" });
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    return html("div", {}, what, image);
  }
  if (values) return html("div", {}, what, note(`${values.slice(0, MOST_VALUES).map((value) => (Number.isInteger(value) ? `${value}` : value.toPrecision(4))).join(" ")}${values.length > MOST_VALUES ? " …" : ""}`));
  return html("div", {}, what, note(...(href ? ["Kept as a zarr array at ", html("code", {}, href)] : ["No picture holds it."])));
}

/** The best classes; scores that are not shares are shown as they are. */
function predictions(found) {
  const shares = found.every(({ score }) => score >= 0 && score <= 1);
  const most = Math.max(...found.map(({ score }) => Math.abs(score))) || 1;
  const items = found.map(({ label, score }) =>
    item({}, [label], shares ? percent(score) : score.toFixed(2), shares ? score : Math.abs(score) / most));
  return html("ol", { class: "classes" }, ...items);
}

const MISSED = {
  latency_ms: (ms) => `Misses the latency by ${duration(ms)}`,
  min_accuracy: (share) => `Misses the accuracy by ${(share * 100).toFixed(1)} percentage points, counted from its interval's lower end`,
  max_cost_usd: (usd) => `Misses the cost by ${perMillion(usd)} for a million queries`,
};

/** Which variant answered a query of an application, why, and what it misses; `trial` says whether a canary is on trial. */
export function selection(selected, trial) {
  const { variant, network, version, place, release, reason, missed, canary, failed } = selected;
  const missing = Object.entries(missed).map(([name, value]) => html("li", {}, `${MISSED[name]?.(value) ?? `Misses ${name} by ${value}`}.`));
  const parts = [
    html("h3", {}, "Selected variant"),
    html("p", {}, html("strong", {}, variant), canary ? ", a canary" : null, `: network ${network}@${version} on ${place}, release ${release}${canary ? " being live" : ""}.`),
    html("p", {}, `Why: ${reason}.`),
  ];
  if (missing.length) parts.push(html("ul", { class: "missed" }, ...missing));
  if (failed) parts.push(html("p", { class: "missed" }, `${trial ? "The canary, or another variant," : "Another variant"} was selected first and failed: ${failed}`));
  return parts;
}

function fact(name, value, note) {
  return html("div", {}, html("dt", {}, name), html("dd", { class: "value" }, value), html("dd", { class: "note" }, note));
}

const NO_STAGES = { cache: "from an answer that was kept", gpu: "on an instance of the pool, decoding included" };

/** What a query costs: an instance's price is its own, a function's is predicted, for times of another machine are no price of Lambda's. */
function cost(report, model) {
  if (report.target === "gpu") return fact("Cost", perMillion(report.cost_usd), "a million such queries, at the instance's full load");
  if (report.target === "cache") return fact("Cost", perMillion(0), "nothing ran");
  return fact("Cost", model ? perMillion(model.predicted_cost_usd) : "–", "a million such queries on Lambda, warm, as predicted");
}

/** The figures of a query; `model` is the plan that answered it, null where it is not known. */
export function facts(report, model) {
  const sum = (field) => report.stages.reduce((total, stage) => total + stage[field], 0);
  const [tasks, cold, came, left] = ["tasks", "cold", "bytes_in", "bytes_out"].map(sum);
  const { puts, gets, exists } = report.store;
  const again = report.retries + report.hedges + report.restarts;
  return [
    fact("Latency", duration(report.latency_ms), NO_STAGES[report.target] ?? "measured, decoding included"),
    cost(report, model),
    fact("Tensors moved", bytes(came + left), `${bytes(came)} read, ${bytes(left)} written`),
    fact("Store requests", count(puts + gets + exists), `${plural(gets, "get")}, ${plural(puts, "put")}, ${count(exists)} other`),
    fact("Cold starts", count(cold), `of ${plural(tasks, "task")}`),
    fact("Done again", count(again), `${count(report.retries)} retried, ${count(report.hedges)} hedged, ${count(report.restarts)} restarted`),
  ];
}

/** Whether a plan is the whole network in one function: then there is nothing to compare it with. */
export const isWhole = (model) => model.tasks === 1;

/** How a query of this service was measured: not as a price, and not as Lambda would be when warm. */
function asMeasured(report) {
  const [cold, tasks] = ["cold", "tasks"].map((field) => report.stages.reduce((total, stage) => total + stage[field], 0));
  const kind = cold ? `measured here, ${cold} of ${plural(tasks, "task")} cold` : "measured here";
  return { name: "This query", kind, ms: report.latency_ms, usd: report.target === "gpu" ? report.cost_usd : null, measured: true };
}

/** A model's plan against the whole network in one function, as predicted, and the query as measured, if there is one. */
export function comparison(model, report) {
  const itself = (one) => one.predicted_ms === model.predicted_ms && one.predicted_cost_usd === model.predicted_cost_usd;
  const lines = [
    ...(report ? [asMeasured(report)] : []),
    { name: `This plan, ${plural(model.tasks, "task")}`, kind: "predicted", ms: model.predicted_ms, usd: model.predicted_cost_usd },
    ...model.unsplit.filter((one) => !isWhole(model) || !itself(one)).map((one) => ({
      name: `Unsplit, ${grouped(one.stages)}`,
      kind: one.verdict === "does not fit" ? "predicted; does not fit Lambda" : "predicted",
      ms: one.predicted_ms,
      usd: one.predicted_cost_usd,
    })),
  ];
  const [slowest, dearest] = ["ms", "usd"].map((field) => Math.max(...lines.map((line) => line[field])) || 1);
  const cell = (number, share) => html("td", {}, html("span", { class: "number" }, number), bar(share));
  const rows = lines.map(({ name, kind, ms, usd, measured }) => {
    const head = html("th", { scope: "row" }, name, html("span", { class: "note" }, kind));
    const cost = usd === null ? html("td", {}, "–") : cell(perMillion(usd), usd / dearest);
    return html("tr", { class: measured ? "measured" : "predicted" }, head, cell(duration(ms), ms / slowest), cost);
  });
  const heads = ["", "Latency", "A million queries"].map((head) => (head ? html("th", { scope: "col" }, head) : html("td")));
  const parts = [html("table", { class: "compare" }, html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...rows))];
  const store = `What is predicted is the planner's estimate for warm functions on AWS Lambda with a store like ${model.predicted_for}; what is measured is this service, where it runs.`;
  parts.push(note(store));
  if (model.why) parts.push(html("details", {}, html("summary", {}, "Why this plan"), html("p", {}, model.why)));
  return parts;
}

const grouped = (text) => text.replace(/\d{4,}/g, (digits) => count(Number(digits)));
