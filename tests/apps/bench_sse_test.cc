// The parser of server-sent events, above all where the stream is cut.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "apps/bench/sse.h"

namespace kvasir {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

Events feed_all(SseParser& parser, const std::vector<std::string_view>& pieces) {
  Events events;
  for (std::string_view piece : pieces) {
    const Status status = parser.feed(piece, [&](const SseEvent& event) {
      events.emplace_back(std::string(event.type), std::string(event.data));
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return events;
}

Events parse(std::string_view stream) {
  SseParser parser(1 << 16);
  return feed_all(parser, {stream});
}

TEST(Sse, OneEventPerBlankLine) {
  EXPECT_EQ(parse("data: a\n\ndata: b\n\n"), (Events{{"", "a"}, {"", "b"}}));
}

TEST(Sse, LinesOfDataAreJoined) {
  EXPECT_EQ(parse("data: one\ndata\ndata:two\n\n"), (Events{{"", "one\n\ntwo"}}));
}

TEST(Sse, OnlyOneSpaceAfterTheColonIsDropped) {
  EXPECT_EQ(parse("data:  x \n\n"), (Events{{"", " x "}}));
}

TEST(Sse, CommentsAndUnknownFieldsSayNothing) {
  EXPECT_EQ(parse(": ping\n\nid: 4\nretry: 10\nother: x\n\ndata: a\n: within\n\n"), (Events{{"", "a"}}));
}

TEST(Sse, TypeBelongsToItsEventOnly) {
  EXPECT_EQ(parse("event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\n"),
            (Events{{"error", "a"}, {"", "b"}, {"", "c"}}));
}

TEST(Sse, EmptyDataIsAnEvent) {
  EXPECT_EQ(parse("data:\n\n"), (Events{{"", ""}}));
}

TEST(Sse, AnUnfinishedEventIsNotDelivered) {
  EXPECT_EQ(parse("data: a\n\ndata: b\n"), (Events{{"", "a"}}));
}

TEST(Sse, AByteOrderMarkIsSkippedAtTheBeginningOnly) {
  EXPECT_EQ(parse("\xef\xbb\xbf"
                  "data: a\n\n\xef\xbb\xbf"
                  "data: b\n\n"),
            (Events{{"", "a"}}));
}

TEST(Sse, EveryCutOfEveryLineEndingGivesTheSameEvents) {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const std::string stream = "event: t" + end + "data: one" + end + "data: two" + end + end + ": c" + end +
                               end + "data: {\"x\":1}" + end + end + "data: [DONE]" + end + end;
    const Events expected{{"t", "one\ntwo"}, {"", "{\"x\":1}"}, {"", "[DONE]"}};
    const std::string_view view = stream;
    for (size_t first = 0; first <= view.size(); ++first) {
      for (size_t second = first; second <= view.size(); ++second) {
        SseParser parser(1 << 10);
        ASSERT_EQ(feed_all(parser,
                           {view.substr(0, first), view.substr(first, second - first), view.substr(second)}),
                  expected)
            << "cut at " << first << " and " << second;
      }
    }
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < view.size(); ++i) bytes.push_back(view.substr(i, 1));
    SseParser parser(1 << 10);
    EXPECT_EQ(feed_all(parser, bytes), expected);
  }
}

TEST(Sse, AnEventAtTheBoundPassesAndOneAboveFails) {
  const auto run = [](size_t data_bytes, size_t bound) {
    SseParser parser(bound);
    return parser.feed("data:" + std::string(data_bytes, 'x') + "\n\n", [](const SseEvent&) {});
  };
  EXPECT_TRUE(run(95, 100).ok());
  EXPECT_EQ(run(96, 100).code(), ErrorCode::kExhausted);
}

TEST(Sse, TheBoundCoversManySmallLinesAndStays) {
  SseParser parser(100);
  Status status;
  int fed = 0;
  for (; fed < 100 && status.ok(); ++fed) status = parser.feed("data: 123456789\n", [](const SseEvent&) {});
  ASSERT_FALSE(status.ok());
  EXPECT_LE(fed, 11);
  EXPECT_FALSE(parser.feed("\n\n", [](const SseEvent&) { ADD_FAILURE(); }).ok());
}

}  // namespace
}  // namespace kvasir
