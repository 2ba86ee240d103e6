#include "apps/simulated_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kTag = 1'000'000'000;  // milliseconds
constexpr Nanos kMicro = 1000;

size_t index_in(const Slo& slo) {
  return slo.e2el_ms - kTag;
}

LinkCost random_link(Random& random, uint64_t cell_bytes) {
  // A cell takes from a hundredth of a step to ten of them.
  const double cell_s = 1e-5 * std::pow(1000.0, random.unit());
  return {random.unit() * 1e-4, cell_s / static_cast<double>(cell_bytes)};
}

void random_memory(Random& random, SimulationSetup& setup) {
  CacheOptions& cache = setup.engine.cache;
  const auto layers = static_cast<uint32_t>(random.between(1, 4));
  cache.geometry = {16, layers, static_cast<uint32_t>(random.between(1, layers)), 8};
  cache.device_bytes = cache.geometry.kv_block_bytes() * static_cast<uint64_t>(random.between(4, 60));
  cache.prefix_caching = random.below(2) == 0;
  if (random.below(2) == 0) {
    cache.host_bytes = cache.geometry.kv_block_bytes() * static_cast<uint64_t>(random.between(2, 80));
    if (random.below(2) == 0) {
      cache.stage_bytes = cache.geometry.largest_piece_bytes() * static_cast<uint64_t>(random.between(4, 40));
    }
    if (random.below(4) == 0) {
      cache.disk_bytes = cache.geometry.cell_stride(Form::kKv, Tier::kDisk) * cache.geometry.groups() *
                         static_cast<uint64_t>(random.between(2, 80));
    }
    for (auto& row : setup.link) {
      for (LinkCost& cost : row) cost = random_link(random, cache.geometry.kv_cell_bytes());
    }
  }
}

void random_engine(Random& random, EngineOptions& engine) {
  const uint32_t fit = Engine::longest_fit(engine.cache);
  engine.max_model_len = static_cast<uint32_t>(random.between(std::min(fit, 40u), std::min(fit, 700u)));
  engine.limits.max_num_seqs = static_cast<uint32_t>(random.between(1, 12));
  engine.limits.max_num_batched_tokens = static_cast<uint32_t>(random.between(16, 400));
  if (random.below(3) == 0) engine.limits.long_prefill_token_threshold = 32;
  if (random.below(3) == 0) engine.max_decode_stall = random.between(1, 20) * kNanosPerMilli;
  if (random.below(4) == 0) engine.max_num_queued_reqs = static_cast<uint32_t>(random.between(1, 10));
  if (random.below(4) == 0) engine.max_num_queued_tokens = static_cast<uint64_t>(random.between(1, 900));
  engine.refuse_late = random.below(3) == 0;
  if (random.below(4) == 0) engine.scratch_tokens = static_cast<uint32_t>(random.between(64, 512));
  engine.check_integrity = true;
}

std::vector<SimulatedRequest> random_requests(Random& random, const EngineOptions& engine) {
  std::vector<SimulatedRequest> out(static_cast<size_t>(random.between(1, 30)));
  const Nanos most_gap = random.below(4) == 0 ? 1 : random.between(1, 20'000) * kMicro;
  const int64_t longest = engine.max_model_len;
  const int64_t usual = std::max<int64_t>(1, longest / random.between(2, 12));
  Nanos arrival = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    SimulatedRequest& r = out[i];
    arrival += random.between(0, most_gap);
    r.arrival = arrival;
    r.prompt_tokens = static_cast<uint32_t>(random.between(1, usual));
    if (random.below(20) == 0) r.prompt_tokens = static_cast<uint32_t>(random.between(1, 2 * longest));
    r.output_tokens = static_cast<uint32_t>(random.between(1, usual));
    if (random.below(20) == 0) r.output_tokens = static_cast<uint32_t>(random.between(1, longest));
    if (random.below(5) == 0) r.max_tokens = static_cast<uint32_t>(random.between(1, 2 * usual));
    if (random.below(2) == 0) r.told_output_tokens = r.output_tokens;
    if (random.below(2) == 0) r.slo.ttft_ms = static_cast<uint32_t>(random.between(1, 500));
    r.slo = tagged(r.slo, i);
  }
  return out;
}

Nanos sum(const std::vector<Nanos>& gaps) {
  Nanos out = 0;
  for (Nanos gap : gaps) out += gap;
  return out;
}

uint32_t wanted(const SimulatedRequest& r) {
  return r.max_tokens == 0 ? r.output_tokens : std::min(r.output_tokens, r.max_tokens);
}

