#include "model/files/json_text.h"

#include <nlohmann/json.hpp>

namespace kvasir {

std::string shown_json(const nlohmann::json& value, size_t most) {
  std::string out = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (out.size() > most) out.replace(most, std::string::npos, "...");
  return out;
}

}  // namespace kvasir
