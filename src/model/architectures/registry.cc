// The architectures by name. Adding one of known parts: its function, its line here, and a row in
// docs/models.md.
#include <array>
#include <string>

#include "model/architectures/architecture.h"

namespace kvasir {
namespace {

struct Architecture {
  std::string_view name;  // as general.architecture has it
  Status (*describe)(SpecReader& reader);
  NormKind norm = NormKind::kRms;
};
constexpr std::array<Architecture, 11> kArchitectures = {{
    {"gemma2", describe_gemma2},
    {"gemma3", describe_gemma3},
    {"granite", describe_granite},
    {"llama", describe_llama},
    {"mistral3", describe_mistral3},
    {"olmo2", describe_olmo2},
    {"opt", describe_opt, NormKind::kLayer},
    {"phi3", describe_phi3},
    {"qwen2", describe_qwen2},
    {"qwen3", describe_qwen3},
    {"smollm3", describe_smollm3},
}};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> out;
  for (const Architecture& a : kArchitectures) out.push_back(a.name);
  return out;
}

Result<ModelSpec> read_model_spec(const Gguf& file) {
  KV_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const Architecture& a : kArchitectures) {
    if (a.name != name) continue;
    SpecReader reader(file, name);
    KV_RETURN_IF_ERROR(reader.read_common(a.norm));
    KV_RETURN_IF_ERROR(a.describe(reader));
    KV_RETURN_IF_ERROR(reader.read_exact());
    return std::move(reader.spec());
  }
  return error(ErrorCode::kUnsupported, "{}: the architecture {} is not supported; use one of {}",
               file.origin(), gguf_quoted(name), fmt::join(known_architectures(), ", "));
}

}  // namespace kvasir
