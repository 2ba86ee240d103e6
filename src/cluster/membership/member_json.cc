#include "cluster/membership/member_json.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir {

using nlohmann::json;

std::string member_to_json(const Member& m) {
  return json{{"transport", m.transport},
              {"transport_version", m.transport_version},
              {"transport_address", m.transport_address},
              {"wire_version", m.wire_version},
              {"kvasir_version", m.kvasir_version},
              {"numerics_id", m.numerics_id},
              {"geometry", m.geometry},
              {"lends_cells", m.lends_cells},
              {"http_address", m.http_address},
              {"status_address", m.status_address}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Member> member_from_json(std::string_view text, PeerId id) {
  const auto corrupt = [&](std::string_view why) {
    return error(ErrorCode::kCorrupt, "the entry of the member '{}' {}", id.instance, why);
  };
  if (text.size() > kMaxMemberJsonBytes) return corrupt("is too long");
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return corrupt("is no JSON object");
  Member m;
  for (auto [name, field] : {std::pair{"transport", &m.transport},
                             {"transport_version", &m.transport_version},
                             {"transport_address", &m.transport_address},
                             {"kvasir_version", &m.kvasir_version},
                             {"numerics_id", &m.numerics_id},
                             {"geometry", &m.geometry},
                             {"http_address", &m.http_address}}) {
    const auto it = object.find(name);
    if (it == object.end() || !it->is_string()) return corrupt(fmt::format("has no text '{}'", name));
    *field = it->get_ref<const std::string&>();
  }
  const auto wire = object.find("wire_version");
  if (wire == object.end() || !wire->is_number_integer() || *wire < 0 || *wire > INT32_MAX) {
    return corrupt("has no number 'wire_version'");
  }
  m.wire_version = wire->get<int>();
  // Members of wire version 1 do not say it.
  if (const auto lends = object.find("lends_cells"); lends != object.end()) {
    if (!lends->is_number_unsigned() || *lends > UINT32_MAX) return corrupt("has no number 'lends_cells'");
    m.lends_cells = lends->get<uint32_t>();
  }
  // Members of wire version 5 do not say it, nor where their status is.
  if (const auto status = object.find("status_address"); status != object.end()) {
    if (!status->is_string()) return corrupt("has no text 'status_address'");
    m.status_address = status->get_ref<const std::string&>();
  }
  m.id = std::move(id);
  return m;
}

}  // namespace kvasir
