// From the body of a request to a Generation.
#include "server/handlers/generate.h"

#include <atomic>
#include <string>
#include <utility>

#include "server/generation.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

ApiError priority_not_read() {
  ApiError e = bad_field("priority",
                         "'priority' is not read by this server's scheduling policy; leave it out, or serve "
                         "with --scheduling-policy auto or priority");
  e.code = "unsupported_parameter";
  return e;
}

// On a worker's thread, so it reads only what is constant in the context.
std::variant<PreparedRequest, ApiError> prepare(const ServerContext& server, const ModelService& service,
                                                const GenerationSchema& schema, std::string body,
                                                const Slo& header_slo, const std::atomic<bool>& abandoned) {
  auto parsed = schema.parse(body, service.defaults);
  body = {};
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  auto& request = std::get<ApiRequest>(parsed);
  if (auto e = check_parsed(server, request)) return *std::move(e);
  if (request.priority != 0 && !server.options.reads_priority) return priority_not_read();
  if (request.model.empty()) request.model = server.options.model_names.front();
  request.slo = server.options.slo.resolve(request.slo, header_slo);
  return prepare_request(service, std::move(request), &abandoned);
}

}  // namespace

std::optional<ApiError> check_parsed(const ServerContext& server, const ApiRequest& request) {
  server.unknown_fields.note(request.unknown_fields);
  return server.unknown_model(request.model);
}

void answer_on_worker(Exchange& exchange, MakeAnswer make) {
  exchange.run_on_worker([make = std::move(make), service = exchange.server().service](
                             std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    auto made = make(*service, std::move(body), abandoned);
    if (const auto* e = std::get_if<ApiError>(&made)) {
      return [refusal = error_response(*e)](Exchange& x) { x.respond(refusal); };
    }
    return
        [answer = json_response(std::get<std::string>(std::move(made)))](Exchange& x) { x.respond(answer); };
  });
}

void generate(Exchange& exchange, const GenerationSchema& schema) {
  const ServerContext& server = exchange.server();
  exchange.run_on_worker([&server, schema, service = server.service, slo = exchange.request().slo](
                             std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    auto outcome = prepare(server, *service, schema, std::move(body), slo, abandoned);
    if (const auto* e = std::get_if<ApiError>(&outcome)) {
      return [refusal = error_response(*e)](Exchange& x) { x.respond(refusal); };
    }
    return [&server, schema, service,
            prepared = std::get<PreparedRequest>(std::move(outcome))](Exchange& x) mutable {
      auto writer = schema.make_writer(*service->tokenizer, prepared.api);
      const auto generation = std::make_shared<Generation>(*service, std::move(prepared), std::move(writer),
                                                           server.post, server.options.limits.stream, &x);
      x.attach(generation);
      generation->start();
    };
  });
}

}  // namespace kvasir
