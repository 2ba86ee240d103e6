// API keys by themselves: their file, who is who, and what their bounds leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/keys/key_file.h"
#include "server/keys/key_ring.h"
#include "server/keys/key_usage.h"
#include "server/server.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;

constexpr Nanos kMinute = 60 * kNanosPerSecond;

// What `printf %s secret | sha256sum` prints.
constexpr const char* kSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const std::string kZeros(64, '0');

TEST(ApiKey, ADigestIsSha256) {
  EXPECT_EQ(hex_of(key_digest("secret")), kSecret);
}

TEST(KeyFile, HasWhatItSays) {
  const auto keys =
      parse_key_file(std::string("# who\nkeys:\n  - name: alice@b.c\n    sha256: ") + kSecret +
                         "\n    concurrent_requests: 64\n    requests_per_minute: 600\n"
                         "    tokens_per_minute: 200000\n    queue_share: 0.25\n    weight: 2.5\n"
                         "    priority: -1\n    claims: [slo, output_tokens_hint, cache_map]\n"
                         "  - {name: bob, sha256: " +
                         kZeros + "}\n",
                     "f");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys.value().size(), 2u);
  const ApiKey& alice = keys.value()[0];
  EXPECT_EQ(alice.name, "alice@b.c");
  EXPECT_EQ(alice.digest, key_digest("secret"));
  EXPECT_EQ(alice.concurrent_requests, 64u);
  EXPECT_EQ(alice.requests_per_minute, 600u);
  EXPECT_EQ(alice.tokens_per_minute, 200'000u);
  EXPECT_EQ(alice.queue_share, 0.25F);
  EXPECT_EQ(alice.weight, 2.5F);
  EXPECT_EQ(alice.priority, -1);
  EXPECT_TRUE(alice.may_set_slo && alice.may_hint_output && alice.may_see_cache && !alice.may_set_priority);
  const ApiKey& bob = keys.value()[1];
  EXPECT_EQ(bob.concurrent_requests, 0u);
  EXPECT_EQ(bob.tokens_per_minute, 0u);
  EXPECT_FALSE(bob.queue_share.has_value());
  EXPECT_EQ(bob.weight, 1);
  EXPECT_FALSE(bob.may_set_slo || bob.may_hint_output || bob.may_see_cache || bob.may_set_priority);
  EXPECT_NE(alice.identity, bob.identity);
}

TEST(KeyFile, AnErrorNamesFileLineEntryAndField) {
  const std::string good = "keys:\n  - name: a\n    sha256: " + kZeros + "\n";
  ASSERT_TRUE(parse_key_file(good, "f").ok());
  struct Case {
    std::string text;
    std::vector<std::string> named;
  };
  const std::string other = "  - name: b\n    sha256: " + std::string(kSecret) + "\n";
  for (const auto& [text, named] : std::vector<Case>{
           {"", {"f: ", "'keys'"}},
           {"keys: 3", {"f: ", "'keys'"}},
           {"keys: []", {"f:1", "'keys'", "empty"}},
           {"keys: [", {"f:", "YAML"}},
           {good + "more: 1\n", {"f: ", "'keys'"}},
           {"keys:\n  - alice\n", {"f:2", "key 1", "map"}},
           {"keys:\n  - sha256: " + kZeros + "\n", {"f:2", "key 1", "'name'"}},
           {"keys:\n  - name: 'a b'\n", {"f:2", "key 1", "'name'"}},
           {"keys:\n  - name: [a]\n", {"f:2", "key 1", "'name'"}},
           {"keys:\n  - name: a\n", {"f:2", "key 'a'", "'sha256'"}},
           {"keys:\n  - name: a\n    sha256: abc\n", {"f:3", "key 'a'", "'sha256'"}},
           {"keys:\n  - name: a\n    sha256: +" + kZeros.substr(1) + "\n", {"f:3", "key 'a'", "'sha256'"}},
           {good + "    weight: &a 1\n", {"f:4:13", "anchor"}},
           {good + "    color: red\n", {"f:4", "key 1", "'color'", "weight"}},
           {good + "    weight: 0\n", {"f:4", "key 'a'", "'weight'"}},
           {good + "    weight: nan\n", {"f:4", "key 'a'", "'weight'"}},
           {good + "    weight: .inf\n", {"f:4", "key 'a'", "'weight'"}},
           {good + "    queue_share: 1.5\n", {"f:4", "key 'a'", "'queue_share'"}},
           {good + "    requests_per_minute: 0\n", {"f:4", "key 'a'", "'requests_per_minute'"}},
           {good + "    tokens_per_minute: 1k\n", {"f:4", "key 'a'", "'tokens_per_minute'"}},
           {good + "    tokens_per_minute: 10.5\n", {"f:4", "key 'a'", "'tokens_per_minute'"}},
           {good + "    concurrent_requests: [1]\n", {"f:4", "key 'a'", "'concurrent_requests'"}},
           {good + "    claims: slo\n", {"f:4", "key 'a'", "'claims'"}},
           {good + "    claims: [slo, money]\n", {"f:4", "key 'a'", "'claims'", "money"}},
           {good + "    priority: 1\n    priority: 2\n", {"f:5:5", "'priority'", "twice", "line 4"}},
           {good + other + other, {"f:6", "key 'b'", "'name'"}},
           {good + "  - name: b\n    sha256: " + kZeros + "\n", {"f:4", "key 'b'", "'sha256'"}}}) {
    const auto keys = parse_key_file(text, "f");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(keys.status().message().find('\n'), std::string::npos) << keys.status().message();
    for (const std::string& part : named) EXPECT_THAT(keys.status().message(), HasSubstr(part)) << text;
  }
  EXPECT_EQ(read_key_file("/nonexistent/keys").status().code(), ErrorCode::kNotFound);
}

