// YAML from anywhere: reading it ends in a document within the bounds, or in an error of one line with a
// place. The same text as a file of API keys.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/yaml.h"
#include "server/keys/key_file.h"

namespace {

size_t depth_of(const kvasir::YamlNode& node) {
  const bool scalar =
      node.kind == kvasir::YamlNode::Kind::kNone || node.kind == kvasir::YamlNode::Kind::kText;
  size_t deepest = 0;
  for (const kvasir::YamlNode& item : node.items) deepest = std::max(deepest, depth_of(item));
  return scalar ? 0 : deepest + 1;
}

void check_error(const kvasir::Status& status) {
  KV_CHECK(status.message().starts_with("fuzz:"), "{}", status.message());
  KV_CHECK(status.message().find('\n') == std::string::npos, "{}", status.message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const kvasir::Result<kvasir::YamlNode> root = kvasir::parse_yaml(text, "fuzz");
  if (!root.ok()) {
    check_error(root.status());
    return 0;
  }
  KV_CHECK(depth_of(root.value()) <= kvasir::kMaxYamlDepth, "too deep");
  const auto keys = kvasir::parse_key_file(text, "fuzz");
  if (!keys.ok()) check_error(keys.status());
  return 0;
}
