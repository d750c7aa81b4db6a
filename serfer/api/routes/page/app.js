// The page: a picture, a model or an application, and a key come in; a query goes out, is followed, and is shown.

import { comparison, facts, findings, isWhole, selection, summary } from "./answer.js";
import { pause, Problem, Service } from "./api.js";
import { ApplicationPanel, networksText } from "./application.js";
import { byId, bytes, duration, html, plural } from "./dom.js";
import { ObjectiveFields } from "./objectives.js";
import { Tiles } from "./tiles.js";

const KEY = "serfer-key";
const MOST_RETRIES = 10;

const service = new Service();
const tiles = new Tiles({ picture: byId("picture"), strip: byId("stages"), note: byId("tiles-note"), table: byId("tiles-table") });
const objectives = new ObjectiveFields(() => showVariantsPlan().catch(fail));
const panel = new ApplicationPanel((name, signal) => service.application(name, signal), (found) => {
  application = found;
  objectives.show(found);
});
const still = matchMedia("(prefers-reduced-motion: reduce)");
const narrow = matchMedia("(max-width: 60rem)"); // the form stands above its result, as in style.css

let model = null; // whose plan is on show, as GET /v1/models/NAME describes it: of an application one of its open variants, or null
let application = null; // as GET /v1/applications/NAME describes it, where one is asked in place of a model
let file = null;
let address = null; // of the picture, for this page alone
let running = null; // an AbortController while a query is under way

const say = (text) => (byId("status").textContent = text);

function complain(problem) {
  const box = byId("problem");
  box.hidden = !problem;
  if (!problem) return box.replaceChildren();
  const status = problem.status ? ` (${problem.status})` : "";
  const parts = [html("strong", {}, `${problem.title}${status}`), html("span", {}, problem.message)];
  if (problem.requestId) parts.push(html("span", { class: "note" }, "Request ", html("code", {}, problem.requestId)));
  box.replaceChildren(...parts);
  box.scrollIntoView({ block: "nearest" });
  if (problem.status === 401) askForKey();
}

function askForKey() {
  byId("key-box").open = true;
  byId("key").focus();
}

// ── what is asked ─────────────────────────────────────────────────────────────────────────────────────────────────────

async function loadChoices() {
  try {
    const [models, applications] = await Promise.all([service.models(), service.applications()]);
    const options = models.map((one) => html("option", { value: one.name, selected: one.default }, `${one.name} · ${one.plan.slice(0, 8)}`));
    const others = applications.map((one) => html("option", { value: one.name, "data-application": "yes" }, `${one.name} · ${plural(one.variants, "variant")}`));
    const groups = [["Models", options], ["Applications", others]].filter(([, group]) => group.length);
    const before = byId("model").value;
    byId("model").replaceChildren(...(others.length ? groups.map(([label, group]) => html("optgroup", { label }, ...group)) : options));
    if ([...models, ...applications].some(({ name }) => name === before)) byId("model").value = before;
    byId("model-label").textContent = groups.map(([label], nth) => (nth ? label.toLowerCase() : label).slice(0, -1)).join(" or ");
    byId("model").disabled = false;
    await choose();
    complain(null);
  } catch (error) {
    complain(asProblem(error));
  }
}

async function choose() {
  const [option] = byId("model").selectedOptions;
  const isChosen = () => option === byId("model").selectedOptions[0]; // else another one was chosen meanwhile
  let [found, plan] = [null, null];
  try {
    found = option.dataset.application ? await service.application(option.value) : null;
    plan = found ? await planOf(found, "") : await service.model(option.value);
  } catch (problem) {
    if (!isChosen()) return;
    forgetModel(); // what is on show is another model's
    throw problem;
  }
  if (!isChosen()) return;
  application = found;
  objectives.show(found);
  panel.watch(found);
  byId("top-k").max = Math.max(1, Math.min(20, (found ?? plan).classes));
  byId("top-k").closest(".field").hidden = !(found ?? plan).classes;
  setPlan(plan);
  byId("classify").textContent = verb();
  forgetAnswer();
}

/** Take model, application and answer away, where it is not known what was chosen. */
function forgetModel() {
  application = null;
  objectives.show(null);
  panel.watch(null);
  setPlan(null, "No plan to show: the service did not describe it.");
  forgetAnswer();
}

/** The plan of a variant that is open, by default the cheapest such; null where none is. */
async function planOf({ name, table }, variant) {
  const row = table.find((one) => one.open && (!variant || one.name === variant));
  return row ? variantsPlan(name, row.name) : null;
}

/** A variant's plan; null where it is not open, or no longer. */
async function variantsPlan(name, variant, signal) {
  try {
    return await service.model(`${name}:${variant}`, signal);
  } catch (problem) {
    if (problem.status === 404) return null;
    throw problem;
  }
}