TEST(KeyFile, ANewKeyAndItsEntryGoTogether) {
  const std::string key = new_key();
  EXPECT_EQ(key.size(), 46u);
  EXPECT_NE(key, new_key());
  const auto keys = parse_key_file("keys:\n" + key_entry("a", key), "f");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_TRUE(KeyRing(keys.value()).find("Bearer " + key, "").has_value());
}

KeyRing ring_of(const std::vector<std::string>& keys) {
  std::vector<ApiKey> all;
  for (const std::string& key : keys) all.push_back(plain_key("of-" + key, key));
  return KeyRing(std::move(all));
}

std::string name_of(const std::optional<Caller>& caller) {
  return caller ? std::string(caller->name()) : "nobody";
}

TEST(KeyRing, BearerTokensAndAnthropicsHeader) {
  const KeyRing ring = ring_of({"first-key", "second"});
  EXPECT_EQ(name_of(ring.find("Bearer first-key", "")), "of-first-key");
  EXPECT_EQ(name_of(ring.find("bearer second", "")), "of-second");
  EXPECT_EQ(name_of(ring.find("", "second")), "of-second");
  EXPECT_EQ(name_of(ring.find("Bearer wrong", "first-key")), "of-first-key") << "some clients send both";
  EXPECT_EQ(name_of(ring.find("Bearer second", "dummy")), "of-second");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyx",
                            "Bearer secondsecond", "Basic first-key", "first-key", "Bearer  first-key"}) {
    EXPECT_FALSE(ring.find(wrong, "").has_value()) << wrong;
    if (wrong != std::string("first-key")) {
      EXPECT_FALSE(ring.find("", wrong).has_value()) << wrong;
    }
  }
  EXPECT_FALSE(KeyRing({plain_key("empty", "")}).find("Bearer ", "").has_value());
}

TEST(KeyRing, WithoutKeysAllAreLetInAndOwnWhatTheyShow) {
  const KeyRing open;
  const Caller caller = open.find("Bearer a", "b").value();
  EXPECT_EQ(caller.owner, "a");
  EXPECT_EQ(caller.name(), "-");
  EXPECT_EQ(caller.tenant().id, 0u);
  EXPECT_EQ(open.find("Basic a", "b")->owner, "b");
  EXPECT_EQ(open.find("", "")->owner, "");
}

TEST(KeyRing, ATenantForEachKeyAndHalfTheQueueBesideOthers) {
  const KeyRing two = ring_of({"a", "b"});
  const Caller a = two.find("Bearer a", "").value(), b = two.find("Bearer b", "").value();
  EXPECT_NE(a.tenant().id, 0u);
  EXPECT_NE(a.tenant().id, b.tenant().id);
  EXPECT_EQ(a.tenant().queue_share, 0.5F);
  EXPECT_EQ(ring_of({"a"}).find("Bearer a", "")->tenant().queue_share, 1);
  ApiKey key = plain_key("k", "a");
  key.weight = 3;
  key.queue_share = 0.1F;
  const Tenant tenant = KeyRing({key}).find("Bearer a", "")->tenant();
  EXPECT_EQ(tenant.weight, 3);
  EXPECT_EQ(tenant.queue_share, 0.1F);
}

