// The cache map: lines give back what was written, and the map says of each sequence what the cache does.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "engine/engine_fixture.h"
#include "engine/live_map.h"
#include "engine/map_file.h"
#include "engine/map_lines.h"
#include "engine/plan_words.h"
#include "engine/torture.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

CellState bare(CellState state) {
  return state & static_cast<CellState>(~(kShared | kStaged | kAtPeer));
}

// Cells of a sequence in states with one of these bits; with 0 those that are dropped.
uint32_t cells_with(const DrawnSequence& s, uint32_t bits) {
  uint32_t count = 0;
  for (const CellRuns& runs : s.groups) {
    for (const auto& [state, blocks] : runs) {
      if (bits == 0 ? bare(state) == 0 : (state & bits) != 0) count += blocks;
    }
  }
  return count;
}

// Writes each frame that it wants and reads it back, as one reader from the start and as others that join.
class CheckingSink final : public MapSink {
 public:
  explicit CheckingSink(uint64_t seed) : random_(seed) {}

  void begin(const MapShape& shape) override {
    shape_ = shape;
    writer_.emplace(shape.geometry.groups());
    ASSERT_TRUE(reader_.read(map_head({"test", "m\"\n", "p"}, shape)).ok());
  }
  bool watched() const override { return true; }
  bool wants_frame() const override { return wants_; }
  void show(MapFrame frame) override {
    const std::string line = writer_->next(frame);
    ASSERT_EQ(line.find('\n'), std::string::npos);
    ASSERT_TRUE(is_map_line(line));
    const Status read = reader_.read(line);
    ASSERT_TRUE(read.ok()) << read.message();
    truth_ = draw(frame, shape_.geometry.groups());
    ASSERT_EQ(reader_.map(), truth_) << line;
    ASSERT_EQ(reader_.notes().size(), frame.notes.size());
    for (size_t i = 0; i < frame.notes.size(); ++i) ASSERT_EQ(reader_.notes()[i].words, frame.notes[i].words);
    if (late_) {
      ASSERT_TRUE(late_->read(line).ok());
      ASSERT_EQ(late_->map(), truth_);
    }
    if (random_.below(20) == 0) join();
    note(frame);
    ++frames;
    wants_ = random_.below(3) != 0;
  }

  const DrawnMap* truth() const { return frames > 0 && wants_ ? &truth_ : nullptr; }
  void want() { wants_ = true; }

  uint64_t frames = 0;
  uint64_t filling = 0, on_host = 0, on_disk = 0, as_x = 0, dropped = 0, staged = 0, shared = 0, at_peers = 0;
  uint64_t moves = 0, notes = 0, claims = 0;

 private:
  void join() {
    late_.emplace();
    ASSERT_TRUE(late_->read(map_head({"test", "m", "p"}, shape_)).ok());
    ASSERT_TRUE(late_->read(writer_->whole()).ok());
    ASSERT_EQ(late_->map(), truth_);
  }
  void note(const MapFrame& frame) {
    for (const auto& [id, s] : truth_.sequences) {
      filling += cells_with(s, 0x3f << kFillingShift);
      on_host += cells_with(s, 1 << 1);
      on_disk += cells_with(s, 1 << 2);
      as_x += cells_with(s, 7 << 3);
      dropped += cells_with(s, 0);
      staged += cells_with(s, kStaged);
      shared += cells_with(s, kShared);
      at_peers += cells_with(s, kAtPeer);
    }
    moves += frame.moves.size();
    claims += frame.claims.size();
    notes += frame.notes.size();
  }

  Random random_;
  MapShape shape_;
  std::optional<MapWriter> writer_;
  MapReader reader_;
  std::optional<MapReader> late_;
  DrawnMap truth_;
  bool wants_ = true;
};

TortureConfig with_tiers(const std::string& policy) {
  TortureConfig config;
  config.policy = policy;
  config.groups = 3;
  config.host_blocks = 40;
  config.stage_blocks = 60;
  config.requests = scaled(80);
  return config;
}

// Frames are left out now and then, as at a server.
std::function<void(const View&)> wanting(CheckingSink& sink) {
  return [&sink, turn = 0](const View&) mutable {
    if (++turn % 3 != 0) sink.want();
  };
}