/** Show the plan of the variant that was chosen by hand. */
async function showVariantsPlan() {
  const [asked, variant] = [application, objectives.variant];
  const plan = await planOf(asked, variant);
  if (running || asked.name !== application?.name || variant !== objectives.variant) return;
  setPlan(plan);
  forgetAnswer();
}

const NOT_OPEN = "No plan to show: the variant is not open in this driver, or no longer. A query that it answers opens it.";
const ON_INSTANCE = "No plan to show: the variant ran on an instance, as a whole.";

function setPlan(plan, absent = NOT_OPEN) {
  model = plan;
  const variant = application && plan ? plan.name.slice(application.name.length + 1) : "";
  byId("model-note").replaceChildren(...(application ? applicationNote(variant) : plan ? modelNote(plan) : []));
  byId("tiles-title").textContent = plan && isWhole(plan) ? "One function" : "Stages and tiles";
  byId("tiles-table-box").hidden = !plan || isWhole(plan);
  tiles.setModel(plan, absent);
}

function modelNote({ input, weights, plan, stages, tasks }) {
  return [`${input.width}×${input.height} pixels, ${plural(stages.length, "stage")}, ${plural(tasks, "task")}. Weights: ${weights}. Plan `, html("code", { title: plan }, plan.slice(0, 12))];
}

function applicationNote(variant) {
  const { networks, table } = application;
  return [`One of ${plural(table.length, "variant")} of ${networksText(networks)} answers. ${variant ? `The plan on show is ${variant}'s.` : "No variant's plan is on show."}`];
}

function choosePicture(chosen) {
  if (!chosen) return;
  if (address) URL.revokeObjectURL(address);
  file = chosen;
  address = URL.createObjectURL(chosen);
  byId("file-name").hidden = false;
  byId("file-name").textContent = `${chosen.name || "pasted picture"}, ${bytes(chosen.size)}`;
  complain(null);
  forgetAnswer();
  const image = new Image();
  const mine = address;
  image.onload = () => mine === address && tiles.setPicture({ url: mine, width: image.naturalWidth, height: image.naturalHeight });
  image.onerror = () => mine === address && tiles.setPicture(null); // the server may read what this browser cannot show
  image.src = address;
}

/** What the button does: of networks that do not classify, what they do. */
const verb = () => (application || !model || model.classes ? "Classify" : model.kind === "boxes" ? "Detect" : "Run");

/** Take an answer that is on show away: it was another picture's, or another model's. */
function forgetAnswer() {
  say("");
  tiles.show(null);
  tiles.showBoxes(null);
  byId("after").hidden = byId("raw-box").hidden = true;
  byId("progress").textContent = "";
  const { stages, predicted_ms: ms, tasks } = model ?? { stages: [], tasks: 0 };
  const plan = model ? `${plural(tasks, "task")} in ${plural(stages.length, "stage")}, ${duration(ms)} predicted when warm.` : "";
  byId("answer").replaceChildren(html("h3", {}, "What it shows"), html("p", { class: "note" }, file ? `Press ${verb()} to ask.` : "Choose a picture to begin."), html("p", { class: "note" }, plan));
  showComparison(null);
}

function showComparison(report) {
  byId("compare-box").hidden = !model?.unsplit.length && !(model && report);
  if (!model) return;
  byId("compare-title").textContent = isWhole(model) ? "Measured and predicted" : "Against one function";
  byId("compare").replaceChildren(...comparison(model, report));
}

// ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function run() {
  if (running) return;
  complain(null);
  if (!file) {
    byId("file").focus();
    return complain(new Problem({ title: "No picture", detail: "Choose a picture first." }));
  }
  if (!model && !application) await loadChoices();
  const parameters = model || application ? requested() : null;
  if (!parameters) return;
  running = new AbortController();
  busy(true);
  forgetAnswer();
  byId("answer").replaceChildren(html("h3", {}, "What it shows"), html("p", { class: "note" }, "Waiting for the answer"));
  try {
    await query(parameters, running.signal);
  } catch (error) {
    const stopped = error?.name === "AbortError";
    forgetAnswer();
    say(stopped ? "Cancelled." : "");
    if (!stopped) complain(asProblem(error));
  } finally {
    running = null;
    busy(false);
  }
}

/** What is asked, as the request's parameters; null where it cannot be, which is said. */
function requested() {
  const most = Math.min(Math.max(1, byId("top-k").valueAsNumber || 5), (application ?? model).classes);
  if (application) {
    const { parameters, wrong } = objectives.read();
    wrong?.focus();
    return parameters ? { route: "classify", application: application.name, ...parameters, top_k: most } : null;
  }
  return model.classes ? { route: "classify", model: model.name, top_k: most } : { route: "predict", model: model.name };
}

function busy(yes) {
  byId("classify").disabled = byId("model").disabled = yes;
  byId("cancel").disabled = !yes;
  byId("ask").setAttribute("aria-busy", yes);
  if (!yes && document.activeElement === document.body) byId("classify").focus({ preventScroll: true });
}