TEST(KeyRing, AKeyThatHasANumberForANameKeepsIt) {
  const auto keys = [](const std::vector<std::string>& all) {
    ServerOptions options;
    options.api_keys = all;
    return all_keys(options);
  };
  KeyRing ring(keys({"a", "b", "c"}));
  const Caller before = ring.find("Bearer b", "").value();
  EXPECT_EQ(before.name(), "api-key-2");
  ring.replace(keys({"new", "c", "b"}), 0);
  const Caller after = ring.find("Bearer b", "").value();
  EXPECT_EQ(after.name(), "api-key-2");
  EXPECT_EQ(after.usage, before.usage);
  EXPECT_EQ(name_of(ring.find("Bearer c", "")), "api-key-3");
  EXPECT_EQ(name_of(ring.find("Bearer new", "")), "api-key-1") << "the first that is free";
  // A name that an operator gives wins.
  std::vector<ApiKey> next = keys({"b", "c"});
  ApiKey named = plain_key("api-key-2", "other");
  named.identity = "name:api-key-2";
  next.push_back(named);
  ring.replace(next, 0);
  EXPECT_EQ(name_of(ring.find("Bearer other", "")), "api-key-2");
  EXPECT_EQ(name_of(ring.find("Bearer b", "")), "api-key-1");
}

TEST(KeyRing, OtherKeysUnderTheSameNameGoOnWithWhatWasUsed) {
  ApiKey key = plain_key("k", "old");
  key.identity = "name:k";
  key.tokens_per_minute = 100;
  KeyRing ring({key, plain_key("gone", "gone")}, 0);
  const Caller before = ring.find("Bearer old", "").value();
  before.usage->tokens.spend(60, 0);
  ApiKey changed = plain_key("k", "new");
  changed.identity = "name:k";
  changed.tokens_per_minute = 200;
  ring.replace({changed}, 0);
  EXPECT_FALSE(ring.find("Bearer old", "").has_value());
  EXPECT_FALSE(ring.find("Bearer gone", "").has_value());
  const Caller after = ring.find("Bearer new", "").value();
  EXPECT_EQ(after.tenant().id, before.tenant().id);
  EXPECT_EQ(after.owner, before.owner);
  EXPECT_EQ(after.usage->tokens.left(0), 140u) << "of the new bound";
  EXPECT_EQ(before.name(), "k") << "a request that runs keeps its key";
}

TEST(RateBucket, FillsInAMinuteAndPaysDebtsFirst) {
  RateBucket bucket;
  EXPECT_EQ(bucket.wait(1'000'000, 0), 0) << "no bound";
  bucket.set_rate(60, 0);
  EXPECT_EQ(bucket.left(0), 60u);
  bucket.spend(60, 0);
  EXPECT_NEAR(static_cast<double>(bucket.wait(1, 0)), 1e9, 1e4);
  EXPECT_EQ(bucket.wait(1, kNanosPerSecond), 0);
  EXPECT_EQ(bucket.left(10 * kNanosPerSecond), 10u);
  bucket.spend(40, 10 * kNanosPerSecond);  // 30 more than there are
  EXPECT_EQ(bucket.left(10 * kNanosPerSecond), 0u);
  EXPECT_NEAR(static_cast<double>(bucket.wait(1, 10 * kNanosPerSecond)), 31e9, 1e4);
  EXPECT_EQ(bucket.left(10 * kMinute), 60u) << "no more than a minute's";
  EXPECT_EQ(bucket.wait(1000, 10 * kMinute), 0) << "what is more than it can hold waits until it is full";
  // Spent at a time when it was full, it is missing from then on.
  bucket.spend(60, 10 * kMinute);
  EXPECT_EQ(bucket.left(10 * kMinute + 30 * kNanosPerSecond), 30u);
}

Caller caller_of(const ApiKey& key) {
  return KeyRing({key}, 0).find("Bearer k", "").value();
}

