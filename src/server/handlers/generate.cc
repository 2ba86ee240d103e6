// From the body of a request to a Generation.
#include "server/handlers/generate.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/generation.h"
#include "server/prompt_grammar.h"
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
std::variant<ApiRequest, ApiError> parse(const ServerContext& server, const ModelService& service,
                                         const GenerationSchema& schema, std::string_view body,
                                         const Slo& header_slo) {
  auto parsed = schema.parse(body, service.defaults);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  auto& request = std::get<ApiRequest>(parsed);
  if (auto e = check_parsed(server, request)) return *std::move(e);
  if (request.priority != 0 && !server.options.reads_priority) return priority_not_read();
  if (request.model.empty()) request.model = server.options.model_names.front();
  request.slo = server.options.slo.resolve(request.slo, header_slo);
  return parsed;
}

Exchange::Then refuse(const ApiError& error) {
  return [refusal = error_response(error)](Exchange& x) { x.respond(refusal); };
}

// On a worker's thread.
Exchange::Then constrain(const ServerContext& server, const std::shared_ptr<const ModelService>& service,
                         const GenerationSchema& schema, PreparedRequest prepared,
                         const std::atomic<bool>& abandoned) {
  if (const auto e = add_constraints(*service, prepared, &abandoned)) return refuse(*e);
  return [&server, schema, service, prepared = std::move(prepared)](Exchange& x) mutable {
    auto writer = schema.make_writer(*service->tokenizer, prepared.api);
    const auto generation = std::make_shared<Generation>(*service, std::move(prepared), std::move(writer),
                                                         server.post, server.options.limits.stream, &x);
    x.attach(generation);
    generation->start();
  };
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
    auto parsed = parse(server, *service, schema, body, slo);
    body = {};
    if (const auto* e = std::get_if<ApiError>(&parsed)) return refuse(*e);
    auto outcome = prepare_request(*service, std::get<ApiRequest>(std::move(parsed)), &abandoned);
    if (const auto* e = std::get_if<ApiError>(&outcome)) return refuse(*e);
    auto& prepared = std::get<PreparedRequest>(outcome);
    if (!must_compile(*service, prepared)) {
      return constrain(server, service, schema, std::move(prepared), abandoned);
    }
    // Requests that need no new grammar do not wait for one.
    return [&server, schema, service, prepared = std::move(prepared)](Exchange& x) mutable {
      x.run_on_worker(
          [&server, schema, service, prepared = std::move(prepared)](
              const std::string&, const std::atomic<bool>& left) mutable -> Exchange::Then {
            return constrain(server, service, schema, std::move(prepared), left);
          },
          /*takes_long=*/true);
    };
  });
}

}  // namespace kvasir
