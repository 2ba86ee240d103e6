// The pages for browsers and the files that they load. A page's policy lets it load its files from this
// server, and call it; nothing else, so that what a model writes can neither run nor fetch anything.
#include <fmt/format.h>

#include <algorithm>

#include "server/exchange.h"
#include "server/http_message.h"
#include "server/web_assets.h"

namespace kvasir {
namespace {

// Trusted types: a script that would parse text as HTML fails, whatever the text.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'";

const WebAsset* find_asset(std::string_view path) {
  const auto all = web_assets();
  const auto found = std::lower_bound(all.begin(), all.end(), path,
                                      [](const WebAsset& a, std::string_view p) { return a.path < p; });
  return found == all.end() || found->path != path ? nullptr : &*found;
}

// Whether the header names gzip, and does not say that it is unwanted ("gzip;q=0").
bool takes_gzip(std::string_view accepted) {
  const size_t at = accepted.find("gzip");
  if (at == std::string_view::npos) return false;
  std::string_view rest = accepted.substr(at + 4);
  rest = rest.substr(0, rest.find(','));
  const size_t quality = rest.find("q=");
  return quality == std::string_view::npos ||
         rest.find_first_of("123456789", quality) != std::string_view::npos;
}

void send(Exchange& exchange, std::string_view path) {
  const WebAsset* asset = find_asset(path);
  if (asset == nullptr) {
    ApiError e;
    e.status = 404;
    e.message = fmt::format("there is nothing at /assets/{}; the pages are at /", clipped(path));
    e.code = "not_found";
    return exchange.respond(error_response(e));
  }
  const Request& request = exchange.request();
  const bool packed = !asset->gzip.empty() && takes_gzip(request.header("Accept-Encoding"));
  // Two forms of a file have two tags.
  const std::string tag = fmt::format("\"{}{}\"", asset->tag, packed ? "-gz" : "");
  HttpResponse response;
  response.content_type = asset->content_type;
  response.content_security_policy = kPagePolicy;
  // A browser asks each time whether its copy holds, so that a page and its files are of one version.
  response.more_headers = fmt::format(
      "ETag: {}\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\nReferrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n",
      tag);
  if (request.header("If-None-Match").find(tag) != std::string_view::npos) {
    response.status = 304;
  } else {
    if (packed) response.more_headers += "Content-Encoding: gzip\r\n";
    response.static_body = packed ? asset->gzip : asset->bytes;
  }
  exchange.respond(response);
}

}  // namespace

// "/" is the chat, and "/NAME" the page of web/NAME.
void handle_page(Exchange& exchange) {
  std::string_view name = exchange.request().target;
  name = name.substr(0, name.find_first_of("?#"));
  name.remove_prefix(1);
  send(exchange, fmt::format("{}/index.html", name.empty() ? "chat" : name));
}

void handle_asset(Exchange& exchange) {
  send(exchange, exchange.request().parameter);
}

}  // namespace kvasir
