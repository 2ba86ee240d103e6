// From logits to a token. All sums are of integers, so the order in which threads make them is free.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"

namespace kvasir::ops::gpu {

// A block of 512 threads takes a row of logits.
struct DrawToken {
  static constexpr int kThreads = 512;
  static constexpr int kBins = 256;
  static constexpr int kKeyBytes = 7;
  static constexpr float kNone = -__builtin_inff();

  struct Shared {
    uint64_t bins[kBins];
    uint64_t sums[kThreads];
    float values[kThreads / kWarp];
    int ids[kThreads / kWarp];
    uint64_t result;  // what one thread tells the others
    uint64_t above;
  };
  static Shape shape(const DrawArgs& a) { return {a.count, 1, kThreads, static_cast<int>(sizeof(Shared))}; }

  // A logit and its id; the first in the order of candidates is the largest.
  struct Candidate {
    float value;
    int id;
  };
  static KV_DEVICE Candidate first_of(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b;
  }
  static KV_DEVICE Candidate first_of_warp(Candidate best) {
    for (int width = kWarp / 2; width > 0; width /= 2) {
      best = first_of(best, {shuffle_xor(best.value, width), shuffle_xor(best.id, width)});
    }
    return best;
  }

  // A row as it is drawn from.
  struct Row {
    const float* logits;
    int n;
    float most;
    float factor;
    uint64_t least_key;  // ids with smaller keys are not drawn

    KV_DEVICE float value(int id) const { return logits[id] == logits[id] ? logits[id] : kNone; }
    // Larger for earlier candidates; 56 bits.
    KV_DEVICE uint64_t key(int id) const {
      const uint32_t bits = bits_of(value(id) + 0.0F);  // -0 becomes +0
      const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
      return (uint64_t{ordered} << 24) | (0xFFFFFFU - static_cast<uint32_t>(id));
    }
    KV_DEVICE uint64_t weight(int id) const {
      if (key(id) < least_key) return 0;
      return static_cast<uint64_t>(exp2_of((value(id) - most) * factor) * 0x1p40F);
    }
  };

  static KV_DEVICE Candidate finish_and_find_first(const DrawArgs& a, float* logits, Shared& shared) {
    Candidate best = {kNone, a.vocabulary};
    const bool finished = a.scale == 1 && a.cap.limit == 0;
    KV_UNROLL_8
    for (int id = thread_index(); id < a.vocabulary; id += kThreads) {
      float logit = logits[id];
      if (!finished) {
        if (a.scale != 1) logit = logit * a.scale;
        if (a.cap.limit != 0) logit = capped(logit, a.cap);
        logits[id] = logit;
      }
      best = first_of(best, {logit == logit ? logit : kNone, id});
    }
    best = first_of_warp(best);
    if (lane_index() == 0) {
      shared.values[warp_index()] = best.value;
      shared.ids[warp_index()] = best.id;
    }
    sync_block();
    best = {shared.values[lane_index() % (kThreads / kWarp)], shared.ids[lane_index() % (kThreads / kWarp)]};
    return first_of_warp(best);
  }

  // The key of the candidate with which the sum of measure(id) over the candidates up to it reaches `least`,
  // byte by byte. REQUIRES: the sum of all reaches it, and it is not 0
  template <typename Measure>
  static KV_DEVICE uint64_t key_that_reaches(const Row& row, uint64_t least, Shared& shared,
                                             const Measure& measure) {
    uint64_t prefix = 0, above = 0;
    for (int byte = kKeyBytes - 1; byte >= 0; --byte) {
      sync_block();
      for (int bin = thread_index(); bin < kBins; bin += kThreads) shared.bins[bin] = 0;
      sync_block();
      for (int id = thread_index(); id < row.n; id += kThreads) {
        const uint64_t key = row.key(id);
        if ((key >> (8 * byte + 8)) == prefix)
          add_in_shared(&shared.bins[(key >> (8 * byte)) & 0xFF], measure(id));
      }
      sync_block();
      if (thread_index() == 0) {
        uint64_t bin = kBins - 1;
        while (above + shared.bins[bin] < least) above += shared.bins[bin--];
        shared.result = bin;
        shared.above = above;
      }
      sync_block();
      prefix = (prefix << 8) | shared.result;
      above = shared.above;
    }
    return prefix;
  }

  // Sums of weights over runs of `run` ids, a run of each thread's number.
  static KV_DEVICE void sum_runs(const Row& row, int run, Shared& shared) {
    sync_block();
    for (int i = warp_index(); i < kThreads; i += kThreads / kWarp) {
      uint64_t sum = 0;
      for (int64_t id = int64_t{i} * run + lane_index(); id < row.n && id < int64_t{i + 1} * run;
           id += kWarp) {
        sum += row.weight(static_cast<int>(id));
      }
      for (int width = kWarp / 2; width > 0; width /= 2) sum += shuffle_xor(sum, width);
      if (lane_index() == 0) shared.sums[i] = sum;
    }
    sync_block();
  }

  static KV_DEVICE uint64_t total(const Row& row, int run, Shared& shared) {
    sum_runs(row, run, shared);
    if (thread_index() == 0) {
      uint64_t sum = 0;
      for (int i = 0; i < kThreads; ++i) sum += shared.sums[i];
      shared.result = sum;
    }
    sync_block();
    return shared.result;
  }

  // The first id of which the sum of weights up to it exceeds the point.
  static KV_DEVICE int drawn(const Row& row, int run, uint64_t bits, Shared& shared) {
    const uint64_t point = multiply_high(bits, total(row, run, shared));
    sync_block();  // all have read it
    if (thread_index() == 0) {
      uint64_t before = 0;
      int id = 0;
      for (int i = 0; before + shared.sums[i] <= point; ++i) {
        before += shared.sums[i];
        id += run;
      }
      while (before + row.weight(id) <= point) before += row.weight(id++);
      shared.result = static_cast<uint64_t>(id);
    }
    sync_block();
    return static_cast<int>(shared.result);
  }

  static KV_DEVICE void run(const DrawArgs& a) {
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory());
    float* logits = a.logits + int64_t{block_x()} * a.vocabulary;
    const DrawPlace& draw = a.draws[block_x()];
    const Candidate best = finish_and_find_first(a, logits, shared);
    sync_block();  // all logits are finished
    int token = best.id;
    if (draw.factor != 0 && best.value - best.value == 0) {  // finite
      Row row = {logits, a.vocabulary, best.value, draw.factor, 0};
      const int run = (a.vocabulary + kThreads - 1) / kThreads;
      if (draw.top_k > 0 && draw.top_k < a.vocabulary) {
        row.least_key =
            key_that_reaches(row, static_cast<uint64_t>(draw.top_k), shared, [](int) { return uint64_t{1}; });
      }
      if (draw.top_p < 1) {
        const uint64_t sum = total(row, run, shared);
        const auto wanted = static_cast<uint64_t>(ceil(draw.top_p * static_cast<double>(sum)));
        row.least_key = key_that_reaches(row, wanted < sum ? wanted : sum, shared,
                                         [&](int id) { return row.weight(id); });
      }
      token = drawn(row, run, draw.bits, shared);
    }
    if (thread_index() == 0) a.tokens[block_x()] = token;
  }
};

}  // namespace kvasir::ops::gpu
