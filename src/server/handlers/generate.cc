// From the body of a request to a Generation.
#include "server/handlers/generate.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/generation.h"
#include "server/keys/key_usage.h"
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

// What the key of the request does not let it say.
std::optional<ApiError> refuse_claims(const Caller& caller, const ApiRequest& request,
                                      const Slo& header_slo) {
  if (!caller.key) return std::nullopt;
  if (request.priority.value_or(0) != 0 && !caller.key->may_set_priority) {
    return claim_refused(caller, "priority");
  }
  if ((request.slo.any() || header_slo.any()) && !caller.key->may_set_slo)
    return claim_refused(caller, "slo");
  if (request.output_tokens_hint > 0 && !caller.key->may_hint_output) {
    return claim_refused(caller, "output_tokens_hint");
  }
  return std::nullopt;
}

// On a worker's thread.
Exchange::Then constrain(const ServerContext& server, const std::shared_ptr<const ModelService>& service,
                         const GenerationSchema& schema, PreparedRequest prepared, const Caller& caller,
                         const std::atomic<bool>& abandoned) {
  if (const auto e = add_constraints(*service, prepared, caller, &abandoned)) return refuse(*e);
  return [&server, schema, service, prepared = std::move(prepared)](Exchange& x) mutable {
    const Caller& of_exchange = x.request().caller;
    const auto choices = static_cast<uint32_t>(prepared.generations.size());
    x.key_lease() = {};
    if (const auto e =
            charge(server, of_exchange, prepared.generations, prepared.api.candidates(), choices)) {
      return x.respond(error_response(*e));
    }
    x.record().generation.operation = schema.operation;
    KeyLease lease(of_exchange.usage, choices);
    auto writer = schema.make_writer(*service->tokenizer, prepared.api);
    const auto generation =
        std::make_shared<Generation>(*service, std::move(prepared), std::move(writer), server.post,
                                     server.options.limits.stream, &x, std::move(lease));
    x.attach(generation);
    generation->start();
  };
}

}  // namespace

// It reads only what is constant in the context.
std::variant<ApiRequest, ApiError> parse_request(
    const ServerContext& server, const ModelService& service,
    const std::function<std::variant<ApiRequest, ApiError>(std::string_view, const ApiRequest&)>& parse,
    const Caller& caller, std::string_view body, const Slo& header_slo) {
  auto parsed = parse(body, service.defaults);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  auto& request = std::get<ApiRequest>(parsed);
  if (auto e = check_parsed(server, request, caller)) return *std::move(e);
  if (auto e = refuse_claims(caller, request, header_slo)) return *std::move(e);
  if (request.priority.value_or(0) != 0 && !server.options.reads_priority) return priority_not_read();
  // Clients send a 0 for nothing. With the claim it is a choice.
  const bool chosen = request.priority && caller.key && caller.key->may_set_priority;
  if (caller.key && server.options.reads_priority && !chosen) request.priority = caller.key->priority;
  if (request.model.empty()) request.model = server.options.model_names.front();
  request.slo = server.options.slo.resolve(request.slo, header_slo);
  return parsed;
}

Exchange::Then refuse(const ApiError& error) {
  return [refusal = error_response(error)](Exchange& x) {
    if (refusal.status == 403) count_refusal(x.request().caller, KeyLimit::kClaims);
    x.respond(refusal);
  };
}

std::optional<ApiError> charge(const ServerContext& server, const Caller& caller,
                               std::vector<GenerationRequest>& generations, size_t candidates,
                               uint32_t in_progress) {
  uint64_t prompt_tokens = 0;
  const auto label =
      std::make_shared<const RequestLabel>(RequestLabel{caller.request_id, std::string(caller.name())});
  for (size_t i = 0; i < generations.size(); ++i) {
    GenerationRequest& g = generations[i];
    g.label = label;
    g.tenant = caller.tenant();
    g.cache_salt = prefix_salt(caller, server.options.share_prefixes, g.cache_salt);
    if (i % candidates == 0) prompt_tokens += g.prompt.size();
  }
  return check_generation(caller, in_progress, prompt_tokens, server.clock.now());
}

std::optional<ApiError> check_parsed(const ServerContext& server, const ApiRequest& request,
                                     const Caller& caller) {
  server.unknown_fields.note(request.unknown_fields, caller);
  return server.unknown_model(request.model);
}

void answer_on_worker(Exchange& exchange, MakeAnswer make) {
  exchange.run_on_worker([make = std::move(make), service = exchange.server().service](
                             std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    auto made = make(*service, std::move(body), abandoned);
    if (const auto* e = std::get_if<ApiError>(&made)) return refuse(*e);
    return
        [answer = json_response(std::get<std::string>(std::move(made)))](Exchange& x) { x.respond(answer); };
  });
}

void generate(Exchange& exchange, const GenerationSchema& schema) {
  const ServerContext& server = exchange.server();
  exchange.run_on_worker([&server, schema, service = server.service, slo = exchange.request().slo,
                          caller = exchange.request().caller](
                             std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    auto parsed = parse_request(server, *service, schema.parse, caller, body, slo);
    body = {};
    if (const auto* e = std::get_if<ApiError>(&parsed)) return refuse(*e);
    auto outcome = prepare_request(*service, std::get<ApiRequest>(std::move(parsed)), &abandoned);
    if (const auto* e = std::get_if<ApiError>(&outcome)) return refuse(*e);
    auto& prepared = std::get<PreparedRequest>(outcome);
    if (!must_compile(*service, prepared)) {
      return constrain(server, service, schema, std::move(prepared), caller, abandoned);
    }
    // Requests that need no new grammar do not wait for one.
    return [&server, schema, service, prepared = std::move(prepared)](Exchange& x) mutable {
      x.run_on_worker(
          [&server, schema, service, caller = x.request().caller, prepared = std::move(prepared)](
              const std::string&, const std::atomic<bool>& left) mutable -> Exchange::Then {
            return constrain(server, service, schema, std::move(prepared), caller, left);
          },
          /*takes_long=*/true);
    };
  });
}

}  // namespace kvasir
