// What a query asks of an application: its fields, what is wrong with them at the field, and the request's parameters.

import { byId, html, perMillion } from "./dom.js";

const FIELDS = [
  { id: "latency", name: "latency_ms", wrong: (ms) => (ms > 0 && ms <= 900_000 ? "" : "Write milliseconds: a number above 0, at most 900000."), sent: (ms) => ms },
  { id: "accuracy", name: "min_accuracy", wrong: wrongShare, sent: (share) => share / 100 },
  { id: "cost", name: "max_cost_usd", wrong: (usd) => (usd >= 0 && usd <= 1_000_000 ? "" : "Write dollars for one query: 0 or more, such as 0.00001."), sent: (usd) => usd },
];
const COST_HINT = "0.00001 is $10.00 a million queries.";

function wrongShare(share) {
  if (share > 0 && share <= 1) return `Write percent: 70 for 70 of 100 right. ${share} would be ${share}%.`;
  return share >= 0 && share <= 100 ? "" : "Write percent: a number from 0 to 100.";
}

export class ObjectiveFields {
  #variants = "";

  /** `chosen` is called when another variant is chosen. */
  constructor(chosen) {
    for (const field of FIELDS) {
      const input = byId(field.id);
      // Not when a field is left: words that appear then would move the button that is being pressed.
      input.addEventListener("input", () => input.hasAttribute("aria-invalid") && check(field));
    }
    byId("cost").addEventListener("input", tellCost);
    byId("variant").addEventListener("change", chosen);
  }

  /** Show the fields for an application, as GET /v1/applications/NAME describes it; null hides them. */
  show(application) {
    byId("objectives").hidden = !application;
    const names = application ? application.table.map((row) => row.name).sort() : [];
    if (names.join() === this.#variants) return; // a list that is open stays so
    this.#variants = names.join();
    const [select, before] = [byId("variant"), byId("variant").value];
    const options = names.map((name) => html("option", { value: name }, name));
    select.replaceChildren(html("option", { value: "" }, "selected for me"), ...options);
    select.value = names.includes(before) ? before : "";
  }

  get variant() { return byId("variant").value; }

  /** Return the request's parameters, without what is not asked; or the first field that is `wrong`. */
  read() {
    const wrong = FIELDS.filter((field) => check(field)).map((field) => byId(field.id));
    if (wrong.length) return { wrong: wrong[0] };
    const filled = FIELDS.filter(({ id }) => byId(id).value !== "");
    const parameters = Object.fromEntries(filled.map(({ id, name, sent }) => [name, sent(byId(id).valueAsNumber)]));
    if (this.variant) parameters.variant = this.variant;
    if (byId("strict").checked) parameters.strict = "true";
    return { parameters };
  }
}

/** Say at a field what is wrong with it; returns that, empty where nothing is. */
function check({ id, wrong }) {
  const [input, note] = [byId(id), byId(`${id}-wrong`)];
  const empty = input.value === "" && !input.validity.badInput;
  const found = empty ? "" : wrong(input.valueAsNumber);
  note.textContent = found;
  note.hidden = !found;
  if (found) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  return found;
}

function tellCost() {
  const usd = byId("cost").valueAsNumber;
  byId("cost-hint").textContent = usd >= 0 ? `${perMillion(usd)} a million queries.` : COST_HINT;
}
