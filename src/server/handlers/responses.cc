// POST /v1/responses, and GET and DELETE of one that is stored.
#include "server/handlers/responses.h"

#include <fmt/format.h>

#include <utility>

#include "server/handlers/generate.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

HttpResponse not_stored(std::string_view id) {
  ApiError e;
  e.status = 404;
  e.message = fmt::format("Response with id '{}' not found.", clipped(id));
  e.code = "response_not_found";
  return error_response(e);
}

}  // namespace

void handle_responses(Exchange& exchange) {
  const auto context = std::make_shared<ResponseContext>();
  context->owner = exchange.request().caller.owner;
  context->store = &exchange.server().responses;
  generate(exchange, {[context](std::string_view body, const ApiRequest& defaults) {
                        return parse_responses_request(body, defaults, *context);
                      },
                      [context](const Tokenizer&, const ApiRequest& request) {
                        return make_responses_writer(request, context);
                      }});
}

void handle_response(Exchange& exchange) {
  const std::string& id = exchange.request().parameter;
  const auto found = exchange.server().responses.find(id, exchange.request().caller.owner);
  exchange.respond(found ? json_response(found->body) : not_stored(id));
}

void handle_delete_response(Exchange& exchange) {
  const std::string& id = exchange.request().parameter;
  if (!exchange.server().responses.remove(id, exchange.request().caller.owner)) {
    return exchange.respond(not_stored(id));
  }
  exchange.respond(json_response(dump_json({{"id", id}, {"object", "response"}, {"deleted", true}})));
}

}  // namespace kvasir
