// The API as /openapi.json describes it: every operation with its parameters, bodies and answers, and a form to try it.

import { Service } from "./api.js";
import { byId, bytes, html } from "./dom.js";

const METHODS = ["get", "head", "post", "put", "patch", "delete"];

/** Write a schema in a line: names, types, what is optional (?) and what may be null. */
function typeOf(schema, document, depth = 0) {
  if (!schema || !Object.keys(schema).length) return "anything";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth ? name : typeOf(document.components.schemas[name], document, depth);
  }
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.map((one) => typeOf(one, document, depth + 1)).join(" | ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `[${typeOf(schema.items, document, depth + 1)}, …]`;
  if (schema.properties) return fieldsOf(schema, document, depth);
  return [schema.type ?? "object", schema.format ?? schema.contentEncoding].filter(Boolean).join(" ") + limitsOf(schema);
}

function fieldsOf(schema, document, depth) {
  const required = schema.required ?? [];
  const indent = "  ".repeat(depth + 1);
  const fields = Object.entries(schema.properties).map(
    ([name, value]) => `${indent}"${name}"${required.includes(name) ? "" : "?"}: ${typeOf(value, document, depth + 1)}`,
  );
  return `{\n${fields.join(",\n")}\n${"  ".repeat(depth)}}`;
}

function limitsOf(schema) {
  const words = { minimum: "from", exclusiveMinimum: "above", maximum: "to", maxLength: "at most", pattern: "like" };
  const found = Object.entries(words).filter(([name]) => name in schema).map(([name, word]) => `${word} ${schema[name]}`);
  const start = schema.default === undefined || schema.default === null ? [] : [`default ${schema.default}`];
  return [...found, ...start].length ? ` (${[...found, ...start].join(", ")})` : "";
}

