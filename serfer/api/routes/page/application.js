// An application beside the answer: its variants as a table, and its canary's trial; asked for again while it is seen.

import { pause } from "./api.js";
import { byId, count, duration, html, percent, perMillion, plural, table } from "./dom.js";

const REFRESH_MS = 2000;

/** Networks with their versions: "small@1, other@2". */
export const networksText = (networks) => Object.entries(networks).map(([name, version]) => `${name}@${version}`).join(", ");

const moment = (since) => (Number.isNaN(Date.parse(since)) ? since : `${new Date(since).toISOString().replace("T", " ").slice(0, 16)} UTC`);
const interval = ({ share, low, high }) => `${percent(share)} (${percent(low)} to ${percent(high)})`;
const sourced = (written, figure) => `${written(figure.value)} ${figure.source}`;

const BEST_FIRST = ["active", "interfered", "overloaded"]; // else inactive

/** What a variant's best place is in. */
const stateOf = (places) => BEST_FIRST.find((state) => Object.values(places).includes(state)) ?? "inactive";

/** The states of a variant at several places: "1 active, 2 inactive"; empty for one place. */
function placesText(places) {
  const states = Object.values(places);
  if (states.length < 2) return "";
  return [...new Set(states)].map((state) => `${states.filter((one) => one === state).length} ${state}`).join(", ");
}

export class ApplicationPanel {
  #watching = null; // an AbortController
  #drawn = "";
  #last = "";

  /** `ask` returns an application by name and signal; `told` is given what was found each time. */
  constructor(ask, told) {
    this.ask = ask;
    this.told = told;
  }

  /** Show an application from now on; null shows none. */
  watch(application) {
    this.#watching?.abort();
    this.#last = this.#drawn = "";
    byId("application-box").hidden = !application;
    if (!application) return;
    this.#watching = new AbortController();
    this.#show(application);
    this.#follow(application.name, this.#watching.signal);
  }

  /** Highlight the variant that answered last, and look again. */
  answered(variant) {
    this.#last = variant;
    if (this.application) this.#show(this.application);
  }

  async #follow(name, signal) {
    while (!signal.aborted) {
      try {
        await pause(REFRESH_MS, signal);
        if (document.hidden) await seen(signal);
        this.#show(await this.ask(name, signal));
        byId("application-stale").hidden = true;
      } catch (problem) {
        if (signal.aborted) return;
        byId("application-stale").textContent = `Not up to date: the service does not say how it is now (${problem.message})`;
        byId("application-stale").hidden = false;
      }
    }
  }

  #show(application) {
    this.application = application;
    this.told(application);
    const state = JSON.stringify([application, this.#last]);
    if (state === this.#drawn) return; // what is pointed at or read stays
    this.#drawn = state;
    const { name, release, networks, canary, taken_back: gone } = application;
    byId("application-title").textContent = `Application ${name}`;
    byId("application-note").textContent = `Release ${release}: ${networksText(networks)}. ${plural(application.table.length, "variant")}.`;
    const rows = application.table.map((row, index) => ({ ...row, number: index + 1, state: stateOf(row.places), places: placesText(row.places) }));
    byId("variants-table").replaceChildren(variantsTable(rows, this.#last));
    byId("canary").replaceChildren(...(canary ? trial(canary) : []), ...(gone ? [takenBack(gone)] : []));
  }
}

/** Wait until the page is looked at. */
function seen(signal) {
  return new Promise((resolve, reject) => {
    const options = { signal, once: true };
    document.addEventListener("visibilitychange", resolve, options);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

function variantsTable(rows, last) {
  const heads = ["Variant", "State", "Accuracy (95% interval)", "Latency", "A million queries", "Network", "Runs", "Loading", "Memory", "Throughput", "In this driver"];
  const cells = rows.map((row) => [
    html("span", {}, `${row.number} ${row.name}`, row.name === last ? html("span", { class: "strong" }, " · answered last") : null),
    `${row.state}${row.places ? ` (${row.places})` : ""}`,
    row.accuracy ? interval(row.accuracy) : "not measured",
    sourced(duration, row.latency_ms),
    sourced(perMillion, row.cost_usd),
    row.release ? `${row.network}@${row.version}, ${row.release}` : `${row.network}@${row.version}`,
    `${row.precision} on ${row.place}, ${plural(row.tasks, "task")}`,
    sourced(duration, row.load_ms),
    sourced((mb) => `${count(mb)} MB`, row.peak_mb),
    sourced((qps) => `${qps < 10 ? qps.toFixed(1) : count(qps)} queries/s`, row.qps),
    `${row.place === "functions" ? `${row.open ? "open" : "not open"}, ` : ""}${count(row.in_flight)} in flight`,
  ]);
  const made = table("Variants, the cheapest first", heads, cells);
  [...made.tBodies[0].rows].forEach((line, index) => line.classList.toggle("last", rows[index].name === last));
  return made;
}

function trial(canary) {
  const { networks, share, since, by, shadow, verdict, why, compared, agreed } = canary;
  const what = shadow ? `Copies of ${percent(share)} of the queries go to` : `${percent(share)} of the queries are answered by`;
  const parts = [
    html("h3", {}, shadow ? "Shadow on trial" : "Canary on trial"),
    html("p", {}, `${what} ${networksText(networks)}, since ${moment(since)}, started by ${by}.`),
    html("p", {}, html("strong", {}, `Verdict so far: ${verdict}.`), why ? ` ${why}` : null),
    trialTable(canary),
  ];
  if (shadow) parts.push(html("p", { class: "note" }, `${count(agreed)} of ${count(compared)} copies had the same best classes as the live answer, in this driver.`));
  return parts;
}

function trialTable({ canary, live }) {
  const line = (name, { queries, error_rate: failed, p95_ms: p95 }) => [name, count(queries), queries ? percent(failed) : "–", duration(p95)];
  return table("How queries ended since the trial began", ["Release", "Queries", "Failed", "95% answered within"], [line("canary", canary), line("live", live)]);
}

const takenBack = (why) => html("p", {}, html("strong", {}, "The last canary was taken back: "), why);
