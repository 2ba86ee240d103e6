// From the events of the engine to an answer.
#include "server/generation.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/patiently.h"

namespace kvasir {
namespace {

constexpr const char* kCutOff =
    "the server cannot go on with this answer, for want of memory; try again later";

// Ids of calls differ between choices and requests.
uint64_t random_id_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

std::optional<ApiError> failure_of(const OutputEvent& event) {
  if (event.finish == FinishReason::kAbort) {
    return unavailable("the server stopped before the answer was complete; try again", "aborted", 5);
  }
  if (event.finish != FinishReason::kError) return std::nullopt;
  if (event.try_again) return unavailable(event.error, "overloaded", 1);
  ApiError e;
  e.status = 500;
  e.message = event.error.empty() ? "the generation failed" : event.error;
  return e;
}

// Used on the engine's thread; posts every event to the I/O thread.
class Generation::Sink final : public OutputSink {
 public:
  Sink(std::weak_ptr<Generation> generation, size_t choice, PostToIo post)
      : generation_(std::move(generation)), choice_(choice), post_(std::move(post)) {}

  void on_output(OutputEvent event) override {
    const auto kept = patiently([&] { return std::make_shared<OutputEvent>(std::move(event)); });
    patiently([&] {
      post_([generation = generation_, choice = choice_, kept] {
        if (auto alive = generation.lock()) alive->receive(choice, std::move(*kept));
      });
    });
  }

