// What an instance says of itself in the directory.
#include "cluster/node/node_status.h"

#include <gtest/gtest.h>

namespace kvasir::cluster {
namespace {

TEST(NodeStatusJson, WhatIsNoTextDoesNotStopIt) {
  NodeStatus status;
  status.self = {"a", 7};
  status.leader = "a";
  status.location = "rack\xff";
  LedgerLine line;
  line.id = {"b", 8};
  line.figures.location = "\xc3(";
  status.ledger.push_back(line);
  const std::string text = to_json(status);
  EXPECT_NE(text.find("\"location\":\"rack\xef\xbf\xbd\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"location\":\"\xef\xbf\xbd(\""), std::string::npos) << text;
}

}  // namespace
}  // namespace kvasir::cluster
