// The pages for browsers: how they and their files are sent, and where.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "server/running_server.h"
#include "server/web_assets.h"

namespace kvasir::test {
namespace {

HttpAnswer asset(RunningServer& server, std::string_view path, std::string_view headers = "") {
  return server.ask(fmt::format("GET /assets/{} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers));
}

TEST(Pages, ThePageLoadsOnlyFilesOfThisServer) {
  RunningServer server(say("x"));
  const HttpAnswer page = server.ask(get("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.body.find("://"), std::string::npos);
  EXPECT_EQ(server.ask(get("/?chat=1")).body, page.body);
  // Whatever the page links to is there, and nothing in it is a script or a style by itself.
  const std::regex link(R"re((?:href|src)="([^"]*)")re");
  int links = 0;
  for (std::sregex_iterator i(page.body.begin(), page.body.end(), link), end; i != end; ++i, ++links) {
    EXPECT_EQ(server.ask(get("/" + (*i)[1].str())).status, 200) << (*i)[1];
  }
  EXPECT_GE(links, 4);
  EXPECT_EQ(page.body.find("<style"), std::string::npos);
  EXPECT_EQ(page.body.find("style="), std::string::npos);
  EXPECT_EQ(server.ask("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_EQ(server.ask(post("/", "{}")).status, 405);
}

TEST(Pages, EveryFileHasItsTypeAndThePolicy) {
  RunningServer server(say("x"));
  ASSERT_GE(web_assets().size(), 8u);
  for (const WebAsset& file : web_assets()) {
    const HttpAnswer answer = asset(server, file.path);
    EXPECT_EQ(answer.status, 200) << file.path;
    EXPECT_EQ(answer.body, file.bytes) << file.path;
    EXPECT_EQ(answer.headers.at("content-type"), file.content_type);
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("referrer-policy"), "no-referrer");
    const std::string& policy = answer.headers.at("content-security-policy");
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; ")) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  }
  for (const char* wrong : {"", "chat/", "chat/nothing.js", "../server.cc", "%2e%2e/common/style.css", "~"}) {
    EXPECT_EQ(asset(server, wrong).status, 404) << wrong;
  }
}

TEST(Pages, TheOwnScriptsParseNoHtml) {
  for (const WebAsset& file : web_assets()) {
    if (file.path.starts_with("lib/")) continue;
    for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                             "new Function", "DOMParser", "srcdoc"}) {
      EXPECT_EQ(file.bytes.find(word), std::string_view::npos) << file.path << ": " << word;
    }
  }
}

TEST(Pages, ACopyThatHoldsIsNotSentAgain) {
  RunningServer server(say("x"));
  const HttpAnswer plain = asset(server, "common/style.css");
  const HttpAnswer packed = asset(server, "common/style.css", "Accept-Encoding: br, gzip\r\n");
  EXPECT_FALSE(plain.headers.contains("content-encoding"));
  EXPECT_EQ(packed.headers.at("content-encoding"), "gzip");
  EXPECT_EQ(packed.headers.at("vary"), "Accept-Encoding");
  EXPECT_LT(packed.body.size(), plain.body.size());
  EXPECT_TRUE(packed.body.starts_with("\x1f\x8b"));
  EXPECT_FALSE(asset(server, "common/style.css", "Accept-Encoding: gzip;q=0\r\n")
                   .headers.contains("content-encoding"));
  EXPECT_NE(plain.headers.at("etag"), packed.headers.at("etag"));
  const std::string tag = plain.headers.at("etag");
  const HttpAnswer same =
      asset(server, "common/style.css", fmt::format("If-None-Match: \"x\", W/{}\r\n", tag));
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.body, "");
  EXPECT_EQ(same.headers.at("etag"), tag);
  EXPECT_FALSE(same.headers.contains("content-length"));
  EXPECT_EQ(asset(server, "common/style.css", "If-None-Match: \"x\"\r\n").status, 200);
  EXPECT_EQ(asset(server, "chat/main.js", fmt::format("If-None-Match: {}\r\n", tag)).status, 200);
}

TEST(Pages, AReaderOfAFileHoldsNoCopyOfIt) {
  RunningServer server(say("x"));
  constexpr size_t kReaders = 50;
  const std::string path = "/assets/lib/highlight.js";
  const size_t bytes = server.ask(get(path)).body.size();
  ASSERT_GT(bytes, 500'000u);
  std::vector<std::unique_ptr<HttpClient>> readers;
  const auto held = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = held();
  for (size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<HttpClient>(server.port(), 4096));
    ASSERT_TRUE(readers.back()->send(get(path)));
    ASSERT_TRUE(readers.back()->receive_until("\r\n\r\n"));
  }
  EXPECT_LT(held(), before + kReaders * bytes / 4);
}

TEST(Pages, NeedNoKeyAndNoModel) {
  ServerOptions options = test_options();
  options.api_keys = {"secret"};
  RunningServer server(say("x"), options);
  EXPECT_EQ(server.ask(get("/")).status, 200);
  EXPECT_EQ(asset(server, "common/api.js").status, 200);
  EXPECT_EQ(server.ask(get("/v1/models")).status, 401);
}

TEST(Pages, MayBeOffAndAreNotOnTheAdminPort) {
  ServerOptions options = test_options();
  options.admin_port = 0;
  RunningServer server(say("x"), options);
  HttpClient admin(server->admin_port());
  ASSERT_TRUE(admin.send(get("/")));
  EXPECT_EQ(admin.receive().value_or(HttpAnswer{}).status, 404);
  options.web = false;
  RunningServer without(say("x"), options);
  EXPECT_EQ(without.ask(get("/")).status, 404);
  EXPECT_EQ(asset(without, "common/style.css").status, 404);
  EXPECT_EQ(without.ask(get("/docs")).status, 200);
}

TEST(Pages, AForeignNameIsRefused) {
  RunningServer server(say("x"));
  EXPECT_EQ(server.ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
}

}  // namespace
}  // namespace kvasir::test