async function query(parameters, signal) {
  say("Sent.");
  if (narrow.matches) byId("result").scrollIntoView({ behavior: still.matches ? "auto" : "smooth" });
  const first = await patiently(() => service.ask(file, parameters, signal), signal);
  let state = first;
  try {
    for await (state of service.follow(first, signal)) showProgress(state);
  } catch (error) {
    if (signal.aborted && first.id) await service.forget(first.id);
    throw error;
  }
  if (state.status === "failed") throw new Problem(state.problem ?? {});
  if (state.result.selected) await showSelected(state.result, signal);
  showAnswer(state.result);
}

/** Show the plan of the variant that answered; none where it was closed meanwhile, or is another one's by now. */
async function showSelected({ selected, plan }, signal) {
  panel.answered(selected.variant);
  const name = `${selected.application}:${selected.variant}`;
  if (model?.name === name && model.plan === plan) return;
  let found = null;
  try {
    found = await variantsPlan(selected.application, selected.variant, signal);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem; // an answer is not lost for want of its plan
  }
  setPlan(found?.plan === plan ? found : null, selected.place === "functions" ? NOT_OPEN : ON_INSTANCE);
}

/** Ask, and ask again when a full service said to come back later. */
async function patiently(ask, signal) {
  for (let retries = 0; ; retries += 1) {
    try {
      return await ask();
    } catch (problem) {
      if (problem.status !== 429 || retries >= MOST_RETRIES) throw problem;
      complain(problem);
      await countDown(problem.retryAfter ?? 1, signal);
      complain(null);
    }
  }
}

async function countDown(seconds, signal) {
  const box = byId("countdown");
  box.hidden = false;
  try {
    for (let left = seconds; left > 0; left -= 1) {
      box.textContent = `Trying again in ${left} s`;
      await pause(1000, signal);
    }
  } finally {
    box.hidden = true;
  }
}

const fail = (error) => complain(asProblem(error));

function asProblem(error) {
  if (error instanceof Problem) return error;
  console.error(error);
  return new Problem({ title: "The page failed", detail: `This is a bug of the page: ${error?.message ?? error}` });
}

// ── showing ───────────────────────────────────────────────────────────────────────────────────────────────────────────

function showProgress(state) {
  if (!state.stages.length) return;
  const sizes = (stages) => stages.map((stage) => stage.tasks).join();
  if (model && sizes(model.stages) === sizes(state.stages)) tiles.show(state.stages.map((stage) => stage.tiles.map((done) => (done ? "done" : stage.started_ms === null ? "waiting" : "running"))));
  const [done, tasks] = ["done", "tasks"].map((field) => state.stages.reduce((sum, stage) => sum + stage[field], 0));
  byId("progress").textContent = state.status === "queued" ? "Waiting for its turn" : `${done} of ${plural(tasks, "task")} done`;
}

function showAnswer(report) {
  const by = report.selected ? ` by ${report.selected.variant}` : "";
  say(`Done in ${duration(report.latency_ms)}${by}: ${summary(report)}.`);
  byId("progress").textContent = "";
  byId("answer").replaceChildren(...findings(report), ...(report.selected ? selection(report.selected, Boolean(application?.canary)) : []));
  tiles.showBoxes(report.images[0]);
  byId("facts").replaceChildren(...facts(report, model));
  byId("after").hidden = false;
  showComparison(report);
  byId("raw-box").hidden = false;
  byId("raw").textContent = JSON.stringify(report, null, 2);
  if (model) tiles.show(model.stages.map((stage) => Array(stage.tasks).fill("done")));
}

// ── what the page listens to ──────────────────────────────────────────────────────────────────────────────────────────

function useKey(keep) {
  service.key = byId("key").value.replace(/[^!-~]/g, ""); // nothing else can stand in a header
  if (keep && service.key) sessionStorage.setItem(KEY, service.key);
  else sessionStorage.removeItem(KEY);
}

byId("file").addEventListener("change", (event) => choosePicture(event.target.files[0]));
byId("model").addEventListener("change", () => {
  complain(null); // it was about another model
  choose().catch(fail);
});
byId("key").addEventListener("change", async () => {
  useKey(byId("keep-key").checked);
  if (!model && !application) await loadChoices();
});
byId("keep-key").addEventListener("change", (event) => useKey(event.target.checked));
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
byId("cancel").addEventListener("click", () => running?.abort());
for (const [event, lit] of [["pointerover", true], ["pointerout", false]]) {
  byId("answer").addEventListener(event, ({ target }) => tiles.lightBox(target.closest("[data-box]")?.dataset.box, lit));
}

addEventListener("paste", (event) => choosePicture([...event.clipboardData.files].find((one) => one.type.startsWith("image/"))));
addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("drop").classList.add("over");
});
addEventListener("dragleave", () => byId("drop").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  choosePicture(event.dataTransfer.files[0]);
});

const kept = sessionStorage.getItem(KEY);
if (kept) {
  byId("key").value = service.key = kept;
  byId("keep-key").checked = true;
}
loadChoices();
