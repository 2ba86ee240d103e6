// The one table of the fields that requests may have: parsing and its errors, /openapi.json and the table in
// docs/api.md are made from it. For src/server, its tests, and the runtime, which reads defaults by it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "server/api_error.h"
#include "server/api_request.h"
#include "server/endpoints.h"
#include "server/json_fields.h"

namespace kvasir {

// The endpoints that take fields.
enum class ApiKind : uint8_t {
  kChat,
  kCompletion,
  kMessages,
  kCountTokens,
  kResponses,
  kTokenize,
  kDetokenize,
  kEmbeddings,
};

struct ApiKindInfo {
  ApiKind kind;
  std::string_view name;     // in the table of fields
  std::string_view path;     // of the endpoint
  std::string_view schema;   // its name in /openapi.json
  std::string_view summary;  // one line
};
// All of them, in the order of the enumerators.
std::span<const ApiKindInfo> api_kinds();

// A field of some endpoints.
struct RequestField {
  // A set of endpoints, with a bit for each.
  enum class Where : uint32_t {
    kChat = 1U << static_cast<uint32_t>(ApiKind::kChat),
    kCompletion = 1U << static_cast<uint32_t>(ApiKind::kCompletion),
    kMessages = 1U << static_cast<uint32_t>(ApiKind::kMessages),
    kCountTokens = 1U << static_cast<uint32_t>(ApiKind::kCountTokens),
    kResponses = 1U << static_cast<uint32_t>(ApiKind::kResponses),
    kTokenize = 1U << static_cast<uint32_t>(ApiKind::kTokenize),
    kDetokenize = 1U << static_cast<uint32_t>(ApiKind::kDetokenize),
    kEmbeddings = 1U << static_cast<uint32_t>(ApiKind::kEmbeddings),
    kBoth = kChat | kCompletion,                // OpenAI's older two
    kAnswers = kBoth | kMessages | kResponses,  // all that generate
    kAll = (kEmbeddings << 1U) - 1U,
  };
  enum class Use : uint8_t {
    kRead,     // `set` reads it
    kRefused,  // 400, unless its value is neutral
    kIgnored,  // it changes no answer
  };
  struct Range {
    double low = 0;
    double high = 0;
    bool open_low = false;  // (low, high], not [low, high]
  };
  // Sets what a value of the right type and range says. Each takes one type of JSON; the last takes a value
  // that it checks itself, as `shape` says.
  using SetBoolean = void (*)(ApiRequest&, bool);
  using SetInteger = void (*)(ApiRequest&, int64_t);
  using SetNumber = void (*)(ApiRequest&, double);
  using SetString = void (*)(ApiRequest&, std::string);
  using SetAny = void (*)(ApiRequest&, const nlohmann::json&, JsonFields& errors);
  using Set = std::variant<std::monostate, SetBoolean, SetInteger, SetNumber, SetString, SetAny>;

  std::string_view name;
  Where where = Where::kBoth;
  Set set;
  Range range;                 // of numbers; of strings: `high` is the most bytes
  std::string_view shape;      // of SetAny: a JSON schema
  std::string_view otherwise;  // the default; of refused fields, the values that pass
  std::string_view text;       // what it does, or why it is refused; Markdown, in one line
  Use use = Use::kRead;
  // A model, or --override-generation-config, may give its default.
  bool of_model = false;
  bool (*neutral)(const nlohmann::json&) = nullptr;  // of refused fields

  bool is_of(ApiKind kind) const {
    return ((static_cast<uint32_t>(where) >> static_cast<uint32_t>(kind)) & 1U) != 0;
  }
};

constexpr RequestField::Where where_of(ApiKind kind) {
  return static_cast<RequestField::Where>(1U << static_cast<uint32_t>(kind));
}
constexpr RequestField::Where operator|(RequestField::Where a, RequestField::Where b) {
  return static_cast<RequestField::Where>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}

// In the order of the documentation: those of request_fields.cc, then those of endpoint_fields.cc.
std::span<const RequestField> request_fields();
// What other endpoints than chat and completions have for themselves. A field is set after those above it.
std::span<const RequestField> endpoint_fields();

// "number", "integer", … for people; the range in words, empty if there is none.
std::string type_text(const RequestField& field);

// Reads all fields of the object into the request; the first error is in `fields`. 400: a value of the wrong
// type or out of range, naming both; a field that is refused, with the reason; fields that exclude each
// other. Unknown fields are noted in the request.
void read_request_fields(JsonFields& fields, const nlohmann::json& object, ApiKind kind, ApiRequest& request);

// The request that a body says, on top of `defaults`. An error is 400 and names the field.
std::variant<ApiRequest, ApiError> read_request(std::string_view body, ApiKind kind, ApiRequest defaults);

// Sets in `defaults` what the JSON object says: fields that are `of_model`. An error names the field.
std::optional<ApiError> read_default_fields(std::string_view object, ApiRequest& defaults);

// The table as Markdown, as docs/api.md has it.
std::string request_fields_markdown();

// The description of the endpoints by OpenAPI 3.1, as JSON.
std::string openapi_text(std::string_view version, std::span<const Endpoint> endpoints);

}  // namespace kvasir