std::string judge_times(const SimulatedRequest& r, const RequestRecord& record) {
  if (record.start < r.arrival || record.end < record.start) return "begins or ends too early";
  if (record.content_chunks == 0) return "";
  if (record.first <= record.start || record.last < record.first || record.end != record.last) {
    return fmt::format("tokens from {} to {}, between {} and {}", record.first, record.last, record.start,
                       record.end);
  }
  if (record.gaps.size() + 1 != static_cast<size_t>(record.content_chunks)) return "gaps are lost";
  if (!record.gaps.empty() && *std::min_element(record.gaps.begin(), record.gaps.end()) <= 0) {
    return "two tokens at once";
  }
  return sum(record.gaps) == record.last - record.first ? "" : "gaps do not add up";
}

std::string judge_request(const World& world, const WorldRun& run, size_t i) {
  using State = RequestRecord::State;
  const SimulatedRequest& r = world.requests[i];
  const RequestRecord& record = run.outcome.load.records[i];
  const bool ended = record.state == State::kCompleted || record.state == State::kFailed;
  if (!ended) return run.outcome.load.drained_out ? "" : "never ended";
  if (record.end > run.outcome.load.duration) return "ends after the run";
  if (std::string wrong = judge_times(r, record); !wrong.empty()) return wrong;
  const bool whole = fits(world, r);
  if (record.state == State::kFailed) {
    if (record.error.empty() || record.error.find('\n') != std::string::npos) return "fails with no one line";
    if (record.content_chunks > 0) return "fails after its first token";
    return whole && !record.refused ? "fails though it fits: " + record.error : "";
  }
  if (!whole) return "is served though it does not fit";
  if (record.output_tokens != wanted(r) || record.content_chunks != wanted(r)) {
    return fmt::format("gave {} tokens instead of {}", record.content_chunks, wanted(r));
  }
  const auto found = run.accounts.requests.find(i);
  if (found == run.accounts.requests.end()) return "was never planned";
  const SeqAccount& a = found->second;
  const uint64_t needed = r.prompt_tokens + wanted(r) - 1;
  if (a.rows + a.adopted != needed + a.lost) {
    return fmt::format("{} rows and {} adopted for {} tokens and {} that were lost", a.rows, a.adopted,
                       needed, a.lost);
  }
  return "";
}

// Time in which some request is in the engine.
Nanos time_with_requests(const World& world, const WorldRun& run) {
  std::vector<std::pair<Nanos, Nanos>> spans;
  for (size_t i = 0; i < world.requests.size(); ++i) {
    const RequestRecord& r = run.outcome.load.records[i];
    if (run.accounts.requests.contains(i)) spans.emplace_back(r.start + world.setup.request_overhead, r.end);
  }
  std::sort(spans.begin(), spans.end());
  Nanos total = 0, until = 0;
  for (const auto& [begin, end] : spans) {
    total += std::max<Nanos>(0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return total;
}

std::string judge_device(const World& world, const WorldRun& run) {
  const SimulationOutcome& out = run.outcome;
  uint64_t rows = 0;
  for (const auto& [index, account] : run.accounts.requests) rows += account.rows;
  if (rows != out.sums.rows) return fmt::format("{} rows in plans, {} of requests", out.sums.rows, rows);
  for (const EngineSample& s : out.samples) {
    for (Tier tier : kAllTiers) {
      uint64_t bytes = 0;
      for (const auto& form : s.bytes) bytes += form[index_of(tier)];
      if (bytes > world.setup.engine.cache.tier_bytes(tier)) {
        return fmt::format("{} bytes on the {}", bytes, name(tier));
      }
    }
    if (s.running > world.setup.engine.limits.max_num_seqs) return "too many run";
  }
  if (out.load.drained_out) return "";
  const double work_s = to_seconds(time_with_requests(world, run));
  const double tolerance_s = 1e-9 * static_cast<double>(out.steps + 1);
  if (out.busy_s > work_s + tolerance_s) return "busy without a request";
  if (!out.has_link && out.busy_s < work_s - tolerance_s) {
    return fmt::format("busy for {} s while there is work for {} s", out.busy_s, work_s);
  }
  return "";
}

}  // namespace

Slo tagged(Slo slo, size_t index) {
  slo.e2el_ms = kTag + static_cast<uint32_t>(index);
  return slo;
}

StepPlan AccountingPolicy::plan(const View& view) {
  for (const auto* seqs : {&view.running, &view.waiting}) {
    for (const SeqView& seq : *seqs) {
      SeqAccount& a = accounts_.requests[index_in(seq.slo)];
      if (seq.ready_tokens >= a.reached) continue;
      const uint64_t lost = a.reached - seq.ready_tokens;
      if (!a.preempted && seq.deferrals == 0) accounts_.losses_unexplained += lost;
      a.lost += lost;
      a.reached = seq.ready_tokens;
    }
  }
  StepPlan plan = policy_->plan(view);
  std::map<SeqId, const SeqView*> seqs;
  for (const auto* list : {&view.running, &view.waiting}) {
    for (const SeqView& seq : *list) seqs[seq.id] = &seq;
  }
  const auto account = [&](SeqId id) -> SeqAccount& {
    return accounts_.requests[index_in(seqs.at(id)->slo)];
  };
  for (const Preemption& p : plan.preemptions) {
    account(p.seq).preempted = true;
    ++accounts_.preemptions;
  }
  for (const Adoption& adoption : plan.adoptions) {
    SeqAccount& a = account(adoption.seq);
    a.adopted += adoption.tokens - a.reached;
    a.reached = adoption.tokens;
  }
  for (const Rows& rows : plan.rows) {
    SeqAccount& a = account(rows.seq);
    a.rows += rows.tokens.size();
    if (rows.tokens.begin == a.reached) {
      a.reached = rows.tokens.end;
    } else if (rows.tokens.begin < a.reached) {
      a.lost += rows.tokens.size();  // of cells that were dropped
    }
  }
  return plan;
}

World random_world(uint64_t seed, const std::string& policy) {
  Random random(seed);
  World out;
  SimulationSetup& s = out.setup;
  s.policy = policy;
  s.seed = seed;
  random_memory(random, s);
  random_engine(random, s.engine);
  s.times = std::make_shared<LinearTimes>(random.between(50, 3000), random.between(1, 60),
                                          random.between(1, 60), 0.01 * random.unit(), 0.1);
  if (random.below(2) == 0) s.noise = 0.3 * random.unit();
  if (random.below(3) == 0) s.request_overhead = random.between(0, 3000) * kMicro;
  if (random.below(3) == 0) s.costs.step_s = s.costs.prefill_row_s = s.costs.decode_row_s = 1e-4;
  s.costs_learn = random.below(2) == 0;
  s.length_predictor = std::vector<std::string>{"online", "oracle", "constant:20"}[random.below(3)];
  if (random.below(3) == 0) s.max_concurrency = random.between(1, 8);
  if (random.below(8) == 0) s.drain_timeout = random.between(0, 200) * kNanosPerMilli;
  out.requests = random_requests(random, s.engine);
  if (random.below(4) == 0) s.explain = random.below(out.requests.size());
  return out;
}

WorldRun run(const World& world) {
  WorldRun out;
  SimulationSetup setup = world.setup;
  setup.policies = [&](std::string_view name) -> Result<std::unique_ptr<Policy>> {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, world.setup.policies(name));
    return std::unique_ptr<Policy>(std::make_unique<AccountingPolicy>(std::move(policy), out.accounts));
  };
  out.outcome = simulate(setup, world.requests).value();
  return out;
}

