#include "runtime/model_service.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "model/grammar/grammar_compiler.h"
#include "runtime/join_cluster.h"
#include "server/chat_inputs.h"
#include "server/handlers/request_fields.h"

namespace kvasir {
namespace {

// Where the model says nothing. At temperature 1 and with all tokens, small models wander off; a share of the
// largest probability cuts the tail whatever the temperature is.
constexpr std::string_view kOtherwise = R"({"temperature":0.7,"min_p":0.05})";

// A value that is out of range counts as not said.
template <typename T>
void set_default(const char* name, const std::optional<T>& value, ApiRequest& defaults) {
  if (!value) return;
  if (const auto e = read_default_fields(fmt::format(R"({{"{}":{}}})", name, *value), defaults)) {
    log_warning("what the model says about sampling is not used: {}", e->message);
  }
}

ApiRequest sampled_as(const SamplingDefaults& model) {
  ApiRequest out;
  if (model.text().empty()) {
    const auto e = read_default_fields(kOtherwise, out);
    KV_CHECK(!e, "{}", e ? e->message : "");
  }
  set_default("temperature", model.temperature, out);
  set_default("top_p", model.top_p, out);
  set_default("top_k", model.top_k, out);
  set_default("min_p", model.min_p, out);
  set_default("repetition_penalty", model.repetition_penalty, out);
  return out;
}

std::vector<OutsideMetric> grammar_metrics(const GrammarCompiler::Stats& s) {
  const auto count = [](uint64_t n) { return static_cast<double>(n); };
  return {
      {"grammars_compiled_total", "counter", count(s.compiled), "Grammars that were not in the cache."},
      {"grammar_compile_seconds_total", "counter", s.compile_seconds, "Time in which they were compiled."},
      {"grammar_cache_bytes", "gauge", count(s.cache_bytes), "Compiled grammars that are kept."},
      {"grammar_masks_total", "counter", count(s.masks), "Masks of tokens that were made."},
      {"grammar_mask_seconds_total", "counter", s.mask_seconds, "Time in which they were made."},
      {"grammar_masks_asked_total", "counter", count(s.masks_asked), "Rows sampled under a mask."},
      {"grammar_masks_awaited_total", "counter", count(s.masks_awaited),
       "Of these, whose mask was not there when the row was to be sampled."},
      {"grammar_masks_late_total", "counter", count(s.masks_late),
       "And of these, which left their step, to be computed again in a later one."}};
}

}  // namespace

Status override_sampling(std::string_view json, ModelService& service) {
  if (const auto e = read_default_fields(json, service.defaults)) {
    return error(ErrorCode::kInvalidArgument, "--override-generation-config: {}", e->message);
  }
  return {};
}

void override_pooling(std::string_view name, ModelService& service) {
  if (name == "none") service.pooling = Pooling::kNone;
  if (name == "last") service.pooling = Pooling::kLast;
  if (name == "mean") service.pooling = Pooling::kMean;
}

std::string sampling_text(const ModelService& service) {
  const SamplingParams& s = service.defaults.sampling;
  const LogitRules& r = service.defaults.rules;
  std::string out = fmt::format("temperature {}", s.temperature);
  const auto add = [&](const char* name, double value, double neutral) {
    if (value != neutral) out += fmt::format(", {} {:.6g}", name, value);
  };
  add("top_p", s.top_p, 1);
  add("top_k", s.top_k, 0);
  add("min_p", s.min_p, 0);
  add("typical_p", s.typical_p, 1);
  add("repetition_penalty", r.repetition_penalty, 1);
  add("frequency_penalty", r.frequency_penalty, 0);
  add("presence_penalty", r.presence_penalty, 0);
  return out;
}

ModelService make_service(Runtime& runtime, Backend& backend) {
  ModelService service;
  service.backend = &backend;
  service.tokenizer = &runtime.tokenizer();
  service.defaults = sampled_as(runtime.sampling_defaults());
  service.pooling = runtime.pooling();
  service.embedding_size = runtime.embedding_size();
  service.grammars = std::make_shared<GrammarCompiler>(runtime.tokenizer());
  service.failure = [&runtime] { return runtime.failure(); };
  service.outside_metrics = [grammars = service.grammars, &joined = runtime.joined()] {
    std::vector<OutsideMetric> metrics = grammar_metrics(grammars->stats());
    if (!joined.node) return metrics;
    const std::vector<OutsideMetric> more = cluster_metrics(joined);
    metrics.insert(metrics.end(), more.begin(), more.end());
    return metrics;
  };
  const ChatTemplate* chat = runtime.chat_template();
  if (chat == nullptr) return service;
  const Tokenizer& tokenizer = runtime.tokenizer();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::optional<std::string>(tokenizer.token_text(*id)) : std::nullopt;
  };
  service.chat_template = chat->source();
  service.formats = pick_formats(chat->source());
  service.render_chat = [chat, variable = service.formats.tools_variable, bos = text_of(tokenizer.bos()),
                         eos = text_of(tokenizer.eos())](const ApiRequest& request) {
    ChatInputs made = chat_inputs(request);
    ChatTemplateInputs inputs;
    inputs.messages = made.messages;
    inputs.tools = std::move(made.tools);
    inputs.variables = std::move(made.variables);
    if (!inputs.tools.empty() && variable != "tools") inputs.variables.emplace_back(variable, inputs.tools);
    inputs.bos_token = bos;
    inputs.eos_token = eos;
    return chat->render(inputs);
  };
  return service;
}

}  // namespace kvasir
