// OpenAI's schema: what /v1/chat/completions and /v1/completions share. Internal to src/server and its tests.
#pragma once

#include <cstddef>
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
#include "server/handlers/request_fields.h"
#include "server/json_fields.h"

namespace kvasir {

// Requests: the fields of request_fields.h over the defaults. Pure, thread-safe; these throw nothing but
// bad_alloc.
std::variant<ApiRequest, ApiError> parse_chat_request(std::string_view body, const ApiRequest& defaults = {});
std::variant<ApiRequest, ApiError> parse_completion_request(std::string_view body,
                                                            const ApiRequest& defaults = {});

// Answers to `request`. REQUIRES: the tokenizer outlives the writer.
std::unique_ptr<AnswerWriter> make_chat_writer(const Tokenizer& tokenizer, const ApiRequest& request);
std::unique_ptr<AnswerWriter> make_completion_writer(const Tokenizer& tokenizer, const ApiRequest& request);

inline constexpr int64_t kMaxLogprobs = 20;  // alternatives of a token that may be asked for

// Setters of the table of fields; null counts as a wrong value.
void set_messages(ApiRequest& request, const nlohmann::json& messages, JsonFields& errors);
void set_prompt(ApiRequest& request, const nlohmann::json& prompt, JsonFields& errors);

// A string, a list of token ids, or a list of at most `most` of either; nothing if it is none of them, or
// empty.
std::optional<std::vector<PromptInput>> read_prompts(const nlohmann::json& prompt, size_t most);

inline constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024;

// A list of strings within bounds into `out`; false: it is something else.
bool read_texts(const nlohmann::json& list, size_t most, size_t most_bytes, std::vector<std::string>& out);

// The tokens of a list; nothing if an element is not a token id. The vocabulary is checked later.
std::optional<std::vector<Token>> token_list(const nlohmann::json& list);

// Writes what both kinds share: ids, usage, errors, the frame around each choice.
class OpenAiWriter : public AnswerWriter {
 public:
  std::string whole(const std::vector<FinishedChoice>& choices, const Usage& usage) final;
  // Nothing: the first chunk goes out with the first token, because clients take its time for the time to
  // that.
  std::string first_event(size_t, const Usage&) final { return {}; }
  std::string delta_event(size_t choice, const TextDelta& delta, const std::string& finish_reason) final;
  std::string usage_event(const Usage& usage) final;
  std::string error_event(const ApiError& error) final;
  std::string last_words(const ApiError& error) const final;
  std::string last_event() final;

 protected:
  // The value of "object" in a whole answer and in the chunks of a stream.
  struct ObjectNames {
    const char* whole;
    const char* chunk;
  };

  OpenAiWriter(const Tokenizer& tokenizer, const ApiRequest& request, const char* id_prefix,
               ObjectNames objects);

  // The member that holds the text of a choice: "text", "delta" or "message". A delta may need several, each
  // in a chunk of its own, and has at least one.
  virtual std::string whole_text(const TextDelta& all) const = 0;
  // The chunk before the first delta of a choice; none if it is empty.
  virtual std::string opening_text() const { return {}; }
  virtual std::vector<std::string> delta_texts(const TextDelta& delta) const = 0;
  virtual std::string logprobs_list(const TextDelta& delta) const = 0;
  // Whether prompt_logprobs are a member of each choice, and not of the answer.
  virtual bool prompt_logprobs_in_choice() const = 0;

  // The chunk of one choice. `text` is a member as above; the others are JSON values.
  std::string choice_event(size_t index, std::string_view text, std::string_view logprobs,
                           const std::string& finish_reason) const;

  const Tokenizer& tokenizer_;

 private:
  std::string head(const char* object) const;
  std::string logprobs(const TextDelta& delta) const {
    return want_logprobs_ ? logprobs_list(delta) : "null";
  }

  // A member with the log-probabilities of a prompt, as docs/api.md has it; empty if they are not asked for.
  std::string prompt_logprobs(const FinishedChoice& choice) const;

  const ObjectNames objects_;
  const int32_t prompt_logprobs_;
  const bool want_logprobs_;
  const bool include_usage_;
  const std::string id_;
  const std::string model_;   // as JSON
  const int64_t created_;     // seconds since 1970
  std::vector<bool> opened_;  // by choice
};

// The bytes of a token; none for an id outside the vocabulary.
std::string_view token_bytes(const Tokenizer& tokenizer, Token id);
// "null" if there is none.
std::string logprob_json(std::optional<float> logprob);
// JSON has no infinity; -9999 is what clients know from other servers.
double finite_logprob(float logprob);

}  // namespace kvasir