/** The schemas that a schema names, and those that they name. */
function named(schema, document, known = new Set()) {
  for (const [, name] of JSON.stringify(schema ?? {}).matchAll(/#\/components\/schemas\/([^"]+)"/g)) {
    if (!known.has(name)) named(document.components.schemas[name], document, known.add(name));
  }
  return known;
}

function shape(schema, document) {
  const top = schema?.$ref?.split("/").pop();
  const others = [...named(schema, document)].filter((name) => name !== top);
  const texts = others.map((name) => `${name}: ${typeOf(document.components.schemas[name], document)}`);
  return html("pre", {}, [typeOf(schema, document), ...texts].join("\n\n"));
}

/** A body in each of its types, those of one shape together. */
function content(body, document) {
  const shapes = new Map();
  for (const [type, { schema }] of Object.entries(body?.content ?? {})) {
    const known = JSON.stringify(schema ?? {});
    shapes.set(known, { schema, types: [...(shapes.get(known)?.types ?? []), type] });
  }
  return [...shapes.values()].map(({ schema, types }) => html("details", {}, html("summary", {}, types.join(", ")), shape(schema, document)));
}

function parameterRow({ name, in: where, required, description, schema }, document) {
  return html("tr", {}, html("th", { scope: "row" }, html("code", {}, name)), html("td", {}, where + (required ? ", required" : "")), html("td", { class: "wrap" }, `${typeOf(schema, document)}. ${description ?? ""}`));
}

function answer([status, response], document) {
  const headers = Object.keys(response.headers ?? {});
  const text = `${response.description}${headers.length ? ` Headers: ${headers.join(", ")}.` : ""}`;
  return html("div", { class: "answered" }, html("p", {}, html("strong", {}, status), ` ${text}`), ...content(response, document));
}

const isFile = (schema) => schema?.format === "binary" || (schema?.type === "array" && isFile(schema.items));

/** The fields of a body of a type, [name, input]: one for each part of a form, else one for all of it. */
function bodyFields(type, schema) {
  const input = (name, what) => [name, isFile(what) ? html("input", { type: "file", multiple: what.type === "array" }) : html("textarea", { rows: 3, spellcheck: "false" })];
  if (type !== "multipart/form-data") return [input("body", schema)];
  return Object.entries(schema.properties ?? {}).map(([name, what]) => input(name, what));
}

/** What a request has as its body: a form's parts, a file or a text; undefined for none. */
function bodyOf(type, fields) {
  if (type !== "multipart/form-data") {
    const [[, input]] = fields;
    return input.files ? input.files[0] : input.value || undefined;
  }
  const form = new FormData();
  for (const [name, input] of fields) {
    for (const part of input.files ?? (input.value ? [input.value] : [])) form.append(name, part);
  }
  return form;
}

/** An answer's status and body: JSON with line breaks, a picture as such, of other bytes how many there are. */
async function answered(response) {
  const type = response.headers.get("Content-Type") ?? "";
  const head = html("p", {}, html("strong", {}, `${response.status} ${response.statusText}`), ` ${type}`);
  if (type.startsWith("image/")) {
    const url = URL.createObjectURL(await response.blob());
    const image = html("img", { src: url, alt: "The answer", class: "map" });
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    return [head, image];
  }
  if (!/json|text/.test(type)) return [head, html("p", {}, bytes((await response.blob()).size))];
  const text = await response.text();
  const lines = /[/+]json(;|$)/.test(type) ? JSON.stringify(JSON.parse(text), null, 2) : text;
  return [head, html("pre", { tabindex: 0, role: "region", "aria-label": "The answer's body" }, lines)];
}

/** A form that sends an operation to this service. */
function tryIt(path, method, { parameters = [], requestBody }, document) {
  const given = parameters.map(({ name, in: where, required }) => [name, where, html("input", { type: "text", required, autocomplete: "off", spellcheck: "false" })]);
  const types = Object.entries(requestBody?.content ?? {}).map(([type, { schema }]) => [type, schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema]);
  const type = html("select", {}, ...types.map(([name]) => html("option", {}, name)));
  const [body, answer] = [html("div", {}), html("div", { class: "answered", role: "status" })];
  let fields = [];
  const choose = () => {
    fields = types.length ? bodyFields(...types[type.selectedIndex]) : [];
    body.replaceChildren(...fields.map(([name, input]) => html("label", {}, html("code", {}, name), input)));
  };
  type.addEventListener("change", choose);
  choose();
  const labels = given.map(([name, , input]) => html("label", {}, html("code", {}, name), input));
  const form = html("form", { class: "try" }, ...labels, types.length ? html("label", {}, "Type of the body", type) : null, body, html("button", { type: "submit" }, "Send"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const filled = given.filter(([, where, input]) => where === "path" || input.value);
    const [query, headers] = ["query", "header"].map((place) => filled.filter(([, where]) => where === place).map(([name, , input]) => [name, input.value]));
    const at = filled.reduce((text, [name, where, input]) => (where === "path" ? text.replace(`{${name}}`, encodeURIComponent(input.value)) : text), path.slice(1));
    const sent = fields.length ? bodyOf(type.value, fields) : undefined;
    if (sent !== undefined && !(sent instanceof FormData)) headers.push(["Content-Type", sent.type || type.value]);
    answer.replaceChildren("Waiting for the answer");
    const service = new Service();
    service.key = byId("key").value.replace(/[^!-~]/g, "");
    try {
      answer.replaceChildren(...(await answered(await service.send(`${at}${query.length ? `?${new URLSearchParams(query)}` : ""}`, { method: method.toUpperCase(), headers: Object.fromEntries(headers), body: sent }))));
    } catch (problem) {
      answer.replaceChildren(html("p", { class: "wrong" }, problem.message));
    }
  });
  return html("details", {}, html("summary", {}, "Try it"), form, answer);
}

function operation(path, method, told, document) {
  const parameters = told.parameters ?? [];
  const parts = [html("h2", {}, html("span", { class: "method" }, method.toUpperCase()), html("code", {}, path))];
  parts.push(html("p", {}, told.description ?? told.summary ?? ""));
  if (parameters.length) {
    const rows = parameters.map((one) => parameterRow(one, document));
    parts.push(html("h3", {}, "Parameters"), html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Parameters of ${method.toUpperCase()} ${path}` }, html("table", {}, html("tbody", {}, ...rows))));
  }
  if (told.requestBody) parts.push(html("h3", {}, "Body"), ...content(told.requestBody, document));
  parts.push(tryIt(path, method, told, document));
  parts.push(html("h3", {}, "Answers"), ...Object.entries(told.responses).map((one) => answer(one, document)));
  return html("section", { class: "panel", id: anchor(path, method) }, ...parts);
}

const anchor = (path, method) => `${method}${path.replace(/[^A-Za-z0-9]+/g, "-")}`;

async function show() {
  const document = await (await fetch("openapi.json")).json();
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => [path, method, methods[method]]),
  );
  const links = all.map(([path, method]) => html("li", {}, html("a", { href: `#${anchor(path, method)}` }, html("span", { class: "method" }, method.toUpperCase()), path)));
  byId("contents").replaceChildren(html("ul", {}, ...links));
  byId("operations").replaceChildren(...all.map(([path, method, told]) => operation(path, method, told, document)));
}

byId("key").value = sessionStorage.getItem("serfer-key") ?? ""; // where the page was told to keep it
show().catch(() => byId("operations").replaceChildren(html("p", { class: "problem", role: "alert" }, "openapi.json cannot be read: is the service still there?")));
