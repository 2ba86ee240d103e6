// The architectures by name.
#include <string>

#include "model/architectures/architecture.h"
#include "model/architectures/spec_reader.h"

// One line an architecture of GGUF files: its name, as general.architecture has it, the function that a file
// of this folder defines, and which norms it has, if not RMSNorm. Sorted. The function finds in reader.spec()
// what SpecReader::read_common() reads, and fills in what differs.
#define KVASIR_ARCHITECTURES(ARCHITECTURE)                    \
  ARCHITECTURE("cohere2", describe_cohere2, NormKind::kLayer) \
  ARCHITECTURE("deepseek2", describe_deepseek2)               \
  ARCHITECTURE("dots1", describe_dots1)                       \
  ARCHITECTURE("gemma2", describe_gemma2)                     \
  ARCHITECTURE("gemma3", describe_gemma3)                     \
  ARCHITECTURE("gemma4", describe_gemma4)                     \
  ARCHITECTURE("glm4", describe_glm4)                         \
  ARCHITECTURE("gpt-oss", describe_gpt_oss)                   \
  ARCHITECTURE("granite", describe_granite)                   \
  ARCHITECTURE("granitemoe", describe_granitemoe)             \
  ARCHITECTURE("llama", describe_llama)                       \
  ARCHITECTURE("llama4", describe_llama4)                     \
  ARCHITECTURE("mistral3", describe_mistral3)                 \
  ARCHITECTURE("olmo2", describe_olmo2)                       \
  ARCHITECTURE("olmoe", describe_olmoe)                       \
  ARCHITECTURE("opt", describe_opt, NormKind::kLayer)         \
  ARCHITECTURE("phi3", describe_phi3)                         \
  ARCHITECTURE("qwen2", describe_qwen2)                       \
  ARCHITECTURE("qwen2moe", describe_qwen2moe)                 \
  ARCHITECTURE("qwen3", describe_qwen3)                       \
  ARCHITECTURE("qwen35", describe_qwen35)                     \
  ARCHITECTURE("qwen35moe", describe_qwen35moe)               \
  ARCHITECTURE("qwen3moe", describe_qwen3moe)                 \
  ARCHITECTURE("qwen3next", describe_qwen3next)               \
  ARCHITECTURE("smollm3", describe_smollm3)

namespace kvasir {

#define KVASIR_DECLARE(name, describe, ...) Status describe(SpecReader& reader);
KVASIR_ARCHITECTURES(KVASIR_DECLARE)
#undef KVASIR_DECLARE

namespace {

struct Architecture {
  std::string_view name;
  Status (*describe)(SpecReader& reader);
  NormKind norm = NormKind::kRms;
};
#define KVASIR_ENTRY(name, ...) Architecture{name, __VA_ARGS__},
constexpr Architecture kArchitectures[] = {KVASIR_ARCHITECTURES(KVASIR_ENTRY)};
#undef KVASIR_ENTRY

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
