// Python's operators on template values. Errors are kInvalidArgument and say what does not fit, without a
// line.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "model/templates/jinja/environment.h"
#include "model/templates/jinja/value.h"

namespace kvasir::jinja {

// op in {+ - * / // % ** ~}
Result<Value> apply_binary(Environment* env, std::string_view op, const Value& a, const Value& b);
// op in {+ -}
Result<Value> apply_sign(std::string_view op, const Value& value);
// op in {== != < <= > >= in, not in}
Result<bool> apply_compare(Environment* env, std::string_view op, const Value& a, const Value& b);

// object.name and object[key]. A missing member is undefined; reading a member of undefined is an error.
Result<Value> get_attribute(Environment* env, const Value& object, std::string_view name);
Result<Value> get_item(Environment* env, const Value& object, const Value& key);
// object[begin:end:step]; undefined parts were not written.
Result<Value> get_slice(Environment* env, const Value& object, const Value& begin, const Value& end,
                        const Value& step);

// What a loop over the value yields: items, keys, characters; nothing for undefined.
Result<std::shared_ptr<const List>> iterate(Environment* env, const Value& value);

// len()
Result<int64_t> length_of_value(Environment* env, const Value& value);

}  // namespace kvasir::jinja
