// GET /cache/...: what the page of the cache map reads. A server with a model has a stream; `kvasir view` has
// files in its place.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/live_map.h"
#include "server/json_fields.h"
#include "server/map_record.h"
#include "server/map_stream.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

using nlohmann::json;

// A page has one stream, and each frame is sent to all of them.
constexpr size_t kMostViewers = 64;

ApiError no_such_record(std::string_view name) {
  ApiError e;
  e.status = 404;
  e.message = fmt::format("there is no record '{}'; /cache/source has the list", clipped(name));
  e.code = "not_found";
  return e;
}

Result<std::string> map_lines_of(const MapRecord& record, const std::atomic<bool>& abandoned) {
  std::string out;
  KV_RETURN_IF_ERROR(each_map_line(record, [&](const std::string& line) {
    out += line + '\n';
    return !abandoned;
  }));
  return out;
}

}  // namespace

// What there is to see.
void handle_cache_source(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  json records = json::array();
  for (const MapRecord& record : server.options.records) records.push_back(record.name);
  exchange.respond(
      json_response(dump_json({{"live", server.options.records.empty()}, {"records", records}})));
}

void handle_cache_record(Exchange& exchange) {
  const std::vector<MapRecord>& records = exchange.server().options.records;
  const std::string& name = exchange.request().parameter;
  size_t index = 0;
  const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (wrong != std::errc() || end != name.data() + name.size() || index >= records.size()) {
    return exchange.respond(error_response(no_such_record(name)));
  }
  exchange.run_on_worker(
      [record = records[index]](const std::string&, const std::atomic<bool>& abandoned) -> Exchange::Then {
        auto lines = map_lines_of(record, abandoned);
        return [lines = std::move(lines)](Exchange& x) {
          // It could be read, and was not too long, when the server began.
          if (!lines.ok()) {
            ApiError e;
            e.status = 500;
            e.message = lines.status().message();
            return x.respond(error_response(e));
          }
          HttpResponse response;
          response.content_type = "application/x-ndjson";
          response.body = *lines;
          x.respond(response);
        };
      },
      /*takes_long=*/true);
}

// Without keys, who reaches the port may watch; with them, whose key may.
void handle_cache_stream(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  if (auto e = server.not_ready()) return exchange.respond(error_response(*e));
  const Caller& caller = exchange.request().caller;
  if (caller.key && !caller.key->may_see_cache) {
    count_refusal(caller, KeyLimit::kClaims);
    ApiError e;
    e.status = 403;
    e.message = fmt::format(
        "the key '{}' may not watch the cache, which shows the requests of all keys; ask the "
        "server's operator to add 'cache_map' to its claims",
        caller.name());
    e.code = "claim_not_allowed";
    return exchange.respond(error_response(e));
  }
  LiveMap* const map = server.service->map;
  if (map == nullptr || exchange.request().method == "HEAD") {
    HttpResponse none;
    none.status = map ? 200 : 404;
    none.content_type = "text/event-stream; charset=utf-8";
    return exchange.respond(none);
  }
  if (map->viewers() >= kMostViewers) {
    return exchange.respond(
        error_response(unavailable("too many pages show the cache; close some", "overloaded", 5)));
  }
  const auto stream = std::make_shared<MapStream>(*map, &exchange, server.post);
  exchange.attach(stream);
  stream->start();
}

}  // namespace kvasir
