// The server over a fake GPU.
#include <nlohmann/json.hpp>

#include "runtime/gpu_runtime_rig.h"
#include "runtime/model_service.h"
#include "server/choice_stream.h"
#include "server/http_client.h"
#include "server/server.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GpuServer : public GpuRuntime {
 protected:
  GpuServer() {
    runtime_ = load();
    KV_CHECK(runtime_ != nullptr, "no runtime");
    backend_ = make_engine_backend(runtime_->engine());
    ServerOptions server;
    server.port = 0;
    server.model_names = {"tiny"};
    server_ = Server::start(server).value();
    server_->serve(make_service(*runtime_, *backend_));
  }
  HttpAnswer ask(const std::string& request) const {
    HttpClient client(server_->port());
    EXPECT_TRUE(client.send(request));
    return client.receive().value_or(HttpAnswer{});
  }
  // Of a greedy request.
  static std::string body_of(const RigRequest& r, bool stream) {
    return json{{"prompt", r.prompt}, {"max_tokens", r.max_tokens}, {"temperature", 0},
                {"min_p", 0},         {"ignore_eos", true},         {"stream", stream}}
        .dump();
  }
  // What the server makes of the reference's tokens.
  std::string text_of(const RigRequest& request) const {
    ChoiceStream stream = ChoiceStream::create(&runtime_->tokenizer(), {}, {}, false).value();
    TextDelta delta;
    const std::vector<RigOutput> expected = reference({request});
    for (const Token token : expected[0].tokens) {
      const OutputToken one{token, 0, {}};
      EXPECT_TRUE(stream.push(one, delta).ok());
    }
    stream.finish(delta);
    return delta.text;
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Server> server_;
};

TEST_F(GpuServer, StreamsTheReferencesTextAndSurvivesClientsThatLeave) {
  RigRequest request{random_tokens(3, 70), 24};
  request.sampling.temperature = 0;
  const std::string expected = text_of(request);

  HttpClient leaving(server_->port());
  RigRequest endless{random_tokens(5, 20), 480};
  leaving.send(post("/v1/completions", body_of(endless, true)));
  ASSERT_TRUE(leaving.receive_until("data: "));

  HttpClient client(server_->port());
  client.send(post("/v1/completions", body_of(request, true)));
  leaving.close();
  const auto streamed = client.receive();
  ASSERT_TRUE(streamed && streamed->status == 200);
  std::string text;
  size_t pieces = 0;
  for (const std::string& event : events(streamed->body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    if (chunk["choices"].empty()) continue;
    text += chunk["choices"][0]["text"].get<std::string>();
    ++pieces;
  }
  EXPECT_EQ(text, expected);
  EXPECT_GT(pieces, 1U);

  HttpClient whole(server_->port());
  whole.send(post("/v1/completions", body_of(request, false)));
  const auto answer = whole.receive();
  ASSERT_TRUE(answer && answer->status == 200);
  EXPECT_EQ(json::parse(answer->body)["choices"][0]["text"], expected);
  EXPECT_TRUE(runtime_->engine().wait_idle(10 * kNanosPerSecond)) << "the client that left is cancelled";
  server_->stop(kNanosPerSecond);
}

TEST_F(GpuServer, SaysThatItsDeviceIsLost) {
  RigRequest request{random_tokens(5, 20), 480};
  HttpClient client(server_->port());
  ASSERT_TRUE(client.send(post("/v1/completions", body_of(request, true))));
  ASSERT_TRUE(client.receive_until("data: "));
  for (const char* path : {"/livez", "/readyz", "/health"}) EXPECT_EQ(ask(get(path)).status, 200) << path;
  gpu_->lose();
  const auto streamed = client.receive();
  ASSERT_TRUE(streamed);
  EXPECT_THAT(streamed->body, HasSubstr("the GPU failed: it is lost; restart the server"));
  for (const std::string& asked :
       {get("/livez"), get("/readyz"), get("/health"), post("/v1/completions", body_of(request, false))}) {
    const HttpAnswer answer = ask(asked);
    EXPECT_EQ(answer.status, 503) << asked;
    EXPECT_THAT(answer.body, HasSubstr("the GPU failed: it is lost; restart the server"));
  }
  server_->stop(kNanosPerSecond);
}

}  // namespace
}  // namespace kvasir::test