TEST(CacheMap, LinesGiveBackEveryFrameOfATorture) {
  uint64_t filling = 0, on_host = 0, on_disk = 0, as_x = 0, dropped = 0, staged = 0, shared = 0, at_peers = 0;
  uint64_t moves = 0, claims = 0;
  for (const char* policy :
       {"random", "random-forms", "random-promises", "auto", "layerkv", "vllm-swap", "hcache"}) {
    SCOPED_TRACE(policy);
    CheckingSink sink(7);
    TortureConfig config = with_tiers(policy);
    if (std::string(policy).starts_with("random")) {
      config.x_bytes = 8;
      config.disk_blocks = 40;
      config.depth = 2;
    }
    if (policy == std::string("hcache")) {
      config.x_bytes = 8;
      config.costs.prefill_row_s = config.costs.decode_row_s = 1e-6;
      config.costs.projected_token_s = 2e-9;
      config.costs.links[0][1] = config.costs.links[1][0] = {1e-6, 1e-10};
    }
    config.map = &sink;
    config.seen = wanting(sink);
    const TortureOutcome out = torture(config);
    EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
    EXPECT_GT(sink.frames, 50u);
    EXPECT_GT(sink.notes, 10u);
    filling += sink.filling, on_host += sink.on_host, on_disk += sink.on_disk, as_x += sink.as_x;
    dropped += sink.dropped, staged += sink.staged, shared += sink.shared;
    moves += sink.moves, claims += sink.claims;
  }
  CheckingSink peers(9);
  TortureConfig config = with_tiers("distkv");
  // Requests of up to 2,000 tokens, of which the device has 512.
  config.host_blocks = 0;
  config.layers = 6;
  config.block_tokens = 64;
  config.total_blocks = 8;
  config.borrowed_blocks = 90;
  config.stage_blocks = 12;
  config.longest = 2000;
  config.max_num_batched_tokens = 256;
  config.requests = scaled(20);
  config.at_once = 6;
  config.tenants = 1;
  config.map = &peers;
  config.seen = wanting(peers);
  EXPECT_EQ(torture(config).wrong, 0u);
  at_peers = peers.at_peers;
  EXPECT_GT(filling, 0u);
  EXPECT_GT(on_host, 0u);
  EXPECT_GT(on_disk, 0u);
  EXPECT_GT(as_x, 0u);
  EXPECT_GT(dropped, 0u);
  EXPECT_GT(staged, 0u);
  EXPECT_GT(shared, 0u);
  EXPECT_GT(at_peers, 0u);
  EXPECT_GT(moves, 0u);
  EXPECT_GT(claims, 0u);
}

// What a policy is told of the sequence, which the cache counts in its own way.
void expect_as_told(const SeqView& view, const CacheGeometry& geometry, const DrawnSequence& drawn) {
  uint32_t blocks = 0;
  for (const auto& [state, count] : drawn.groups.at(0)) blocks += count;
  EXPECT_EQ(blocks, view.blocks);
  EXPECT_EQ(drawn.ready_tokens, view.ready_tokens);
  for (size_t p = 0; p < kPlaces; ++p) {
    const Place place = place_at(p);
    EXPECT_EQ(cells_with(drawn, 1u << p), view.held(place.form, place.tier)) << "place " << p;
  }
  EXPECT_EQ(cells_with(drawn, 0), view.dropped_cells);
  EXPECT_EQ(cells_with(drawn, kDead), view.dead_cells(geometry));
}

