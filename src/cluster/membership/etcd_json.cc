#include "cluster/membership/etcd_json.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/base64.h"
#include "base/check.h"
#include "base/untrusted_text.h"

namespace kvasir::etcd {
namespace {

using nlohmann::json;

// Numbers of 64 bits are strings in protobuf's JSON; older gateways wrote numbers.
json number(int64_t n) {
  return std::to_string(n);
}

Status not_etcd(std::string_view why) {
  return error(ErrorCode::kCorrupt, "its answer {}", why);
}

constexpr int kMaxDepth = 16;  // an answer has 6

// Reads the fields of one object. The first that is wrong is remembered; after it everything reads as empty.
class Fields {
 public:
  explicit Fields(std::string_view text)
      : root_(nests_deeper(text, kMaxDepth) ? json(json::value_t::discarded)
                                            : json::parse(text, nullptr, false)) {
    if (root_.is_discarded()) {
      fail("is not JSON");
    } else if (!root_.is_object()) {
      fail("is no JSON object");
    }
  }

  const json& root() const { return root_; }
  const Status& status() const { return status_; }

  // A field that is absent is 0, false, "" or empty, as protobuf has it.
  int64_t integer(const json& object, const char* name) {
    const json* field = find(object, name);
    if (!field) return 0;
    if (field->is_number_integer()) return field->get<int64_t>();
    if (field->is_string()) {
      const auto& text = field->get_ref<const std::string&>();
      int64_t out = 0;
      const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
      if (ec == std::errc() && end == text.data() + text.size()) return out;
    }
    fail(fmt::format("has a '{}' that is no number", name));
    return 0;
  }
  bool flag(const json& object, const char* name) {
    const json* field = find(object, name);
    if (field && !field->is_boolean()) fail(fmt::format("has a '{}' that is not true or false", name));
    return field && field->is_boolean() && field->get<bool>();
  }
  std::string text(const json& object, const char* name) {
    const json* field = find(object, name);
    if (field && !field->is_string()) fail(fmt::format("has a '{}' that is no text", name));
    return field && field->is_string() ? field->get<std::string>() : std::string();
  }
  std::string bytes(const json& object, const char* name) {
    std::optional<std::string> out = from_base64(text(object, name));
    if (!out) fail(fmt::format("has a '{}' that is not base64", name));
    return std::move(out).value_or("");
  }
  const json& object(const json& parent, const char* name) {
    const json* field = find(parent, name);
    if (field && !field->is_object()) fail(fmt::format("has a '{}' that is no object", name));
    return field && field->is_object() ? *field : kEmpty;
  }
  const json& array(const json& parent, const char* name) {
    const json* field = find(parent, name);
    if (field && !field->is_array()) fail(fmt::format("has a '{}' that is no list", name));
    return field && field->is_array() ? *field : kNone;
  }
  EtcdKeyValue key_value(const json& o) {
    if (!o.is_object()) fail("has an entry that is no object");
    return {bytes(o, "key"), bytes(o, "value"), integer(o, "lease"), integer(o, "create_revision"),
            integer(o, "mod_revision")};
  }
  // The directory's revision; every answer has it.
  int64_t revision() {
    const int64_t out = integer(object(root_, "header"), "revision");
    if (out <= 0) fail("has no header with a revision");
    return out;
  }
  void fail(std::string_view why) {
    if (status_.ok()) status_ = not_etcd(why);
  }

 private:
  static const json* find(const json& o, const char* name) {
    if (!o.is_object()) return nullptr;
    const auto it = o.find(name);
    return it == o.end() || it->is_null() ? nullptr : &*it;
  }

