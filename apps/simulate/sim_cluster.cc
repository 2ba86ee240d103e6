#include "apps/simulate/sim_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "cluster/memory/ship_or_fetch.h"
#include "ops/numerics.h"

namespace kvasir {
namespace {

Nanos nanos(double seconds) {
  return std::llround(seconds * static_cast<double>(kNanosPerSecond));
}

// What attending to histories adds to a step.
double history_seconds(const StepTimes& times, const StepLoad& load) {
  StepLoad without = load;
  without.decode_context = 0;
  for (StepLoad::Chunk& c : without.chunks) c.history = 0;
  return std::max(0.0, times.seconds(load) - times.seconds(without));
}

// What attending adds to a step, to histories and to the chunks themselves.
double attention_seconds(const StepTimes& times, const StepLoad& load) {
  StepLoad without = load;
  without.decode_context = 0;
  for (StepLoad::Chunk& c : without.chunks) c.attended = 0;
  return std::max(0.0, times.seconds(load) - times.seconds(without));
}

cluster::BrokerOptions broker_options(const ClusterSetup& setup, uint32_t number) {
  cluster::BrokerOptions options;
  options.protocol = setup.protocol;
  options.borrowable_cells = number < setup.topology.instances ? setup.borrowable_cells : 0;
  const bool apart = number == setup.topology.instances;
  options.attended_cells = apart ? 0 : setup.attended_cells;
  options.prefix_cells = apart ? 0 : setup.prefix_cells;
  options.protocol.location = apart ? "leader" : fmt::format("node-{}", setup.topology.node_of(number));
  options.protocol.device = !apart;
  if (apart) options.protocol.lend_cap = 0;
  return options;
}

}  // namespace

void PeerSums::add(const PeerSums& o) {
  queries += o.queries;
  shipped_bytes += o.shipped_bytes;
  fetched_bytes += o.fetched_bytes;
  waited_s += o.waited_s;
  served_s += o.served_s;
  most_borrowed += o.most_borrowed;
  granted += o.granted;
  computed += o.computed;
  refused += o.refused;
  recalled += o.recalled;
  lost += o.lost;
}

// ---------------------------------------------------------------- one instance

// What a step asks of a creditor in one layer.
struct SimPeer::Share {
  StepLoad load;
  uint64_t queries = 0;
  uint64_t shipped = 0;  // bytes
  uint64_t fetched = 0;
  uint64_t bytes() const { return shipped + fetched; }
};

SimPeer::SimPeer(SimCluster& all, uint32_t number, VirtualClock& clock)
    : all_(all),
      number_(number),
      clock_(clock),
      broker_(broker_options(all.setup(), number), all.network().open(number, clock), *this),
      creditor_(all.setup().borrowable_cells + all.setup().attended_cells + all.setup().prefix_cells,
                number) {}

void SimPeer::start_anew() {
  KV_CHECK(false, "instance {} has no memory", number_);
}

LendingEvents SimPeer::turn(const LendingRequest& request, LendableCells& own) {
  const Nanos now = clock_.now();
  broker_.begin_turn(own);
  if (!std::exchange(begun_, true)) all_.introduce(broker_, number_, now);
  for (const PeerMessage& message : all_.network().receive(number_, now)) broker_.handle(message, now);
  LendingEvents events = broker_.end_turn(request, now);
  price(events);
  count(request, events);
  return events;
}

// As a real instance believes it, but that its path's cost is known, and that rows of one step share the
// reading of the history, as on a GPU: the first row pays for that, and each for what a row of a chunk takes.
void SimPeer::price(LendingEvents& events) const {
  const ClusterSetup& setup = all_.setup();
  const CacheGeometry& g = setup.shape.geometry;
  for (PrefixAnswer& answer : events.prefixes_found) {
    const auto leaves = static_cast<uint32_t>(answer.cells.size() / g.groups() / g.blocks_per_leaf());
    const std::optional<PeerId> peer = broker_.control()->post().current(answer.peer);
    if (leaves == 0 || !peer) continue;
    const double history = static_cast<double>(leaves) * ops::kLeafTokens;
    StepLoad one, chunk;
    one.decode_rows = 1;
    one.decode_context = history;
    chunk.chunks = {{.rows = ops::kLeafTokens, .history = history}};
    const double row_s = history_seconds(all_.times(), chunk) / ops::kLeafTokens;
    const uint32_t number = SimNetwork::number_of(*peer);
    const PeerCost cost = {2 * setup.topology.latency_s(number_, number),
                           setup.topology.bytes_per_s(number_, number), 0, 0};
    answer.attending = attending_cost(setup.shape, leaves, cost);
    answer.attending->row_s += row_s;
    answer.attending->step_s += std::max(0.0, history_seconds(all_.times(), one) - row_s);
  }
}

void SimPeer::count(const LendingRequest& request, const LendingEvents& events) {
  borrowed_ += static_cast<uint32_t>(events.granted.size());
  for (const PromptAnswer& answer : events.prompts_found) {
    borrowed_ += static_cast<uint32_t>(answer.cells.size());
    sums_.computed += answer.cells.size();
  }
  for (const PrefixKeptAnswer& answer : events.prefixes_kept)
    borrowed_ += static_cast<uint32_t>(answer.cells.size());
  borrowed_ -= static_cast<uint32_t>(request.returned.size());
  sums_.most_borrowed = std::max(sums_.most_borrowed, borrowed_);
  sums_.granted += events.granted.size();
  sums_.refused += events.refused;
  sums_.recalled += events.recalled.size();
  sums_.lost += events.lost.size();
}

Nanos SimPeer::next_turn() const {
  return std::min(all_.network().next_arrival(number_), broker_.next_deadline());
}

void SimPeer::map(const cluster::ContractRef& contract, uint32_t, uint32_t first_cell, uint32_t count) {
  const uint32_t creditor = SimNetwork::number_of(contract.creditor);
  std::fill_n(creditor_.begin() + first_cell, count, creditor);
}

uint32_t SimPeer::creditor_of(uint64_t at) const {
  return creditor_[at / all_.setup().shape.geometry.kv_cell_bytes()];
}

LinkCost SimPeer::path(uint64_t at) const {
  const Topology& topology = all_.setup().topology;
  const uint32_t creditor = creditor_of(at);
  return {topology.latency_s(number_, creditor), 1 / topology.bytes_per_s(number_, creditor)};
}

// Behind its own step, if it is in one: that its answer did not wait for that is what it pays here.
void SimPeer::serve(Nanos at, Nanos work) {
  served_until_ = std::max({served_until_, at, clock_.now()}) + work;
  sums_.served_s += to_seconds(work);
}

Nanos SimPeer::take_served(Nanos now) {
  return std::max<Nanos>(0, served_until_ - now);
}

// Runs of one slice: a creditor gets its rows once, and attends to all that it has of them. A leaf counts
// where its first block lies.
void SimPeer::add_slice(const Step& step, std::span<const RemoteLeaves> runs, double attended_here_s,
                        std::vector<Share>& shares, double& own_s) {
  const ClusterSetup& setup = all_.setup();
  const StepSlice& slice = step.slices[runs.front().slice];
  const uint32_t per_leaf = setup.shape.blocks_per_leaf();
  const uint32_t rows = slice.tokens.size();
  struct Part {
    uint32_t leaves = 0;
    uint32_t peaks = 0;
  };
  std::vector<Part> parts(shares.size());
  for (const RemoteLeaves& run : runs) {
    const auto creditor_of_leaf = [&](uint32_t leaf) {
      return creditor_of(step.remote_pieces[run.first_piece + (leaf - run.first_leaf) * per_leaf]);
    };
    for (uint32_t leaf = run.first_leaf; leaf < run.end_leaf;) {
      const uint32_t creditor = creditor_of_leaf(leaf);
      uint32_t end = leaf + 1;
      while (end < run.end_leaf && creditor_of_leaf(end) == creditor) ++end;
      parts[creditor].leaves += end - leaf;
      parts[creditor].peaks += subtrees_of({leaf, end});
      leaf = end;
    }
  }
  for (uint32_t creditor = 0; creditor < parts.size(); ++creditor) {
    const Part& part = parts[creditor];
    if (part.leaves == 0) continue;
    const auto leaves = static_cast<double>(part.leaves);
    const double tokens = leaves * ops::kLeafTokens;
    StepLoad load;
    if (slice.kind == RowKind::kDecode) {
      load.decode_rows = 1;
      load.decode_context = tokens;
    } else {
      load.chunks.push_back({static_cast<double>(rows), tokens});
    }
    const double attend_s = history_seconds(all_.times(), load) / setup.shape.geometry.layers;
    const RemoteRun asked = remote_run(setup.shape, part.leaves, part.peaks, rows);
    const double each_s = attend_s / (leaves * rows);
    const PeerCost cost = {2 * setup.topology.latency_s(number_, creditor),
                           setup.topology.bytes_per_s(number_, creditor), 0, each_s};
    Share& share = shares[creditor];
    share.queries += rows;
    if (ship_or_fetch(asked, cost, each_s, attended_here_s + own_s).ship()) {
      share.shipped += asked.query_bytes + asked.partial_bytes;
      share.load.decode_rows += load.decode_rows;
      share.load.decode_context += load.decode_context;
      share.load.chunks.insert(share.load.chunks.end(), load.chunks.begin(), load.chunks.end());
    } else {
      share.fetched += asked.kv_bytes;
      own_s += attend_s;
    }
  }
}

// Seconds that a layer waits; it stands for so many layers with the same runs.
double SimPeer::ask_layer(const Step& step, std::span<const RemoteLeaves> runs, double attended_here_s,
                          Nanos now, uint32_t layers) {
  const ClusterSetup& setup = all_.setup();
  std::vector<Share> shares(setup.topology.instances);
  double own_s = 0;
  while (!runs.empty()) {
    const auto end = std::find_if(runs.begin(), runs.end(),
                                  [&](const RemoteLeaves& run) { return run.slice != runs.front().slice; });
    const auto of_slice = static_cast<size_t>(end - runs.begin());
    add_slice(step, runs.first(of_slice), attended_here_s, shares, own_s);
    runs = runs.subspan(of_slice);
  }
  // All leave by the same way, and the last answer counts.
  double sending_s = 0, answer_s = 0;
  for (uint32_t creditor = 0; creditor < shares.size(); ++creditor) {
    const Share& share = shares[creditor];
    if (share.queries == 0) continue;
    sums_.queries += share.queries * layers;
    sums_.shipped_bytes += share.shipped * layers;
    sums_.fetched_bytes += share.fetched * layers;
    const double work_s = history_seconds(all_.times(), share.load) / setup.shape.geometry.layers;
    sending_s += static_cast<double>(share.bytes()) / setup.topology.bytes_per_s(number_, creditor);
    answer_s = std::max(answer_s, 2 * setup.topology.latency_s(number_, creditor) + work_s);
    if (work_s > 0) all_.peer(creditor).serve(now, nanos(work_s * layers));
  }
  return std::max(0.0, sending_s + answer_s - attended_here_s) + own_s;
}

std::vector<Nanos> SimPeer::ask(const Step& step, Nanos now) {
  const CacheGeometry& g = all_.setup().shape.geometry;
  std::vector<Nanos> out(g.layers, 0);
  for (uint32_t layer = 0; layer < g.layers; ++layer) {
    const std::span<const RemoteLeaves> runs = step.remote_in(layer);
    if (runs.empty()) continue;
    // The layers of a group lie together.
    if (g.layer_in_group(layer) > 0) {
      out[layer] = out[layer - 1];
    } else {
      const uint32_t layers = std::min(g.layers_per_group, g.layers - layer);
      const double attended_here_s =
          attention_seconds(all_.times(), load_as_in(step, layer, g.layers)) / g.layers;
      out[layer] = nanos(ask_layer(step, runs, attended_here_s, now, layers));
    }
    sums_.waited_s += to_seconds(out[layer]);
  }
  return out;
}

// ---------------------------------------------------------------- all of them

SimCluster::SimCluster(const ClusterSetup& setup, std::shared_ptr<const StepTimes> times,
                       const std::vector<VirtualClock*>& clocks)
    : setup_(setup),
      times_(std::move(times)),
      network_(setup.topology),
      leader_(broker_options(setup, setup.topology.instances),
              network_.open(setup.topology.instances, leaders_clock_), no_places_) {
  KV_CHECK(clocks.size() == setup.topology.instances, "{} clocks, {} instances", clocks.size(),
           setup.topology.instances);
  for (uint32_t i = 0; i < setup.topology.instances; ++i) {
    peers_.push_back(std::make_unique<SimPeer>(*this, i, *clocks[i]));
  }
}

void SimCluster::introduce(cluster::Broker& broker, uint32_t number, Nanos now) const {
  constexpr uint64_t kOnlyTerm = 1;
  broker.begin_life(SimNetwork::id_of(number));
  for (uint32_t i = 0; i <= setup_.topology.instances; ++i) {
    if (i != number) broker.joined(SimNetwork::id_of(i), now);
  }
  broker.leader(SimNetwork::id_of(setup_.topology.instances), kOnlyTerm, now);
}

Nanos SimCluster::next_turn() const {
  if (!begun_) return 0;
  return std::min(network_.next_arrival(setup_.topology.instances), leader_.next_deadline());
}

void SimCluster::take_turn(Nanos at) {
  const uint32_t number = setup_.topology.instances;
  leaders_clock_.advance(std::max<Nanos>(0, at - leaders_clock_.now()));
  const Nanos now = leaders_clock_.now();
  leader_.begin_turn(no_cells_);
  if (!std::exchange(begun_, true)) introduce(leader_, number, now);
  for (const PeerMessage& message : network_.receive(number, now)) leader_.handle(message, now);
  leader_.end_turn({}, now);
}

PeerSums SimCluster::sums() const {
  PeerSums out;
  for (const auto& peer : peers_) out.add(peer->sums());
  return out;
}

Status SimCluster::check_ledgers() const {
  for (uint32_t debtor = 0; debtor < peers_.size(); ++debtor) {
    const cluster::ControlPlane* debtors = peers_[debtor]->broker().control();
    if (!debtors) continue;
    const auto owed = debtors->rmanager().borrower().by_creditor();
    for (uint32_t creditor = 0; creditor < peers_.size(); ++creditor) {
      const cluster::ControlPlane* creditors = peers_[creditor]->broker().control();
      if (!creditors || creditor == debtor) continue;
      const auto lent = creditors->rmanager().lender().by_debtor();
      const auto has = owed.find(SimNetwork::id_of(creditor));
      const auto gave = lent.find(SimNetwork::id_of(debtor));
      const uint32_t held = has == owed.end() ? 0 : has->second;
      const uint32_t given = gave == lent.end() ? 0 : gave->second;
      if (held != given) {
        return error(ErrorCode::kCorrupt, "instance {} holds {} cells of instance {}, which has lent it {}",
                     debtor, held, creditor, given);
      }
    }
  }
  return {};
}

}  // namespace kvasir
