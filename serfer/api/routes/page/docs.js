// The API as /openapi.json describes it: every operation with its parameters, bodies and answers.

import { byId, html } from "./dom.js";

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

function operation(path, method, told, document) {
  const parameters = told.parameters ?? [];
  const parts = [html("h2", {}, html("span", { class: "method" }, method.toUpperCase()), html("code", {}, path))];
  parts.push(html("p", {}, told.description ?? told.summary ?? ""));
  if (parameters.length) {
    const rows = parameters.map((one) => parameterRow(one, document));
    parts.push(html("h3", {}, "Parameters"), html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Parameters of ${method.toUpperCase()} ${path}` }, html("table", {}, html("tbody", {}, ...rows))));
  }
  if (told.requestBody) parts.push(html("h3", {}, "Body"), ...content(told.requestBody, document));
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

show().catch(() => byId("operations").replaceChildren(html("p", { class: "problem", role: "alert" }, "openapi.json cannot be read: is the service still there?")));