  static inline const json kEmpty = json::object();
  static inline const json kNone = json::array();
  json root_;
  Status status_;
};

EtcdLease lease_of(Fields& fields, const json& object) {
  EtcdLease out{fields.integer(object, "ID"), fields.integer(object, "TTL")};
  if (out.id <= 0) fields.fail("names no lease");
  return out;
}

std::string txn_body(json compare, json success, std::string_view key) {
  return json{{"compare", json::array({std::move(compare)})},
              {"success", json::array({std::move(success)})},
              {"failure", json::array({{{"request_range", {{"key", to_base64(key)}}}}})}}
      .dump();
}

json created_at(std::string_view key, int64_t revision) {
  return {{"key", to_base64(key)},
          {"target", "CREATE"},
          {"result", "EQUAL"},
          {"create_revision", number(revision)}};
}

}  // namespace

EtcdKeyRange keys_under(std::string_view prefix) {
  KV_CHECK(!prefix.empty() && static_cast<unsigned char>(prefix.back()) < 0xff, "prefix={}", prefix);
  EtcdKeyRange keys{std::string(prefix), std::string(prefix)};
  ++keys.end.back();  // the first key behind them
  return keys;
}

std::string grant_body(int64_t ttl_s) {
  return json{{"TTL", number(ttl_s)}}.dump();
}

std::string lease_body(int64_t lease) {
  return json{{"ID", number(lease)}}.dump();
}

std::string put_body(std::string_view key, std::string_view value, int64_t lease) {
  return json{{"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", number(lease)}}.dump();
}

std::string range_body(const EtcdKeyRange& keys) {
  return json{{"key", to_base64(keys.begin)}, {"range_end", to_base64(keys.end)}}.dump();
}

std::string create_body(std::string_view key, std::string_view value, int64_t lease) {
  return txn_body(
      created_at(key, 0),
      {{"request_put", {{"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", number(lease)}}}},
      key);
}

std::string remove_body(std::string_view key, int64_t create_revision) {
  return txn_body(created_at(key, create_revision), {{"request_delete_range", {{"key", to_base64(key)}}}},
                  key);
}

std::string watch_body(const EtcdKeyRange& keys, int64_t from_revision) {
  return json{{"create_request",
               {{"key", to_base64(keys.begin)},
                {"range_end", to_base64(keys.end)},
                {"start_revision", number(from_revision)}}}}
      .dump();
}

Result<EtcdLease> read_lease(std::string_view text) {
  Fields fields(text);
  const EtcdLease out = lease_of(fields, fields.root());
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<EtcdLease> read_keep_alive(std::string_view text) {
  Fields fields(text.substr(0, text.find('\n')));
  const EtcdLease out = lease_of(fields, fields.object(fields.root(), "result"));
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<int64_t> read_revision(std::string_view text) {
  Fields fields(text);
  const int64_t out = fields.revision();
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<EtcdSnapshot> read_range(std::string_view text) {
  Fields fields(text);
  EtcdSnapshot out{fields.revision(), {}};
  for (const json& entry : fields.array(fields.root(), "kvs")) out.entries.push_back(fields.key_value(entry));
  if (fields.flag(fields.root(), "more")) fields.fail("is only a part");
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<EtcdTxn> read_txn(std::string_view text) {
  Fields fields(text);
  EtcdTxn out{fields.flag(fields.root(), "succeeded"), fields.revision(), {}};
  const json& responses = fields.array(fields.root(), "responses");
  if (responses.size() != 1) fields.fail("has not one response");
  if (fields.status().ok() && !out.done) {
    const json& entries = fields.array(fields.object(responses[0], "response_range"), "kvs");
    if (!entries.empty()) out.found = fields.key_value(entries[0]);
  }
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<EtcdWatchMessage> read_watch(std::string_view text) {
  Fields fields(text);
  EtcdWatchMessage out;
  // Where the stream itself fails, {"error": {"message": ...}}.
  const json& failure = fields.object(fields.root(), "error");
  if (!failure.empty()) {
    out.cancelled = true;
    out.cancel_reason = fields.text(failure, "message");
    KV_RETURN_IF_ERROR(fields.status());
    return out;
  }
  const json& result = fields.object(fields.root(), "result");
  if (result.empty()) fields.fail("has no result");
  out.created = fields.flag(result, "created");
  out.cancelled = fields.flag(result, "canceled");
  out.cancel_reason = fields.text(result, "cancel_reason");
  if (fields.integer(result, "compact_revision") > 0) {
    out.cancelled = true;
    out.cancel_reason = "the revisions it asked for are compacted";
  }
  for (const json& event : fields.array(result, "events")) {
    const std::string type = fields.text(event, "type");
    if (!type.empty() && type != "PUT" && type != "DELETE") fields.fail("has an event of no known type");
    EtcdEvent e{type == "DELETE", fields.key_value(fields.object(event, "kv"))};
    if (e.entry.key.empty() || e.entry.mod_revision <= 0) fields.fail("has an event without key or revision");
    out.events.push_back(std::move(e));
  }
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

Status read_refusal(std::string_view address, int http_status, std::string_view text) {
  Fields fields(text);
  std::string reason;
  int64_t code = -1;
  if (fields.status().ok()) {
    reason = fields.text(fields.root(), "error");
    code = fields.integer(fields.root(), "code");
  }
  if (!fields.status().ok() || reason.empty()) {
    // A proxy that stands before etcd says so with these.
    if (http_status == 502 || http_status == 503 || http_status == 504) {
      return error(ErrorCode::kUnavailable, "etcd at {} is unavailable (HTTP {})", address, http_status);
    }
    return error(ErrorCode::kCorrupt,
                 "what answers at {} is not etcd with its JSON gateway (HTTP {}): correct --cluster", address,
                 http_status);
  }
  reason.resize(std::min<size_t>(reason.size(), 200));
  // The codes of gRPC.
  switch (code) {
    case 1:   // cancelled
    case 4:   // deadline exceeded
    case 13:  // internal
    case 14:  // unavailable: it has no leader, or starts
      return error(ErrorCode::kUnavailable, "etcd at {} is unavailable: {}", address, reason);
    case 8:  // exhausted
      return error(ErrorCode::kUnavailable, "etcd at {} is full or overloaded: {}; see its alarms", address,
                   reason);
    case 5:
      return error(ErrorCode::kNotFound, "etcd at {}: {}", address, reason);
    case 7:
    case 16:
      return error(ErrorCode::kUnsupported,
                   "etcd at {} wants a user: {}; Kvasir has none, open etcd to this network without", address,
                   reason);
    default:
      return error(ErrorCode::kInvalidArgument, "etcd at {} refuses: {}", address, reason);
  }
}

}  // namespace kvasir::etcd
