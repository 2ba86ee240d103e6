// Each allocation of the server's threads fails once, the engine's among them: a request fails or is answered
// rightly, and the next one is answered.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "memory/failing_new.h"
#include "sched/registry.h"
#include "server/backend.h"
#include "server/http_client.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

// Spells the alphabet, by position, with memory at any time.
class SpellingExecutor final : public Executor {
 public:
  int depth() const override { return 1; }
  void submit(Step step) override { step_ = std::move(step); }
  StepResult wait() override {
    const Spared spared;
    const Step step = *std::exchange(step_, std::nullopt);
    StepResult result;
    result.id = step.id;
    for (const StepSlice& s : step.slices) {
      if (!s.samples) continue;
      SampledToken& sampled = result.sampled.emplace_back();
      sampled.seq = s.seq;
      sampled.token = token_of(static_cast<char>('a' + s.tokens.end % 26));
    }
    return result;
  }

 private:
  std::optional<Step> step_;
};

EngineOptions spelling_options() {
  EngineOptions o;
  o.cache.geometry = {16, 2, 1, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 32;
  o.max_model_len = 512;
  return o;
}

class ServedWorld {
 public:
  ServedWorld()
      : tokenizer_(byte_tokenizer()),
        engine_(spelling_options(), make_policy("auto").value(), executor_, clock_),
        backend_(make_engine_backend(engine_)),
        server_(Server::start(test_options()).value()) {
    engine_.start();
    server_->serve({backend_.get(), &tokenizer_, render_test_chat});
  }
  ~ServedWorld() {
    engine_.stop();
    server_->stop(kNanosPerSecond);
  }

  uint16_t port() const { return server_->port(); }
  Engine& engine() { return engine_; }

 private:
  const MonotonicClock clock_;
  SpellingExecutor executor_;
  Tokenizer tokenizer_;
  Engine engine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Server> server_;
};

const std::string kPlain = post("/v1/completions", R"({"prompt":"once","max_tokens":6})");
const std::string kStream = post(kChatPath, chat_body(R"("max_tokens":5,"stream":true)"));

// The status, or 0 if the connection ended without an answer, and what the answer says.
struct Heard {
  int status = 0;
  std::string text;
};

Heard ask(ServedWorld& world, const std::string& request) {
  HttpClient client(world.port());
  if (!client.send(request)) return {};
  const auto answer = client.receive();
  if (!answer) return {0, client.has_received() ? "the beginning of an answer" : ""};
  // Ids and times differ.
  std::string text = answer->body;
  for (const char* key : {R"("id":")", R"("created":)"}) {
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
      const size_t begin = at + std::string(key).size();
      text.erase(begin, text.find_first_of(R"(",})", begin) - begin);
    }
  }
  return {answer->status, text};
}

// A client that goes away in the middle of its answer.
void ask_and_leave(ServedWorld& world) {
  HttpClient client(world.port());
  if (client.send(post(kChatPath, chat_body(R"("max_tokens":200,"stream":true)"))))
    client.receive_until("data:");
}

// Right, or an error that says so; a stream may have begun to be right.
void expect_answer(const Heard& heard, const Heard& right, bool may_fail) {
  if (heard.status == 200 && heard.text == right.text) return;
  ASSERT_TRUE(may_fail) << heard.status << " " << heard.text;
  if (heard.status == 200) {
    EXPECT_NE(heard.text.find(R"("error")"), std::string::npos) << heard.text;
    return;
  }
  if (heard.status == 0) {
    // It could not even be taken. An answer that has begun has an end.
    EXPECT_EQ(heard.text, "");
    return;
  }
  EXPECT_TRUE(heard.status == 500 || heard.status == 503) << heard.status << " " << heard.text;
  EXPECT_NE(heard.text.find(R"("message")"), std::string::npos) << heard.text;
}

TEST(ServerMemory, EachAllocationMayFail) {
  const Spared spared;
  ServedWorld world;
  const Heard plain = ask(world, kPlain), stream = ask(world, kStream);
  ASSERT_EQ(plain.status, 200);
  ASSERT_EQ(stream.status, 200);
  ask_and_leave(world);
  uint64_t silent = 0, errors = 0, k = 1;
  for (;; k = next_failing(k)) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    fail_allocations(k, 1, Counted::kEveryThread);
    const Heard first = ask(world, kPlain);
    const Heard second = ask(world, kStream);
    ask_and_leave(world);
    const Failures failures = fail_no_more();
    expect_answer(first, plain, failures.any());
    expect_answer(second, stream, failures.any());
    for (const Heard& h : {first, second}) {
      silent += h.status == 0;
      errors += h.status >= 500;
    }
    expect_answer(ask(world, kPlain), plain, false);
    expect_answer(ask(world, kStream), stream, false);
    ASSERT_TRUE(world.engine().wait_idle(20 * kNanosPerSecond));
    if (!failures.any() || testing::Test::HasFailure()) break;
  }
  RecordProperty("allocations", std::to_string(k));
  EXPECT_GT(k, 200u);
  EXPECT_GT(errors, silent) << "most requests must be told";
  const EngineMetrics& m = world.engine().metrics();
  EXPECT_GT(m.fresh_starts, 0u);
  EXPECT_EQ(m.kv_blocks_used, 0u);
  EXPECT_EQ(m.num_requests_running + m.num_requests_waiting, 0u);
}

}  // namespace
}  // namespace kvasir::test
