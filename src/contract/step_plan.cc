#include "contract/step_plan.h"

#include <fmt/format.h>

#include <iterator>

namespace kvasir {

const char* name(RowKind kind) {
  switch (kind) {
    case RowKind::kPrefill:
      return "prefill";
    case RowKind::kDecode:
      return "decode";
    case RowKind::kRecompute:
      return "recompute";
    case RowKind::kRestore:
      return "restore";
  }
  return "?";
}

const char* name(Verb verb) {
  switch (verb) {
    case Verb::kAdd:
      return "add";
    case Verb::kDrop:
      return "drop";
    case Verb::kDropAll:
      return "drop_all";
    case Verb::kStage:
      return "stage";
  }
  return "?";
}

const char* name(Trigger trigger) {
  switch (trigger) {
    case Trigger::kNow:
      return "now";
    case Trigger::kBeforeLayer:
      return "before_layer";
    case Trigger::kAfterLayerWrites:
      return "after_layer_writes";
    case Trigger::kWhenReady:
      return "when_ready";
    case Trigger::kBackground:
      return "background";
  }
  return "?";
}

const char* name(Promise::Kind kind) {
  switch (kind) {
    case Promise::Kind::kOwn:
      return "own";
    case Promise::Kind::kReserve:
      return "reserve";
    case Promise::Kind::kFromReserve:
      return "from_reserve";
    case Promise::Kind::kLoan:
      return "loan";
    case Promise::Kind::kRelease:
      return "release";
  }
  return "?";
}

namespace {

std::string describe(const Promise& p) {
  const std::string room = fmt::format("{} cells on {}", p.cells, name(p.tier));
  switch (p.kind) {
    case Promise::Kind::kOwn:
      break;
    case Promise::Kind::kReserve:
      return "reserve " + room;
    case Promise::Kind::kFromReserve:
      return fmt::format("promise {} {} of the reserve", raw(p.owner), room);
    case Promise::Kind::kLoan:
      return fmt::format("lend {} {} of {}, due at {}", raw(p.owner), room, raw(p.from), p.due_tokens);
    case Promise::Kind::kRelease:
      return fmt::format("promise {} {} when {} releases them", raw(p.owner), room, raw(p.from));
  }
  return fmt::format("promise {} {}", raw(p.owner), room);
}

}  // namespace

std::string to_string(const StepPlan& plan) {
  std::string out;
  auto line = std::back_inserter(out);
  for (const auto& f : plan.failures) fmt::format_to(line, "fail {}: {}\n", raw(f.seq), f.reason);
  for (const auto& p : plan.preemptions) fmt::format_to(line, "preempt {}\n", raw(p.seq));
  for (const auto& a : plan.adoptions) fmt::format_to(line, "adopt {} [0, {})\n", raw(a.seq), a.tokens);
  for (const auto& c : plan.copies) {
    if (c.verb == Verb::kDropAll) {
      fmt::format_to(line, "{} {} {} {}\n", name(c.verb), raw(c.seq), name(c.form), name(c.tier));
      continue;
    }
    fmt::format_to(line, "{} {} [{}, {}) {} {} x{} {}\n", name(c.verb), raw(c.seq), c.tokens.begin,
                   c.tokens.end, name(c.form), name(c.tier), c.layers.count(), name(c.trigger));
  }
  for (const auto& p : plan.promises) fmt::format_to(line, "{}\n", describe(p));
  for (const auto& r : plan.rows) {
    fmt::format_to(line, "{} {} [{}, {}){}", name(r.kind), raw(r.seq), r.tokens.begin, r.tokens.end,
                   r.samples ? " samples" : "");
    if (r.writes != Writes{r.layers, {}}) {
      fmt::format_to(line, " x{} keeps kv x{} x x{}", r.layers.count(), r.writes.kv.count(),
                     r.writes.x.count());
    }
    fmt::format_to(line, "\n");
  }
  if (plan.borrow_cells > 0) fmt::format_to(line, "borrow {} cells\n", plan.borrow_cells);
  if (plan.return_cells > 0) fmt::format_to(line, "return {} cells\n", plan.return_cells);
  if (const ExecutionHints& h = plan.hints; h != ExecutionHints{}) {
    fmt::format_to(line, "hints: overlap {} fuse {}\n", h.overlap, h.fuse);
  }
  return out;
}

}  // namespace kvasir
