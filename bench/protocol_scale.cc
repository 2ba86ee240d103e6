// What the control protocol of a cluster costs by the number of its instances: messages, and the leader's
// time.
//
// Instances without engines, on a network with a fixed delay and in a time of their own. Each wants to
// borrow, waits until it has it, keeps it for a while, and gives it back; one wish in eight wants much at
// once. The leader lends nothing. Its time is that of a CPU: all that its control plane does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "base/random.h"
#include "cluster/protocol/control_plane.h"
#include "cluster/protocol/counted_memory.h"
#include "cpu_clock.h"

namespace kvasir::cluster {
namespace {

constexpr Nanos kDelay = 100'000;       // of a message
constexpr uint32_t kBlocks = 2000;      // of an instance, of which it lends half
constexpr uint32_t kMostWanted = 2000;  // by a wish; one in eight wants three times as much, at once
constexpr double kThinks = 1.0;         // seconds from what was granted to the next wish
constexpr double kHolds = 2.0;          // seconds

struct Message {
  Nanos at = 0;
  uint64_t number = 0;  // messages of one time in the order in which they were sent
  uint32_t to = 0;
  PeerMessage message;
  bool operator<(const Message& o) const { return at != o.at ? at > o.at : number > o.number; }
};

struct Network {
  Nanos now = 0;
  uint64_t sent = 0;
  uint64_t with_leader = 0;
  uint64_t bytes = 0;
  std::priority_queue<Message> under_way;
};

PeerId id_of(uint32_t number) {
  return {fmt::format("i{:04}", number), 1};
}

class Endpoint final : public PeerTransport {
 public:
  Endpoint(Network& network, uint32_t number) : network_(network), number_(number) {}
  std::string address() const override { return ""; }
  void begin_life(uint64_t) override {}
  void introduce(const PeerId&, const std::string&) override {}
  void forget(const PeerId&) override {}
  Status send(const PeerId& to, std::vector<std::byte> bytes) override {
    const auto receiver = static_cast<uint32_t>(std::stoul(to.instance.substr(1)));
    ++network_.sent;
    network_.bytes += bytes.size();
    if (receiver == 0 || number_ == 0) ++network_.with_leader;
    network_.under_way.push(
        {network_.now + kDelay, network_.sent, receiver, {id_of(number_), std::move(bytes)}});
    return {};
  }
  std::vector<PeerMessage> receive() override { return {}; }
  std::vector<PeerId> lost() override { return {}; }
  void wait(Nanos) override {}
  void wake() override {}

 private:
  Network& network_;
  const uint32_t number_;
};

struct Loan {
  ContractRef contract;
  uint32_t blocks;
};

struct Instance {
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<test::CountedMemory> memory;
  std::unique_ptr<ControlPlane> plane;
  Nanos wants_at = INT64_MAX;
  Nanos wished = 0;
  uint32_t lacks = 0;
  std::vector<Loan> has;  // of the present wish
  std::multimap<Nanos, Loan> to_give_back;
  Nanos due = 0;
};

struct Sums {
  uint64_t granted = 0;    // wishes
  uint64_t creditors = 0;  // contracts
  Nanos waited = 0;
  Nanos leader = 0;
};

class Cluster {
 public:
  Cluster(uint32_t instances, bool load, uint64_t seed) : random_(seed), load_(load) {
    ProtocolSettings settings;
    for (uint32_t i = 0; i <= instances; ++i) {
      settings.lend_cap = i == 0 ? 0 : kBlocks / 2;
      settings.location = fmt::format("zone/rack{}/host{}", i / 16, i / 2);
      Instance one;
      one.endpoint = std::make_unique<Endpoint>(network_, i);
      one.memory = std::make_unique<test::CountedMemory>(i == 0 ? 0 : kBlocks);
      one.plane = std::make_unique<ControlPlane>(settings, *one.endpoint, id_of(i), *one.memory, nullptr);
      all_.push_back(std::move(one));
    }
    for (Instance& one : all_) {
      for (uint32_t i = 0; i < all_.size(); ++i) one.plane->joined(id_of(i), 0);
    }
    for (uint32_t i = 0; i < all_.size(); ++i) {
      // Instances do not start in step.
      network_.now = static_cast<Nanos>(random_.below(kNanosPerSecond / 4));
      all_[i].plane->leader(id_of(0), 1, network_.now);
      if (load_ && i > 0) all_[i].wants_at = kNanosPerSecond + after(kThinks);
    }
    network_.now = 0;
  }

  void run(Nanos end) {
    while (true) {
      Instance* first = &all_[0];
      for (Instance& one : all_) {
        if (due(one) < due(*first)) first = &one;
      }
      const Nanos arrival = network_.under_way.empty() ? INT64_MAX : network_.under_way.top().at;
      const Nanos at = std::min(arrival, due(*first));
      if (at >= end) return;
      network_.now = std::max(network_.now, at);
      if (arrival <= due(*first)) {
        Message next = network_.under_way.top();
        network_.under_way.pop();
        act(all_[next.to], [&](ControlPlane& plane) { plane.handle(next.message, network_.now); });
      } else {
        act(*first, [&](ControlPlane& plane) { plane.tick(network_.now); });
      }
    }
  }

