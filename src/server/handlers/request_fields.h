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
#include "server/json_fields.h"

namespace kvasir {

enum class ApiKind : uint8_t { kChat, kCompletion };

// A field of one endpoint or of both.
struct RequestField {
  enum class Where : uint8_t { kBoth, kChat, kCompletion };
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
    return where == Where::kBoth || (where == Where::kChat) == (kind == ApiKind::kChat);
  }
};

// In the order of the documentation.
std::span<const RequestField> request_fields();

// "number", "integer", … for people; the range in words, empty if there is none.
std::string type_text(const RequestField& field);

// Reads all fields of the object into the request; the first error is in `fields`. 400: a value of the wrong
// type or out of range, naming both; a field that is refused, with the reason; fields that exclude each
// other. Unknown fields are noted in the request.
void read_request_fields(JsonFields& fields, const nlohmann::json& object, ApiKind kind, ApiRequest& request);

// Sets in `defaults` what the JSON object says: fields that are `of_model`. An error names the field.
std::optional<ApiError> read_default_fields(std::string_view object, ApiRequest& defaults);

// The table as Markdown, as docs/api.md has it.
std::string request_fields_markdown();

// The description of the endpoints by OpenAPI 3.1, as JSON.
std::string openapi_text(std::string_view version);

}  // namespace kvasir
