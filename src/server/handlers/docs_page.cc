// GET /docs: a page that shows /openapi.json. It loads nothing from elsewhere, and its policy lets it load
// nothing but its script, its style and the description, and lets it send nothing.
#include <fmt/format.h>

#include "server/exchange.h"
#include "server/http_message.h"

namespace kvasir {
namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

// Links are relative, so that the page works behind a proxy that puts a folder before the paths.
constexpr const char* kPage = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Kvasir: the API</title>
<link rel="stylesheet" href="docs/page.css">
<script src="docs/page.js" defer></script>
</head>
<body>
<h1>Kvasir <small id="version"></small></h1>
<p>The endpoints and their fields, from <a href="openapi.json">openapi.json</a>.</p>
<main id="endpoints">
<noscript>This page needs JavaScript; <a href="openapi.json">openapi.json</a> has the same.</noscript>
</main>
</body>
</html>
)";

constexpr const char* kStyle =
    R"(body { font: 16px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
h1 small { color: #667; font-size: 60%; }
summary { cursor: pointer; padding: .3em 0; }
summary code { font-weight: bold; }
table { border-collapse: collapse; width: 100%; margin: .5em 0 1.5em; }
td, th { border-top: 1px solid #ccd; padding: .3em .6em; text-align: left; vertical-align: top; }
.method { display: inline-block; min-width: 5em; color: #046; }
.error { color: #a00; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a, .method { color: #8cf; } }
)";

// Text from the description is set as text, never as HTML.
constexpr const char* kScript = R"("use strict";
const add = (parent, tag, text, name) => {
  const child = parent.appendChild(document.createElement(tag));
  if (text !== undefined) child.textContent = text;
  if (name) child.className = name;
  return child;
};
const typeOf = (schema) => (schema.anyOf ? schema.anyOf.map(typeOf) : [].concat(schema.type || "any"))
  .filter((type) => type !== "null").join(" or ");
const rangeOf = (schema) => {
  const out = [];
  if ("minimum" in schema) out.push("\u2265 " + schema.minimum);
  if ("exclusiveMinimum" in schema) out.push("> " + schema.exclusiveMinimum);
  if ("maximum" in schema && schema.maximum < 2147483647) out.push("\u2264 " + schema.maximum);
  if ("maxLength" in schema) out.push("at most " + schema.maxLength + " bytes");
  return out.join(", ");
};
const showFields = (parent, schema) => {
  const table = add(parent, "table");
  const head = add(table, "tr");
  for (const title of ["field", "type", ""]) add(head, "th", title);
  for (const [name, field] of Object.entries(schema.properties)) {
    const row = add(table, "tr");
    add(add(row, "td"), "code", name);
    add(row, "td", [typeOf(field), rangeOf(field)].filter(Boolean).join(", "));
    add(row, "td", field.description);
  }
};
const show = (api) => {
  document.getElementById("version").textContent = api.info.version;
  const main = document.getElementById("endpoints");
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const body = operation.requestBody;
      const block = add(main, body ? "details" : "div");
      const line = add(block, body ? "summary" : "p");
      add(line, "span", method.toUpperCase(), "method");
      add(line, "code", path);
      if (operation.summary) add(line, "span", " " + operation.summary);
      if (!body) continue;
      const ref = body.content["application/json"].schema.$ref;
      showFields(block, api.components.schemas[ref.split("/").pop()]);
    }
  }
};
fetch("openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  add(document.getElementById("endpoints"), "p", "openapi.json cannot be shown: " + error, "error");
});
)";

}  // namespace

void handle_docs(Exchange& exchange) {
  const std::string& file = exchange.request().parameter;
  HttpResponse response;
  response.content_security_policy = kPolicy;
  if (file.empty()) {
    response.content_type = "text/html; charset=utf-8";
    response.body = kPage;
  } else if (file == "page.css") {
    response.content_type = "text/css; charset=utf-8";
    response.body = kStyle;
  } else if (file == "page.js") {
    response.content_type = "text/javascript; charset=utf-8";
    response.body = kScript;
  } else {
    ApiError e;
    e.status = 404;
    e.message = fmt::format("there is nothing at /docs/{}; see /docs", clipped(file));
    e.code = "not_found";
    response = error_response(e);
  }
  exchange.respond(response);
}

}  // namespace kvasir