// Without blocks that outlive their sequences and without anything in flight each copy is one that a sequence
// holds.
TEST(CacheMap, ItSaysWhatTheCacheCounts) {
  for (const char* policy : {"random", "auto", "layerkv", "vllm-swap", "sarathi"}) {
    SCOPED_TRACE(policy);
    const bool windows = policy == std::string("sarathi");
    CheckingSink sink(11);
    TortureConfig config = with_tiers(policy);
    config.prefix_caching = false;
    config.x_bytes = policy == std::string("random") ? 8 : 0;
    config.map = &sink;
    if (windows) {
      config.layers_per_group = 1;
      config.layers = 6;
      config.window = 41;
    }
    uint64_t compared = 0, dead = 0;
    config.seen = [&](const View& view) {
      const DrawnMap* map = sink.truth();
      sink.want();
      if (!map || map->gauges.transfers > 0 || view.transfers_in_flight > 0) return;
      for (const auto* list : {&view.running, &view.waiting}) {
        for (const SeqView& s : *list) {
          const auto it = map->sequences.find(raw(s.id));
          if (it == map->sequences.end()) continue;
          expect_as_told(s, view.geometry, it->second);
          compared += s.blocks > 0;
          dead += s.dead_blocks;
        }
      }
    };
    EXPECT_EQ(torture(config).wrong, 0u);
    EXPECT_GT(compared, 10u);
    EXPECT_EQ(dead > 0, windows);
  }
}

TEST(CacheMap, AReaderRefusesWhatDoesNotFollow) {
  MapShape shape;
  shape.geometry = {16, 4, 1, 8};
  MapWriter writer(4);
  MapReader reader;
  MapFrame frame;
  const std::string first = writer.next(frame);
  EXPECT_EQ(reader.read(first).code(), ErrorCode::kCorrupt) << "no head";
  ASSERT_TRUE(reader.read(map_head({}, shape)).ok());
  MapShape anew = shape;
  anew.began = 2 * kNanosPerSecond;
  EXPECT_NE(map_head({}, anew), map_head({}, shape)) << "an engine that begins anew has another head";
  EXPECT_NE(map_head({}, anew).find(R"("began":2000000,)"), std::string::npos);
  const std::string second = writer.next(frame), third = writer.next(frame);
  EXPECT_FALSE(reader.read(second).ok()) << "nothing to change";
  ASSERT_TRUE(reader.read(first).ok());
  EXPECT_FALSE(reader.read(third).ok()) << "one is missing";
  ASSERT_TRUE(reader.read(second).ok());
  ASSERT_TRUE(reader.read(third).ok());
  for (const char* bad :
       {"", "[]", "{", R"({"kvasir_map":2,"groups":4})", R"({"kvasir_map":1,"groups":0})",
        R"({"f":4,"t":1,"step":1,"seqs":[{"id":1,"c":[[3,2,[1,1]]]}],"g":{}})",
        R"({"f":4,"t":1,"step":1,"seqs":[{"id":1,"s":9}],"g":{}})", R"({"f":4,"t":1,"step":1,"g":{}})"}) {
    MapReader other = reader;
    EXPECT_FALSE(other.read(bad).ok()) << bad;
  }
}

TEST(CacheMap, AChangeIsShort) {
  MapWriter writer(30);
  MapFrame frame;
  MapSequence s;
  s.id = 3;
  s.known_tokens = 640;
  BlockCells on_device;
  on_device.ready[0] = LayerSet::all(30);
  s.blocks = {{10, on_device}};
  frame.sequences = {s};
  writer.next(frame);
  frame.sequences[0].known_tokens = 641;
  EXPECT_EQ(writer.next(frame), R"({"f":2,"t":0,"step":0,"seqs":[{"id":3,"k":641}],"g":{}})");
  frame.sequences[0].blocks[0].blocks = 11;
  EXPECT_EQ(writer.next(frame), R"({"f":3,"t":0,"step":0,"seqs":[{"id":3,"c":[[0,30,[1,11]]]}],"g":{}})");
  frame.sequences.clear();
  EXPECT_EQ(writer.next(frame), R"({"f":4,"t":0,"step":0,"seqs":[],"gone":[3],"g":{}})");
}