  Network& network() { return network_; }
  Sums sums;
  const GManagerCounts& counts() { return all_[0].plane->gmanager().counts(); }

 private:
  Nanos after(double mean_s) {
    return static_cast<Nanos>(-std::log(1 - random_.unit()) * mean_s * static_cast<double>(kNanosPerSecond));
  }
  Nanos due(const Instance& one) const { return one.due; }

  template <typename Do>
  void act(Instance& one, const Do& what) {
    const bool leads = &one == &all_[0];
    const Nanos begin = cpu_.now();
    what(*one.plane);
    if (leads) sums.leader += cpu_.now() - begin;
    use(one);
    one.due = std::min({one.plane->next_deadline(), one.wants_at,
                        one.to_give_back.empty() ? INT64_MAX : one.to_give_back.begin()->first});
  }

  void use(Instance& one) {
    const Nanos now = network_.now;
    for (const BorrowEvent& event : one.plane->take_events()) {
      if (event.kind != BorrowEvent::Kind::kGranted) continue;
      one.has.push_back({event.contract, event.blocks});
      one.lacks -= std::min(one.lacks, event.blocks);
      ++sums.creditors;
      if (one.lacks > 0) continue;
      ++sums.granted;
      sums.waited += now - one.wished;
      const Nanos end = now + after(kHolds);
      for (const Loan& loan : one.has) one.to_give_back.emplace(end, loan);
      one.has.clear();
      one.wants_at = now + after(kThinks);
    }
    while (!one.to_give_back.empty() && one.to_give_back.begin()->first <= now) {
      const Loan loan = one.to_give_back.begin()->second;
      one.to_give_back.erase(one.to_give_back.begin());
      std::vector<uint32_t> slots(loan.blocks);
      for (uint32_t slot = 0; slot < loan.blocks; ++slot) slots[slot] = slot;
      one.plane->give_back(loan.contract, slots, now);
    }
    if (now < one.wants_at) return;
    one.wants_at = INT64_MAX;
    one.wished = now;
    one.lacks = static_cast<uint32_t>(1 + random_.below(kMostWanted));
    const bool at_once = random_.below(8) == 0;
    if (at_once) one.lacks *= 3;
    one.plane->want({one.lacks, at_once ? one.lacks : 0, now, static_cast<Nanos>(kHolds * kNanosPerSecond)},
                    now, now);
  }

  Network network_;
  std::vector<Instance> all_;
  Random random_;
  const bool load_;
  const bench::CpuClock cpu_{bench::CpuClock::Of::kThread};
};

void measure(uint32_t instances, double seconds, bool load, uint64_t seed) {
  Cluster cluster(instances, load, seed);
  const Nanos warm = 5 * kNanosPerSecond;
  cluster.run(warm);
  const uint64_t sent = cluster.network().sent, with_leader = cluster.network().with_leader,
                 bytes = cluster.network().bytes;
  cluster.sums = {};
  cluster.run(warm + static_cast<Nanos>(seconds * static_cast<double>(kNanosPerSecond)));
  const auto per_s = [&](uint64_t n) { return static_cast<double>(n) / seconds; };
  const Sums& s = cluster.sums;
  const double messages = per_s(cluster.network().sent - sent);
  fmt::print(
      "{:>9}  {:<4}  {:>10.1f}  {:>12.0f}  {:>10.2f}  {:>10.0f}  {:>10.0f}  {:>9.2f}  {:>12.1f}  {:>8.2f}\n",
      instances, load ? "load" : "idle", per_s(s.granted), messages, messages / instances,
      per_s(cluster.network().with_leader - with_leader), per_s(cluster.network().bytes - bytes) / 1024,
      s.granted == 0 ? 0.0 : static_cast<double>(s.creditors) / static_cast<double>(s.granted),
      s.granted == 0 ? 0.0 : 1e-6 * static_cast<double>(s.waited) / static_cast<double>(s.granted),
      100 * to_seconds(s.leader) / seconds);
}

}  // namespace
}  // namespace kvasir::cluster

int main(int argc, char** argv) {
  CLI::App app{"What the control protocol of a cluster costs by the number of its instances"};
  std::vector<uint32_t> instances = {32, 128, 512};
  double seconds = 30;
  uint64_t seed = 1;
  app.add_option("--instances", instances, "How many, one after the other")->delimiter(',');
  app.add_option("--seconds", seconds, "Simulated");
  app.add_option("--seed", seed, "Of the load");
  CLI11_PARSE(app, argc, argv);
  fmt::print(
      "instances        wishes/s    messages/s  /instance   of leader       KiB/s  creditors  wait (ms)    "
      "leader (%)\n");
  for (const uint32_t n : instances) {
    for (const bool load : {false, true}) kvasir::cluster::measure(n, seconds, load, seed);
  }
  return 0;
}