 private:
  const std::weak_ptr<Generation> generation_;
  const size_t choice_;
  const PostToIo post_;
};

Generation::Generation(const ModelService& service, PreparedRequest request,
                       std::unique_ptr<AnswerWriter> writer, PostToIo post, const StreamLimits& limits,
                       ResponseChannel* channel, KeyLease lease)
    : service_(service),
      request_(std::move(request)),
      post_(std::move(post)),
      limits_(limits),
      stream_(request_.api.stream),
      writer_(std::move(writer)),
      lease_(std::move(lease)),
      channel_(channel) {}

Status Generation::add_choices() {
  cached_by_choice_.resize(request_.generations.size());
  const OutputPlan& plan = request_.output;
  OutputParserOptions parser;
  std::vector<Token> shown;
  if (plan.active()) {
    shown = control_marks(*service_.tokenizer, plan);
    for (const Token id : shown) parser.hidden.push_back(service_.tokenizer->token_text(id));
    parser.plan = plan;
    parser.include_reasoning = request_.api.include_reasoning;
    parser.parallel_calls = request_.api.parallel_tool_calls;
  }
  for (size_t i = 0; i < request_.generations.size(); ++i) {
    const GenerationRequest& g = request_.generations[i];
    KV_ASSIGN_OR_RETURN(
        ChoiceStream text,
        ChoiceStream::create(service_.tokenizer, request_.api.stop, g.stop_tokens,
                             request_.api.sampling.logprobs >= 0, request_.api.rules.min_tokens, shown));
    if (leads(i)) prompt_tokens_ += g.prompt.size();
    Choice& choice = choices_.emplace_back(Choice{std::move(text)});
    if (request_.api.echo) choice.echoed = g.prompt;
    if (!plan.active()) continue;
    parser.id_seed = random_id_seed();
    choice.parser = std::make_unique<OutputParser>(parser, request_.api.tools);
  }
  return {};
}

void Generation::begin_record() const {
  const ApiRequest& api = request_.api;
  GenerationRecord& record = channel_->record().generation;
  record.model = api.model;
  record.choices = choices_.size();
  record.n = api.choices;
  record.max_tokens = api.max_tokens.value_or(0);
  record.temperature = static_cast<double>(api.sampling.temperature);
  record.top_p = static_cast<double>(api.sampling.top_p);
  record.prompt_tokens = prompt_tokens_;
}

void Generation::complete_record() const {
  GenerationRecord& record = channel_->record().generation;
  const Usage used = usage();
  record.cached_tokens = used.cached_tokens;
  record.output_tokens = used.completion_tokens;
  record.longest_choices.clear();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (leads(i)) record.longest_choices.push_back(0);
    uint64_t& longest = record.longest_choices.back();
    longest = std::max<uint64_t>(longest, choices_[i].text.completion_tokens());
  }
  for (const Choice& choice : choices_) {
    if (!choice.finish_reason.empty()) record.finish_reasons.push_back(choice.finish_reason);
  }
}

bool Generation::submit(size_t index) {
  Choice& choice = choices_[index];
  choice.submitted = true;
  const size_t prompt_tokens = request_.generations[index].prompt.size();
  channel_->record().add_timeline(request_.generations[index], index);
  GenerationRequest& request = request_.generations[index];
  auto sink = std::make_shared<Sink>(weak_from_this(), index, post_);
  Result<RequestId> id = places_ ? service_.backend->submit_in(*places_, std::move(request), std::move(sink))
                                 : service_.backend->submit(std::move(request), std::move(sink));
  if (id.ok()) {
    choice.id = *id;
    if (leads(index)) lease_.prompt(prompt_tokens, clock_.now());
    return true;
  }
  choice.finished = true;
  refuse(id.status());
  return false;
}

void Generation::refuse(const Status& status) {
  if (status.code() == ErrorCode::kOverShare) lease_.over_share();
  // Choices that were not submitted need no cancel().
  for (Choice& choice : choices_) choice.finished = choice.finished || !choice.submitted;
  fail(api_error(status));
}

void Generation::start() {
  if (const Status status = add_choices(); !status.ok()) {
    for (Choice& choice : choices_) choice.finished = true;
    return fail(api_error(status));
  }
  begin_record();
  if (choices_.size() > 1) {
    auto places = service_.backend->reserve(request_.generations);
    if (!places.ok()) return refuse(places.status());
    places_ = std::move(places).value();
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (leads(i) && !submit(i)) return;
  }
  begun_ = true;
  if (!stream_) return;
  channel_->begin_stream(writer_->last_words(unavailable(kCutOff, "overloaded", 1)));
  for (size_t i = 0; i < choices_.size() && channel_ != nullptr; ++i) send(writer_->first_event(i, usage()));
}

// The prompt of the leader has been computed, and its full blocks can be found.
void Generation::follow(size_t leader) {
  for (size_t i = leader + 1; i < leader + request_.api.candidates(); ++i) {
    if (choices_[i].submitted || channel_ == nullptr) return;
    if (!submit(i)) return;
  }
}

// Called from the queue of the I/O thread, where an exception could not be traced to its exchange.
void Generation::receive(size_t index, OutputEvent event) {
  ResponseChannel* channel = channel_;
  try {
    on_event(index, std::move(event));
  } catch (const std::exception& e) {
    if (channel != nullptr) channel->on_failure(e);
    abort();
  }
}

void Generation::on_event(size_t index, OutputEvent event) {
  KV_CHECK(index < choices_.size(), "choice {} of {}", index, choices_.size());
  if (channel_ == nullptr) return;
  cached_by_choice_[index] = std::max(cached_by_choice_[index], event.cached_prompt_tokens);
  Choice& choice = choices_[index];
  if (choice.finished) return;
  const Nanos now = clock_.now();
  lease_.output(event.tokens.size(), now);
  Nanos& first_token = channel_->record().generation.first_token;
  if (first_token == 0 && !event.tokens.empty()) first_token = now;
  apply(choice, event);
  if (channel_ != nullptr && leads(index)) follow(index);
  if (channel_ == nullptr) return;
  if (stream_) flush();
  if (channel_ != nullptr) maybe_finish();
}

void Generation::apply(Choice& choice, OutputEvent& event) {
  if (!choice.echoed.empty() && !event.tokens.empty()) {
    const std::vector<Token> prompt = std::exchange(choice.echoed, {});
    const auto top = static_cast<size_t>(std::max(request_.api.sampling.logprobs, 0));
    if (const Status status = choice.text.echo(prompt, event.prompt, top, choice.delta); !status.ok()) {
      return fail(api_error(status));
    }
  }
  if (request_.api.prompt_logprobs >= 0 && !event.prompt.empty()) choice.prompt = std::move(event.prompt);
  if (request_.api.max_tokens == 0U) event.tokens.clear();
  for (const OutputToken& token : event.tokens) {
    choice.logprob += static_cast<double>(token.logprob);
    TextDelta piece;
    if (const Status status = choice.text.push(token, piece); !status.ok()) {
      ApiError e = api_error(status);
      e.status = 500;
      return fail(e);
    }
    add(choice, std::move(piece));
    if (choice.parser && choice.parser->thinks()) ++choice.reasoning_tokens;
    if (choice.text.stopped_by_string() || (choice.parser && choice.parser->complete())) {
      if (!event.finish) service_.backend->cancel(choice.id, FinishReason::kStop);
      return finish_choice(choice, "stop");
    }
  }
  if (!event.finish) return;
  switch (*event.finish) {
    case FinishReason::kStop:
      return finish_choice(choice, "stop");
    case FinishReason::kLength:
      return finish_choice(choice, "length");
    case FinishReason::kAbort:
    case FinishReason::kError:
      choice.finished = true;
      return fail(*failure_of(event));
  }
}

void Generation::add(Choice& choice, TextDelta piece) {
  std::move(piece.logprobs.begin(), piece.logprobs.end(), std::back_inserter(choice.delta.logprobs));
  if (choice.parser) {
    choice.parser->push(piece.text, choice.delta);
  } else {
    choice.delta.text += piece.text;
  }
}

void Generation::finish_choice(Choice& choice, const char* reason) {
  TextDelta rest;
  choice.text.finish(rest);
  add(choice, std::move(rest));
  // The end of the text may have completed a stop string.
  choice.finish_reason = choice.text.stopped_by_string() ? "stop" : reason;
  if (choice.parser) {
    choice.parser->finish(choice.delta);
    const bool called = choice.parser->calls() > 0 && !choice.parser->cut();
    if (called && choice.finish_reason == "stop") choice.finish_reason = "tool_calls";
  }
  choice.delta.stop_string = choice.text.stop_string();
  choice.finished = true;
}

void Generation::fail(const ApiError& error) {
  ResponseChannel* channel = channel_;
  if (!stream_ || !begun_) {
    abort();
    return channel->respond(error_response(error));
  }
  channel_->record().error = error_name(error);
  channel_->record().end = RequestEnd::kFailed;
  send(writer_->error_event(error));
  send(writer_->last_event());
  abort();
  channel->end_stream();
}

void Generation::abort() {
  if (channel_ == nullptr) return;
  try {
    complete_record();
  } catch (const std::exception&) {
    // There is no memory for it; the request ends all the same.
  }
  channel_ = nullptr;
  lease_ = {};
  places_.reset();
  for (Choice& choice : choices_) {
    if (!choice.finished && choice.submitted) service_.backend->cancel(choice.id, FinishReason::kAbort);
    choice.finished = true;
  }
}

void Generation::on_drained() {
  if (channel_ == nullptr || !stream_) return;
  flush();
  if (channel_ != nullptr) maybe_finish();
}

void Generation::flush() {
  if (channel_->unsent_bytes() >= limits_.gather_bytes) {
    if (gathered_bytes() <= limits_.max_gathered_bytes) return;
    ResponseChannel* channel = channel_;
    abort();
    return channel->abandon_slow_reader();
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const bool report = choice.finished && !choice.reported;
    if (choice.delta.empty() && !report) continue;
    send(writer_->delta_event(i, choice.delta, choice.finish_reason));
    choice.delta = {};
    choice.reported = choice.finished;
  }
}

void Generation::maybe_finish() {
  for (const Choice& choice : choices_) {
    if (!choice.finished || (stream_ && !choice.reported)) return;
  }
  ResponseChannel* channel = channel_;
  if (stream_) {
    send(writer_->usage_event(usage()));
    send(writer_->last_event());
    abort();
    return channel->end_stream();
  }
  std::vector<FinishedChoice> finished;
  for (const size_t i : ranked()) {
    Choice& choice = choices_[i];
    finished.push_back({std::move(choice.delta), choice.finish_reason, std::move(choice.prompt)});
  }
  abort();
  channel->respond(json_response(writer_->whole(finished, usage())));
}

std::vector<size_t> Generation::ranked() const {
  std::vector<size_t> out;
  const size_t candidates = request_.api.candidates();
  const auto mean = [this](size_t i) {
    const double value = choices_[i].logprob / std::max<double>(choices_[i].text.completion_tokens(), 1);
    return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value;
  };
  for (size_t first = 0; first < choices_.size(); first += candidates) {
    std::vector<size_t> of_prompt(candidates);
    std::iota(of_prompt.begin(), of_prompt.end(), first);
    if (request_.api.ranks()) {
      std::stable_sort(of_prompt.begin(), of_prompt.end(),
                       [&](size_t a, size_t b) { return mean(a) > mean(b); });
    }
    out.insert(out.end(), of_prompt.begin(), of_prompt.begin() + request_.api.choices);
  }
  return out;
}

void Generation::send(const std::string& event) {
  if (channel_ != nullptr && !event.empty()) channel_->stream(event);
}

size_t Generation::gathered_bytes() const {
  size_t bytes = 0;
  // About the size of a log-probability in an event.
  constexpr size_t kLogprobBytes = 64;
  for (const Choice& choice : choices_) {
    bytes += choice.delta.text.size() + choice.delta.reasoning.size();
    for (const ToolCallDelta& call : choice.delta.tool_calls) bytes += call.arguments.size();
    for (const LogprobEntry& e : choice.delta.logprobs) bytes += kLogprobBytes * (1 + e.top.size());
  }
  return bytes;
}

Usage Generation::usage() const {
  Usage u;
  u.prompt_tokens = prompt_tokens_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    u.completion_tokens += choices_[i].text.completion_tokens();
    u.reasoning_tokens += choices_[i].reasoning_tokens;
    if (leads(i)) u.cached_tokens += cached_by_choice_[i];
  }
  return u;
}

}  // namespace kvasir