TEST(CacheMap, PlansInWords) {
  View view;
  view.geometry = {16, 4, 2, 8};
  SeqView running;
  running.id = SeqId{3};
  running.cells[0][0] = 8;
  view.running = {running};
  SeqView waiting;
  waiting.id = SeqId{7};
  waiting.known_tokens = 100;
  view.waiting = {waiting};
  StepPlan plan;
  plan.preemptions = {{SeqId{3}}};
  plan.reasons = {{Cause::kArrivedLast, SeqId{3}, SeqId{7}, 12}};
  plan.copies = {
      {Verb::kDropAll, SeqId{3}, {}, {}, Form::kKv, Tier::kDevice, Trigger::kNow},
      {Verb::kAdd, SeqId{7}, {0, 32}, LayerSet::all(2), Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites}};
  Rows rows;
  rows.seq = SeqId{7};
  rows.tokens = {0, 64};
  plan.rows = {rows};
  std::vector<std::string> words;
  uint64_t unsaid = 0;
  for (const MapNote& note : plan_words(view, plan, 4, unsaid)) words.push_back(note.words);
  EXPECT_EQ(unsaid, 0u);
  EXPECT_EQ(words,
            (std::vector<std::string>{"preempted 3: 7 needs 12 blocks, and 3 arrived last",
                                      "3: its 8 cells on the device are given up, to be computed again",
                                      "admitted 7: 64 of 100 tokens in its first step",
                                      "7: up to 4 cells to the host, each layer as it is written"}));
  EXPECT_EQ(plan_words(view, plan, 1, unsaid).size(), 1u);
  EXPECT_EQ(unsaid, 3u);
}

TEST(MapFile, ARunIsReadBack) {
  const TempFile file({});
  auto map = MapFile::create(file.path(), {"simulate", "m", "auto"}).value();
  TortureConfig config = with_tiers("auto");
  config.requests = 20;
  config.map = map.get();
  EXPECT_EQ(torture(config).wrong, 0u);
  ASSERT_TRUE(map->close().ok());
  MapReader reader;
  std::ifstream in(file.path());
  size_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const Status read = reader.read(line);
    ASSERT_TRUE(read.ok()) << read.message();
  }
  EXPECT_GT(lines, 50u);
  EXPECT_TRUE(reader.map().sequences.empty());
  EXPECT_EQ(MapFile::create("no/such/folder/map.jsonl", {}).status().code(), ErrorCode::kIo);
}

