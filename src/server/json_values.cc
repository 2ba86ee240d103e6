// Events of the parser, so that nothing is sorted by name on the way.
#include "server/json_values.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/json_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Of members with equal names the last value, in the place of the first.
void drop_equal_names(TemplateValue::Dict& dict) {
  std::unordered_map<std::string_view, size_t> places;
  size_t kept = 0;
  for (size_t i = 0; i < dict.size(); ++i) {
    const auto found = places.find(dict[i].first);
    if (found != places.end()) {
      dict[found->second].second = std::move(dict[i].second);
      continue;
    }
    if (kept != i) dict[kept] = std::move(dict[i]);
    places.emplace(dict[kept].first, kept);
    ++kept;
  }
  dict.resize(kept);
}

class ValueBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit ValueBuilder(size_t budget) : left_(budget) {}
  size_t left() const { return left_; }
  TemplateValue take() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return add(static_cast<double>(value));
    return add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(double{value}); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(TemplateValue::Dict()); }
  bool start_array(size_t) override { return open(TemplateValue::List()); }
  bool key(string_t& name) override {
    std::get<TemplateValue::Dict>(open_.back().data).emplace_back(std::move(name), TemplateValue());
    return true;
  }
  bool end_object() override {
    drop_equal_names(std::get<TemplateValue::Dict>(open_.back().data));
    return close();
  }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool add(TemplateValue value) {
    if (left_ == 0) return false;
    --left_;
    put(std::move(value));
    return true;
  }
  bool open(TemplateValue container) {
    if (left_ == 0 || open_.size() >= kMaxJsonDepth) return false;
    --left_;
    open_.push_back(std::move(container));
    return true;
  }
  bool close() {
    TemplateValue closed = std::move(open_.back());
    open_.pop_back();
    put(std::move(closed));
    return true;
  }
  void put(TemplateValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (auto* list = std::get_if<TemplateValue::List>(&open_.back().data)) {
      list->push_back(std::move(value));
    } else {
      std::get<TemplateValue::Dict>(open_.back().data).back().second = std::move(value);
    }
  }

  size_t left_;
  std::vector<TemplateValue> open_;
  TemplateValue root_;
};

void append_json(const TemplateValue& value, std::string& out) {
  if (const auto* list = std::get_if<TemplateValue::List>(&value.data)) {
    out += '[';
    for (const TemplateValue& item : *list) {
      if (&item != &list->front()) out += ", ";
      append_json(item, out);
    }
    out += ']';
  } else if (const auto* dict = std::get_if<TemplateValue::Dict>(&value.data)) {
    out += '{';
    for (const auto& member : *dict) {
      if (&member != &dict->front()) out += ", ";
      out += dump_json(json(member.first)) + ": ";
      append_json(member.second, out);
    }
    out += '}';
  } else if (const auto* text = std::get_if<std::string>(&value.data)) {
    out += dump_json(json(*text));
  } else if (const auto* boolean = std::get_if<bool>(&value.data)) {
    out += *boolean ? "true" : "false";
  } else if (const auto* whole = std::get_if<int64_t>(&value.data)) {
    out += std::to_string(*whole);
  } else if (const auto* real = std::get_if<double>(&value.data)) {
    out += dump_json(json(*real));
  } else {
    out += "null";
  }
}

}  // namespace

std::optional<TemplateValue> template_value_of(std::string_view text, size_t& budget) {
  ValueBuilder builder(budget);
  // A number that is out of range ends the parse by parse_error().
  const bool whole = json::sax_parse(text.begin(), text.end(), &builder);
  budget = builder.left();
  if (!whole) return std::nullopt;
  return builder.take();
}

std::string json_of(const TemplateValue& value) {
  std::string out;
  append_json(value, out);
  return out;
}

const TemplateValue* member_of(const TemplateValue& value, std::string_view name) {
  const auto* dict = std::get_if<TemplateValue::Dict>(&value.data);
  if (dict == nullptr) return nullptr;
  for (const auto& [key, member] : *dict) {
    if (key == name) return &member;
  }
  return nullptr;
}

}  // namespace kvasir
