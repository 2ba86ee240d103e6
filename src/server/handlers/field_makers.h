// Makes the lines of the tables of fields. Internal to src/server/handlers.
#pragma once

#include "server/handlers/request_fields.h"

namespace kvasir::fields {

using Where = RequestField::Where;

// One prompt or several, each a text or token ids.
inline constexpr const char* kPrompts =
    R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":["string","integer","array"]}}]})";
// What numbers and texts without another bound may be.
inline constexpr double kMostInt = INT32_MAX;

constexpr RequestField read(const char* name, Where where, RequestField::Set set, const char* otherwise,
                            const char* text, RequestField::Range range = {}, const char* shape = "") {
  return {.name = name,
          .where = where,
          .set = set,
          .range = range,
          .shape = shape,
          .otherwise = otherwise,
          .text = text};
}
constexpr RequestField boolean(const char* name, Where where, const char* otherwise, const char* text,
                               RequestField::SetBoolean set) {
  return read(name, where, set, otherwise, text);
}
constexpr RequestField integer(const char* name, Where where, RequestField::Range range,
                               const char* otherwise, const char* text, RequestField::SetInteger set) {
  return read(name, where, set, otherwise, text, range);
}
constexpr RequestField number(const char* name, Where where, RequestField::Range range, const char* otherwise,
                              const char* text, RequestField::SetNumber set) {
  return read(name, where, set, otherwise, text, range);
}
constexpr RequestField string(const char* name, Where where, double most_bytes, const char* otherwise,
                              const char* text, RequestField::SetString set) {
  return read(name, where, set, otherwise, text, {0, most_bytes});
}
constexpr RequestField any(const char* name, Where where, const char* shape, const char* otherwise,
                           const char* text, RequestField::SetAny set) {
  return read(name, where, set, otherwise, text, {}, shape);
}
constexpr RequestField of_model(RequestField f) {
  f.of_model = true;
  return f;
}
constexpr RequestField ignored(const char* name, Where where, const char* text) {
  RequestField f = read(name, where, {}, "", text);
  f.use = RequestField::Use::kIgnored;
  return f;
}
constexpr RequestField refused(const char* name, Where where, bool (*neutral)(const nlohmann::json&),
                               const char* passes, const char* why) {
  RequestField f = read(name, where, {}, passes, why);
  f.use = RequestField::Use::kRefused;
  f.neutral = neutral;
  return f;
}

// For fields that only the endpoint's own reader needs: the table checks the type and the range, and the
// reader takes the value from the object.
inline constexpr RequestField::SetBoolean kBooleanLater = [](ApiRequest&, bool) {};
inline constexpr RequestField::SetString kStringLater = [](ApiRequest&, std::string) {};

}  // namespace kvasir::fields
