// The steps of a short profile, to which the policies' cost model is fitted.
#include <algorithm>
#include <utility>

#include "apps/profile/measure.h"
#include "apps/profile/step_machine.h"
#include "runtime/device_limits.h"
#include "runtime/engine_options.h"

namespace kvasir {
namespace {

constexpr uint32_t kMixedContext = 256;

ProfileCase prefill(uint32_t rows, uint32_t history) {
  ProfileCase c;
  c.prefill_rows = rows;
  c.history = history;
  c.shown.what = fmt::format("prefill {} behind {}", rows, history);
  c.shown.work.add_prefill(history, rows);
  return c;
}

ProfileCase decode(uint32_t batch, uint32_t context, const CacheGeometry& g, bool from_x, uint32_t rows) {
  ProfileCase c;
  c.batch = batch;
  c.context = context;
  c.prefill_rows = rows;
  for (uint32_t i = 0; i < batch; ++i) c.shown.work.add_decode(context);
  if (rows > 0) c.shown.work.add_prefill(0, rows);
  // The block with the new token is KV.
  if (from_x) c.x_blocks = (context - 1) / g.block_tokens;
  c.shown.work.projected_tokens = static_cast<double>(batch) * c.x_blocks * g.block_tokens * g.layers;
  c.shown.what = fmt::format("decode {} x {}{}{}", batch, context, from_x ? ", from X" : "",
                             rows > 0 ? fmt::format(" + prefill {}", rows) : "");
  return c;
}

// The cases that fit.
std::vector<ProfileCase> cases(const RuntimeOptions& options, const CacheGeometry& g, uint32_t longest,
                               uint32_t blocks) {
  std::vector<ProfileCase> out;
  const uint32_t most_rows = batched_tokens(options);
  for (uint32_t rows : {16u, 64u, 128u, 256u, 512u}) {
    for (uint32_t history : {0u, 256u, 1024u, 4096u}) {
      if (rows <= most_rows) out.push_back(prefill(rows, history));
    }
  }
  std::vector<uint32_t> batches = {1, 2, 4, 8, 16, 32};
  if (is_on_gpu(options)) batches.insert(batches.end(), {64, 128, 256});
  for (const uint32_t batch : batches) {
    for (uint32_t context : {16u, 256u, 1024u, 4096u}) {
      out.push_back(decode(batch, context, g, /*from_x=*/false, 0));
      if (g.has(Form::kX) && context >= 256 && batch % 8 == 1)
        out.push_back(decode(batch, context, g, true, 0));
      if (g.has(Form::kX) && context == 256 && batch == 8) out.push_back(decode(batch, context, g, true, 0));
    }
    if (batch == 4 || batch == 16) {
      for (uint32_t rows : {64u, 256u}) {
        if (rows <= most_rows) out.push_back(decode(batch, kMixedContext, g, /*from_x=*/false, rows));
      }
    }
  }
  std::erase_if(out, [&](const ProfileCase& c) {
    return c.batch > options.max_num_seqs || c.blocks(g) > blocks || c.context > longest ||
           c.history + c.prefill_rows > longest;
  });
  return out;
}

}  // namespace

double ProfiledStep::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() - 1) / 2];
}

Result<std::vector<ProfiledStep>> measure_steps(const Subject& subject, const MonotonicClock& clock,
                                                Nanos deadline) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<StepMachine> machine, StepMachine::make(subject, clock));
  const auto longest = static_cast<uint32_t>(subject.file->spec().context_length);
  std::vector<ProfileCase> all =
      cases(subject.options, subject.engine.cache.geometry, longest, machine->blocks());
  if (all.empty()) return error(ErrorCode::kExhausted, "there is no memory to run a single step in");
  KV_ASSIGN_OR_RETURN(std::vector<ProfileCase> ran, run_cases(*machine, std::move(all), clock, deadline));
  std::vector<ProfiledStep> out;
  for (ProfileCase& c : ran) out.push_back(std::move(c.shown));
  return out;
}

}  // namespace kvasir
