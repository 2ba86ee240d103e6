// One streamed completion: the request's body, and what its answer says, with times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/bench/prompts.h"
#include "apps/bench/sse.h"
#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Everything that is measured of one request. Times are those of the run's clock.
struct RequestRecord {
  // kWaiting: not arrived yet; kHeld: arrived, and held back by max_concurrency.
  enum class State { kWaiting, kHeld, kSent, kCompleted, kFailed };
  State state = State::kWaiting;
  Nanos arrival = 0;        // since the run's start, as the load has it
  Nanos start = 0;          // the request is sent: just before its connection is opened
  Nanos first = 0;          // the first chunk with content, or the finishing one when none had any
  Nanos last = 0;           // the last chunk with content, or the finishing one when that came later
  Nanos end = 0;            // the answer ended, in whatever way; 0: it has not
  bool refused = false;     // failed by HTTP 503
  std::vector<Nanos> gaps;  // between chunks with content
  int64_t content_chunks = 0;
  int64_t prompt_words = 0;
  int64_t wanted_tokens = 0;  // of output, as the dataset says
  std::vector<Goal> own;      // its own bounds; none: the run's goals apply
  // Set when the request has completed: what `usage` said, else words and chunks.
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  bool usage_known = false;
  std::string text;   // kept on request only
  std::string error;  // one line; empty unless kFailed
};

struct CompletionRequest {
  std::string model;
  bool chat = false;  // the /v1/chat/completions form
  bool ignore_eos = false;
  double temperature = 0;
  bool force_output_length = false;  // forced_output_tokens in place of max_tokens
  bool tell_output_length = false;   // output_tokens_hint as well
  int64_t max_tokens = 0;            // sent beside a forced length; 0: not sent
  // "ttft", milliseconds; none: not sent. A prompt's own bounds go before them.
  std::vector<std::pair<std::string, double>> slo_ms = {};
  std::string extra_body = {};  // a JSON object of further fields
};

bool is_json_object(std::string_view text);

// The JSON body that asks for a stream with usage.
std::string completion_body(const CompletionRequest& request, const Prompt& prompt);

// Follows one answer and fills in *record, which must outlive it. Not thread-safe. Calls come in the order
// on_head, on_body..., on_end; on_end may come at any time and comes once.
class CompletionStream {
 public:
  CompletionStream(RequestRecord* record, bool keep_text);

  void on_head(int status, std::string_view content_type);
  // Returns false when no more bytes are wanted: the stream is done, or broken.
  bool on_body(std::string_view bytes, Nanos now);
  // `transport` says how the connection ended. Leaves record->state kCompleted or kFailed.
  void on_end(const Status& transport);

 private:
  enum class Kind { kNone, kStream, kOther };

  void on_event(std::string_view data, Nanos now);
  void on_content(std::string_view text, Nanos now);
  void fail(std::string message);
  std::string describe_other_answer() const;

  RequestRecord* const record_;
  const bool keep_text_;
  SseParser parser_;
  Kind kind_ = Kind::kNone;
  int status_ = 0;
  std::string content_type_;
  std::string other_body_;  // of an answer that is not a stream, up to a bound
  bool finished_ = false;   // a finish_reason was seen
  bool done_ = false;       // [DONE] was seen
  bool failed_ = false;
};

// The message of an OpenAI error body, or the beginning of the text; always one line without control
// characters.
std::string error_message_of(std::string_view body);

}  // namespace kvasir