// Lines that one viewer got.
class Viewer {
 public:
  void receive(const std::string& line) {
    std::lock_guard lock(mutex_);
    const Status read = reader_.read(line);
    if (!read.ok()) wrong_ = read.message();
    if (line.find("\"whole\"") != std::string::npos) ++wholes_;
  }
  bool wait(const std::function<bool(const MapReader&)>& until) {
    for (int i = 0; i < 2000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (until(reader_)) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  size_t wholes() {
    std::lock_guard lock(mutex_);
    return wholes_;
  }
  std::string wrong() {
    std::lock_guard lock(mutex_);
    return wrong_;
  }

 private:
  std::mutex mutex_;
  MapReader reader_;
  size_t wholes_ = 0;
  std::string wrong_;
};

uint64_t join(LiveMap& map, Viewer& viewer) {
  return map.join([&viewer](const std::shared_ptr<const std::string>& line) { viewer.receive(*line); });
}

TEST(LiveMap, ViewersComeAndGoWhileTheEngineRuns) {
  Viewer first, second;  // which the map's thread may still call when they have left
  LiveMap map({"serve", "m", "sarathi"});
  EngineOptions options = small_options();
  options.map = &map;
  const MonotonicClock clock;
  VirtualClock scripted;
  ScriptedExecutor executor(scripted, 1, kStep);
  Engine engine(options, make_policy("sarathi").value(), executor, clock);
  EXPECT_FALSE(map.watched());
  engine.start();
  const uint64_t number = join(map, first);
  // An idle engine shows itself, too.
  EXPECT_TRUE(first.wait([](const MapReader& r) { return r.frame() >= 2; }));
  ASSERT_TRUE(engine.submit(request(40, 1), std::make_shared<CollectingSink>()).ok());
  EXPECT_TRUE(first.wait([](const MapReader& r) { return r.map().step >= 1; }));
  const uint64_t other = join(map, second);
  EXPECT_TRUE(second.wait([](const MapReader& r) { return r.map().step >= 1 && r.frame() >= 2; }));
  EXPECT_EQ(first.wholes(), 1u);
  map.send_whole(number);
  for (int i = 0; i < 2000 && first.wholes() < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(first.wholes(), 2u);
  EXPECT_EQ(map.viewers(), 2u);
  map.leave(number);
  map.leave(other);
  EXPECT_FALSE(map.watched());
  EXPECT_FALSE(map.wants_frame());
  EXPECT_EQ(first.wrong(), "");
  EXPECT_EQ(second.wrong(), "");
  engine.stop();
}

// Counts the notes of all its frames.
class CountingSink final : public MapSink {
 public:
  explicit CountingSink(uint32_t pause) : pause_(pause) {}
  void begin(const MapShape&) override {}
  bool watched() const override { return true; }
  bool wants_frame() const override { return true; }
  uint32_t pause_for_words() const override { return pause_; }
  void show(MapFrame frame) override { plans_in_words += !frame.notes.empty(); }
  uint64_t plans_in_words = 0;

 private:
  const uint32_t pause_;
};

// Words may take a share of the engine's time and no more. A sink without that limit, as a record, gets all.
TEST(LiveMap, WordsArePausedOnceTheyHaveTakenTheirShare) {
  for (const bool record : {false, true}) {
    SCOPED_TRACE(record);
    CountingSink live(UINT32_MAX), all(0);  // a pause of minutes at the least
    EngineOptions options = small_options();
    options.map = record ? static_cast<MapSink*>(&all) : &live;
    const MonotonicClock clock;
    VirtualClock scripted;
    ScriptedExecutor executor(scripted, 1, kStep);
    Engine engine(options, make_policy("sarathi").value(), executor, clock);
    constexpr uint64_t kRequests = 5;
    for (uint64_t i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(engine.submit(request(40, 1), std::make_shared<CollectingSink>()).ok());
      while (engine.step()) {
      }
    }
    // Each is admitted by a plan of its own.
    EXPECT_EQ((record ? all : live).plans_in_words, record ? kRequests : 1);
    EXPECT_GT(engine.metrics().seconds_map, 0);
  }
}

// Wants a frame once it has said twice that it does not: so in some turns only after the plan was made.
class LateSink final : public MapSink {
 public:
  void begin(const MapShape&) override {}
  bool watched() const override { return true; }
  bool wants_frame() const override { return ++asked_ > 2; }
  void show(MapFrame frame) override {
    ++frames;
    asked_ = 0;
    for (const MapSequence& s : frame.sequences) without_rows += s.row_kind == SequenceFacts::kNoRows;
  }
  uint64_t frames = 0, without_rows = 0;

 private:
  mutable uint64_t asked_ = 0;
};

TEST(LiveMap, AFrameThatIsWantedAfterThePlanShowsWhatAPlanWanted) {
  LateSink sink;
  EngineOptions options = small_options();
  options.map = &sink;
  const MonotonicClock clock;
  VirtualClock scripted;
  ScriptedExecutor executor(scripted, 1, kStep);
  Engine engine(options, make_policy("sarathi").value(), executor, clock);
  ASSERT_TRUE(engine.submit(request(40, 30), std::make_shared<CollectingSink>()).ok());
  while (engine.step()) {
  }
  EXPECT_GT(sink.frames, 3u);
  EXPECT_EQ(sink.without_rows, 0u) << "each turn has a plan with rows of the one request";
}

// A page that is loaded again: its viewer joins when the former one has just left.
TEST(LiveMap, AViewerThatJoinsAfterTheLastOneHasLeftGetsAMap) {
  std::atomic<int> lines = 0;  // which the map's thread may still count when the viewer has left
  LiveMap map({"serve", "m", "auto"});
  MapShape shape;
  shape.geometry = {16, 4, 1, 8};
  map.begin(shape);
  const auto is_wanted = [&] {
    for (int i = 0; i < 2000 && !map.wants_frame(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return map.wants_frame();
  };
  const auto count = [&](const std::shared_ptr<const std::string>&) { ++lines; };
  uint64_t viewer = map.join(count);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(is_wanted()) << i;
    map.leave(viewer);
    viewer = map.join(count);
  }
  ASSERT_TRUE(is_wanted());
  map.show({});
  for (int i = 0; i < 2000 && lines < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(lines, 2) << "a head and a whole map";
  map.leave(viewer);
}

}  // namespace
}  // namespace kvasir::test
