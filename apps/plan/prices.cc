#include "apps/plan/prices.h"

#include <cmath>

#include "apps/bench/parse_text.h"
#include "base/yaml.h"

namespace kvasir {
namespace {

Result<Prices> prices_of(const YamlNode& root, const std::string& path) {
  if (root.kind != YamlNode::Kind::kMap || root.items.empty()) {
    return error_at(path, root.at,
                    "a table of prices is a map of devices to what one costs an hour, as h100: 2.5");
  }
  Prices out;
  for (const YamlNode& entry : root.items) {
    const double price = entry.kind == YamlNode::Kind::kText ? parse_number(entry.text).value_or(-1) : -1;
    if (!std::isfinite(price) || price < 0) {
      return error_at(path, entry.at, "{}: what it costs an hour must be a number of 0 or more", entry.name);
    }
    out.emplace_back(entry.name, price);
  }
  return out;
}

}  // namespace

Result<Prices> parse_prices(const std::string& text, const std::string& path) {
  KV_ASSIGN_OR_RETURN(const YamlNode root, parse_yaml(text, path));
  return prices_of(root, path);
}

Result<Prices> read_prices(const std::string& path) {
  Result<YamlNode> root = read_yaml(path);
  if (!root.ok()) return error(root.status().code(), "--prices: {}", root.status().message());
  return prices_of(*root, path);
}

}  // namespace kvasir
