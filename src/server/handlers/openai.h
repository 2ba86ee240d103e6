// OpenAI's schema: what /v1/chat/completions and /v1/completions share. Internal to src/server and its tests.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/answer_writer.h"
#include "server/api_request.h"
#include "server/json_fields.h"

namespace kvasir {

// Requests. A known field is checked for type and range; a known field that is not supported is an error that
// names it; an unknown field is ignored. Pure, thread-safe; these throw nothing but bad_alloc.
std::variant<ApiRequest, ApiError> parse_chat_request(std::string_view body);
std::variant<ApiRequest, ApiError> parse_completion_request(std::string_view body);

// Answers to `request`. REQUIRES: the tokenizer outlives the writer.
std::unique_ptr<AnswerWriter> make_chat_writer(const Tokenizer& tokenizer, const ApiRequest& request);
std::unique_ptr<AnswerWriter> make_completion_writer(const Tokenizer& tokenizer, const ApiRequest& request);

inline constexpr int64_t kMaxLogprobs = 20;  // alternatives of a token that may be asked for

enum class ApiKind { kChat, kCompletion };

// 400 naming the first field whose value asks for something that is not supported. These pass: neutral values
// (null, empty, the default), unknown fields, and `metadata` and `user`, which change no answer.
std::optional<ApiError> find_unsupported_field(const nlohmann::json& body, ApiKind kind);
// Names of fields that nothing here knows, some of them: a client may have mistyped them. `read` has read the
// body.
std::vector<std::string> unknown_fields(const nlohmann::json& body, const JsonFields& read);
// The object in `body`, without unsupported fields.
std::variant<nlohmann::json, ApiError> parse_openai_object(std::string_view body, ApiKind kind);
// The fields that both kinds have.
void read_common_fields(JsonFields& fields, ApiRequest& request);
// The tokens of a list; nothing if an element is not a token id. The vocabulary is checked later.
std::optional<std::vector<Token>> token_list(const nlohmann::json& list);

// Writes what both kinds share: ids, usage, errors, the frame around each choice.
class OpenAiWriter : public AnswerWriter {
 public:
  std::string whole(const std::vector<FinishedChoice>& choices, const Usage& usage) const final;
  std::string delta_event(size_t choice, const TextDelta& delta,
                          const std::string& finish_reason) const final;
  std::string usage_event(const Usage& usage) const final;
  std::string error_event(const ApiError& error) const final;
  std::string last_event() const final;

 protected:
  // The value of "object" in a whole answer and in the chunks of a stream.
  struct ObjectNames {
    const char* whole;
    const char* chunk;
  };

  OpenAiWriter(const Tokenizer& tokenizer, const ApiRequest& request, const char* id_prefix,
               ObjectNames objects);

  // The member that holds the text of a choice: "text", "delta" or "message".
  virtual std::string whole_text(const std::string& text) const = 0;
  virtual std::string delta_text(const TextDelta& delta) const = 0;
  virtual std::string logprobs_list(const TextDelta& delta) const = 0;

  // The chunk of one choice. `text` is a member as above; the others are JSON values.
  std::string choice_event(size_t index, std::string_view text, std::string_view logprobs,
                           const std::string& finish_reason) const;

  const Tokenizer& tokenizer_;

 private:
  std::string head(const char* object) const;
  std::string logprobs(const TextDelta& delta) const {
    return want_logprobs_ ? logprobs_list(delta) : "null";
  }

  const ObjectNames objects_;
  const bool want_logprobs_;
  const bool include_usage_;
  const std::string id_;
  const std::string model_;  // as JSON
  const int64_t created_;    // seconds since 1970
};

// The bytes of a token; none for an id outside the vocabulary.
std::string_view token_bytes(const Tokenizer& tokenizer, Token id);
// JSON has no infinity; -9999 is what clients know from other servers.
double finite_logprob(float logprob);

}  // namespace kvasir
