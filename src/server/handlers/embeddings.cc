#include "server/handlers/embeddings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/embedding_job.h"
#include "server/handlers/generate.h"
#include "server/handlers/openai.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxInputs = 2048;  // OpenAI's

// What the model cannot do.
std::optional<ApiError> check_model(const ModelService& service, const ApiRequest& request) {
  if (service.pooling == Pooling::kNone) {
    ApiError e = bad_field(
        "model",
        "this model's files do not say how its hidden rows become an embedding, or say a way that is not "
        "offered; serve it with --pooling last or --pooling mean, or serve an embedding model");
    e.code = "unsupported_model";
    return e;
  }
  if (request.dimensions != 0 && request.dimensions != service.embedding_size) {
    ApiError e = bad_field(
        "dimensions",
        fmt::format("'dimensions' is {}, but this model's embeddings have {}, and are not shortened "
                    "(Matryoshka); leave it out",
                    request.dimensions, service.embedding_size));
    e.code = "unsupported_parameter";
    return e;
  }
  return std::nullopt;
}

// On a worker's thread.
std::variant<PreparedEmbeddings, ApiError> prepare(const ServerContext& server, const ModelService& service,
                                                   const Caller& caller, std::string body, const Slo& slo,
                                                   const std::atomic<bool>& abandoned) {
  auto parsed = parse_request(server, service, parse_embeddings_request, caller, body, slo);
  body = {};
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  auto& request = std::get<ApiRequest>(parsed);
  if (auto e = check_model(service, request)) return *std::move(e);
  PreparedEmbeddings out{request.model, request.base64, {}};
  auto inputs = prepare_embeddings(service, std::move(request), &abandoned);
  if (auto* e = std::get_if<ApiError>(&inputs)) return std::move(*e);
  out.inputs = std::get<std::vector<GenerationRequest>>(std::move(inputs));
  return out;
}

}  // namespace

void set_embedding_input(ApiRequest& request, const json& input, JsonFields& errors) {
  auto prompts = read_prompts(input, kMaxInputs);
  if (!prompts) {
    return errors.fail("input",
                       fmt::format("'input' must be a string, a list of token ids, or a list of at most {} "
                                   "of either, and not empty",
                                   kMaxInputs));
  }
  request.prompts = *std::move(prompts);
  request.prompts_field = "input";
}

void set_encoding_format(ApiRequest& request, const json& format, JsonFields& errors) {
  request.base64 = format == "base64";
  if (!request.base64 && format != "float") {
    errors.fail("encoding_format", "'encoding_format' must be \"float\" or \"base64\"");
  }
}

std::variant<ApiRequest, ApiError> parse_embeddings_request(std::string_view body,
                                                            const ApiRequest& defaults) {
  return read_request(body, ApiKind::kEmbeddings, defaults);
}

void handle_embeddings(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  exchange.run_on_worker([&server, service = server.service, slo = exchange.request().slo,
                          caller = exchange.request().caller](
                             std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    auto prepared = prepare(server, *service, caller, std::move(body), slo, abandoned);
    if (const auto* e = std::get_if<ApiError>(&prepared)) return refuse(*e);
    return
        [&server, service, request = std::get<PreparedEmbeddings>(std::move(prepared))](Exchange& x) mutable {
          // As one in progress, however many inputs it has: each is a step or two.
          const Caller& sender = x.request().caller;
          x.key_lease() = {};
          if (const auto e = charge(server, sender, request.inputs, 1, 1))
            return x.respond(error_response(*e));
          const auto job = std::make_shared<EmbeddingJob>(*service, std::move(request), server.post, &x,
                                                          KeyLease(sender.usage, 1));
          x.attach(job);
          job->start();
        };
  });
}

}  // namespace kvasir