TEST(KeyUsage, RequestsInAMinute) {
  ApiKey key = plain_key("alice", "k");
  key.requests_per_minute = 2;
  const Caller caller = caller_of(key);
  EXPECT_FALSE(begin_request(caller, 0));
  EXPECT_FALSE(begin_request(caller, 0));
  const auto refused = begin_request(caller, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->retry_after_s, 30);
  EXPECT_THAT(refused->message, HasSubstr("'alice' is over its limit requests_per_minute: 2"));
  EXPECT_FALSE(begin_request(caller, 30 * kNanosPerSecond));
  EXPECT_EQ(caller.usage->requests_total, 3u);
  EXPECT_EQ(caller.usage->refused[static_cast<size_t>(KeyLimit::kRequests)], 1u);
}

TEST(KeyUsage, TokensOfPromptsAndOutputs) {
  ApiKey key = plain_key("alice", "k");
  key.tokens_per_minute = 120;
  const Caller caller = caller_of(key);
  EXPECT_FALSE(check_generation(caller, 1, 120, 0));
  KeyLease lease(caller.usage, 1);
  lease.prompt(20, 0);
  lease.output(160, 0);
  const auto refused = check_generation(caller, 1, 10, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s, 35) << "70 are missing, of 2 a second";
  EXPECT_THAT(refused->message, HasSubstr("tokens_per_minute: 120"));
  EXPECT_FALSE(check_generation(caller, 1, 10, 35 * kNanosPerSecond));
  const auto never = check_generation(caller, 1, 121, kMinute * 9);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->retry_after_s, 0);
  EXPECT_THAT(never->message, HasSubstr("send less"));
}

TEST(KeyUsage, PromptsAndChoicesInProgress) {
  ApiKey key = plain_key("alice", "k");
  key.concurrent_requests = 4;
  const Caller caller = caller_of(key);
  {
    EXPECT_FALSE(check_generation(caller, 3, 1, 0));
    KeyLease lease(caller.usage, 3);
    KeyLease moved = std::move(lease);
    const auto refused = check_generation(caller, 2, 1, 0);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->retry_after_s, 1);
    EXPECT_THAT(refused->message, HasSubstr("concurrent_requests: 4"));
    EXPECT_FALSE(begin_request(caller, 0));
    const KeyLease last(caller.usage, 1);
    EXPECT_TRUE(begin_request(caller, 0)) << "before its body is read";
  }
  EXPECT_EQ(caller.usage->running, 0u);
  const auto never = check_generation(caller, 5, 1, 0);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->retry_after_s, 0);
}

TEST(KeyUsage, HeadersSayWhatIsLeft) {
  ApiKey key = plain_key("alice", "k");
  EXPECT_EQ(rate_limit_headers(caller_of(key), 0), "");
  EXPECT_EQ(rate_limit_headers(Caller(), 0), "");
  key.requests_per_minute = 60;
  key.tokens_per_minute = 1000;
  const Caller caller = caller_of(key);
  EXPECT_FALSE(begin_request(caller, 0));
  KeyLease(caller.usage, 1).output(2100, 0);
  EXPECT_EQ(rate_limit_headers(caller, 0),
            "x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\n"
            "x-ratelimit-reset-requests: 1s\r\n"
            "x-ratelimit-limit-tokens: 1000\r\nx-ratelimit-remaining-tokens: 0\r\n"
            "x-ratelimit-reset-tokens: 2m6s\r\n");
  EXPECT_THAT(rate_limit_headers(caller, kNanosPerSecond / 2), HasSubstr("reset-requests: 500ms\r\n"));
  EXPECT_THAT(rate_limit_headers(caller, kNanosPerSecond / 2), HasSubstr("reset-tokens: 2m5.5s\r\n"));
}

TEST(PrefixSalt, NoTwoCallersShareOneUnlessTheyAreTold) {
  ApiKey a = plain_key("a", "k"), b = plain_key("b", "k"), c = plain_key("c", "k");
  a.identity = "name:a";
  b.identity = "name:ab";
  c.identity = "name:a1";
  std::vector<std::string> salts;
  for (const Caller& caller : {caller_of(a), caller_of(b), caller_of(c), Caller()}) {
    for (const std::string own : {"", "b", "1", "k6:name:a"})
      salts.push_back(prefix_salt(caller, false, own));
  }
  std::sort(salts.begin(), salts.end());
  EXPECT_EQ(std::adjacent_find(salts.begin(), salts.end()), salts.end());
  EXPECT_EQ(prefix_salt(caller_of(a), true, "x"), prefix_salt(Caller(), false, "x"));
  EXPECT_EQ(prefix_salt(Caller(), false, ""), "") << "as without keys";
}

}  // namespace
}  // namespace kvasir
