// The steps of a full profile, from which the simulator's times are fitted.
#include <algorithm>
#include <utility>

#include "apps/profile/full_profile.h"
#include "apps/profile/step_machine.h"

namespace kvasir {
namespace {

class Grid {
 public:
  Grid(const CacheGeometry& geometry, uint32_t most_seqs, uint32_t longest, uint32_t blocks)
      : geometry_(geometry), most_seqs_(most_seqs), longest_(longest), blocks_(blocks) {}

  // A case that does not fit is left out.
  void add(uint32_t batch, uint32_t context, uint32_t rows, uint32_t history, bool from_x = false) {
    ProfileCase c;
    c.batch = batch;
    c.context = batch > 0 ? context : 0;
    c.prefill_rows = rows;
    c.history = history;
    // A chunk that is not its prompt's last samples nothing.
    c.samples = cases_.size() % 2 == 0;
    if (from_x) c.x_blocks = (context - 1) / geometry_.block_tokens;
    if (batch > most_seqs_ || c.blocks(geometry_) > blocks_ || c.context > longest_ ||
        history + rows > longest_) {
      return;
    }
    for (uint32_t i = 0; i < batch; ++i) c.shown.work.add_decode(context);
    if (rows > 0) c.shown.work.add_prefill(history, rows);
    c.shown.work.projected_tokens =
        static_cast<double>(batch) * c.x_blocks * geometry_.block_tokens * geometry_.layers;
    c.shown.what = name_of(c);
    cases_.push_back(std::move(c));
  }
  std::vector<ProfileCase> take() { return std::move(cases_); }

 private:
  static std::string name_of(const ProfileCase& c) {
    std::string out;
    if (c.batch > 0) out = fmt::format("decode {} x {}{}", c.batch, c.context, c.x_blocks ? ", from X" : "");
    if (c.batch > 0 && c.prefill_rows > 0) out += " + ";
    if (c.prefill_rows > 0) {
      out += fmt::format("prefill {} behind {}{}", c.prefill_rows, c.history, c.samples ? "" : ", no end");
    }
    return out;
  }

  const CacheGeometry& geometry_;
  const uint32_t most_seqs_, longest_, blocks_;
  std::vector<ProfileCase> cases_;
};

std::vector<ProfileCase> all_cases(const CacheGeometry& g, uint32_t most_seqs, uint32_t longest,
                                   uint32_t blocks) {
  Grid grid(g, most_seqs, longest, blocks);
  for (uint32_t rows : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u, 24u, 32u, 48u, 64u, 96u, 128u, 192u, 256u}) {
    for (uint32_t history : {0u, 64u, 256u, 1024u}) grid.add(0, 0, rows, history);
    grid.add(0, 0, rows, rows <= 64 ? 8192 - rows : 4096);
  }
  for (uint32_t rows : {384u, 512u, 768u, 1024u}) {
    for (uint32_t history : {0u, 512u}) grid.add(0, 0, rows, history);
  }
  for (uint32_t rows : {1536u, 2048u}) grid.add(0, 0, rows, 0);
  for (uint32_t batch : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u, 24u, 32u, 48u, 64u}) {
    for (uint32_t context : {16u, 64u, 160u, 256u, 1024u, 4096u}) grid.add(batch, context, 0, 0);
    if (!g.has(Form::kX) || (batch != 1 && batch != 4 && batch != 16)) continue;
    for (uint32_t context : {256u, 1024u}) grid.add(batch, context, 0, 0, /*from_x=*/true);
  }
  // Steps as policies make them that split prompts into chunks.
  for (uint32_t batch : {1u, 3u, 8u, 16u, 32u, 48u}) {
    for (uint32_t rows : {8u, 32u, 64u, 128u, 256u, 448u}) {
      grid.add(batch, 96, rows, 0);
      grid.add(batch, 512, rows, rows <= 128 ? 256 : 0);
    }
  }
  return grid.take();
}

}  // namespace

Result<std::vector<ProfiledStep>> measure_grid(const Subject& subject, const MonotonicClock& clock,
                                               Nanos deadline) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<StepMachine> machine, StepMachine::make(subject, clock));
  const auto longest = static_cast<uint32_t>(subject.file->spec().context_length);
  std::vector<ProfileCase> all =
      all_cases(subject.engine.cache.geometry, subject.options.max_num_seqs, longest, machine->blocks());
  KV_ASSIGN_OR_RETURN(std::vector<ProfileCase> ran, run_cases(*machine, std::move(all), clock, deadline));
  std::vector<ProfiledStep> out;
  for (ProfileCase& c : ran) out.push_back(std::move(c.shown));
  return out;
}

}  // namespace kvasir
