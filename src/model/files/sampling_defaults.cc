#include "model/files/sampling_defaults.h"

#include <fmt/format.h>

namespace kvasir {
namespace {

Status read_float(const Gguf& file, std::string_view key, std::optional<float>& out) {
  if (!file.has(key)) return {};
  KV_ASSIGN_OR_RETURN(out, file.get_f32(key));
  return {};
}

template <typename T>
void add(std::string& out, std::string_view name, const std::optional<T>& value) {
  if (value) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, *value);
}

}  // namespace

std::string SamplingDefaults::text() const {
  std::string out;
  add(out, "temperature", temperature);
  add(out, "top_p", top_p);
  add(out, "top_k", top_k);
  add(out, "min_p", min_p);
  add(out, "repetition_penalty", repetition_penalty);
  return out;
}

Result<SamplingDefaults> read_sampling_defaults(const Gguf& file) {
  SamplingDefaults out;
  KV_RETURN_IF_ERROR(read_float(file, "general.sampling.temp", out.temperature));
  KV_RETURN_IF_ERROR(read_float(file, "general.sampling.top_p", out.top_p));
  KV_RETURN_IF_ERROR(read_float(file, "general.sampling.min_p", out.min_p));
  KV_RETURN_IF_ERROR(read_float(file, "general.sampling.penalty_repeat", out.repetition_penalty));
  constexpr std::string_view kTopK = "general.sampling.top_k";
  if (file.has(kTopK)) {
    KV_ASSIGN_OR_RETURN(out.top_k, file.get_i32(kTopK));
  }
  return out;
}

}  // namespace kvasir