bool fits(const World& world, const SimulatedRequest& r) {
  const uint32_t most = world.setup.engine.max_model_len;
  return r.prompt_tokens + std::max(r.output_tokens, r.max_tokens) <= most;
}

std::string judge(const World& world, const WorldRun& run) {
  const LoadOutcome& load = run.outcome.load;
  if (load.records.size() != world.requests.size()) return "requests are lost";
  for (size_t i = 0; i < world.requests.size(); ++i) {
    const std::string wrong = judge_request(world, run, i);
    if (!wrong.empty()) return fmt::format("request {}: {}", i, wrong);
  }
  if (run.accounts.losses_unexplained > 0) return "tokens were lost for no reason";
  if (run.outcome.preemptions != run.accounts.preemptions) return "preemptions are lost";
  const int64_t most = world.setup.max_concurrency;
  if (most > 0 && load.max_concurrent > most) return "more at once than the client sends";
  return judge_device(world, run);
}

bool same(const RequestRecord& a, const RequestRecord& b) {
  return a.state == b.state && a.start == b.start && a.first == b.first && a.last == b.last &&
         a.end == b.end && a.refused == b.refused && a.gaps == b.gaps && a.error == b.error &&
         a.content_chunks == b.content_chunks && a.output_tokens == b.output_tokens;
}

bool same(const SimulationOutcome& a, const SimulationOutcome& b) {
  return a.load.duration == b.load.duration && a.load.max_concurrent == b.load.max_concurrent &&
         a.load.records.size() == b.load.records.size() &&
         std::equal(a.load.records.begin(), a.load.records.end(), b.load.records.begin(),
                    [](const RequestRecord& x, const RequestRecord& y) { return same(x, y); }) &&
         a.steps == b.steps && a.busy_s == b.busy_s && a.preemptions == b.preemptions &&
         a.sums.rows == b.sums.rows && a.sums.seconds_at_limit == b.sums.seconds_at_limit &&
         a.samples.size() == b.samples.size() && a.cost_error == b.cost_error &&
         a.link.transfers == b.link.transfers && a.link.busy_s == b.link.busy_s && a.life == b.life;
}

std::string name_of_policy(const testing::TestParamInfo<std::string>& info) {
  std::string out = info.param;
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace kvasir::test
