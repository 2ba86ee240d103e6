// Whole forward passes of a model's shape with random weights: steps of decoding, and prompts.
#include <nlohmann/json.hpp>

#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "apps/gpu/whole_pass.h"

namespace kvasir::gpu_program {
namespace {

constexpr int kPrefillPiece = 64;  // rows that attend to a leaf together

}  // namespace

void bench_forward_decode(const Options& options, Report& report) {
  struct Case {
    int batch, context;
  };
  const double floor = read_floor_gb_s();
  const int sms = multiprocessors();
  const RandomModel model(spec_of(options.shape));
  const ModelSpec& spec = model.model().spec;
  const Stream stream;
  int bad = 0;
  std::vector<float> alone;  // logits of the first sequence, at a context of 1,024, in a batch of one
  for (const bool overlaps : {false, true}) {
    for (const Case& each : {Case{1, 1024}, Case{8, 1024}, Case{16, 1024}, Case{32, 1024}, Case{64, 1024},
                             Case{128, 1024}, Case{1, 8192}, Case{32, 8192}}) {
      const Cache cache(spec, each.batch, each.context);
      const Pass pass(model, cache, each.batch, each.context - 1, each.context, 1);
      StreamQueue queue(sms, overlaps, stream.get());
      const double us = graph_us(stream, 1, 1, [&](int) { pass.queue(queue); });
      const std::vector<float> logits = pass.logits();
      if (alone.empty()) alone = logits;
      const bool comparable = each.context == 1024;
      const bool same = comparable && same_bits(alone, logits);
      bad += (comparable && !same) || !all_numbers(logits) ? 1 : 0;
      const double bytes =
          model.bytes() + static_cast<double>(each.batch) * each.context * spec.layers * 4 * spec.kv_dim();
      report.add(
          {{"part", "forward"},
           {"what", "decode"},
           {"batch", each.batch},
           {"context", each.context},
           {"overlaps", overlaps},
           {"us", us},
           {"tokens_s", each.batch / us * 1e6},
           {"gb_s", bytes / us / 1e3},
           {"of_floor", bytes / us / 1e3 / floor},
           {"finite", all_numbers(logits)},
           {"same_bits", comparable ? nlohmann::json(same) : nlohmann::json()}},
          text_of(
              "decode, batch %3d, context %5d%s: %8.2f ms, %8.0f tokens/s, %5.1f %% of the rate of reads%s%s",
              each.batch, each.context, overlaps ? ", overlapping" : "", us / 1e3, each.batch / us * 1e6,
              100 * bytes / us / 1e3 / floor,
              !comparable ? ""
              : same      ? ", bits as alone"
                          : ", OTHER BITS than alone",
              all_numbers(logits) ? "" : ", NOT FINITE"));
    }
  }
  must_be_good(bad);
}

void bench_forward_prefill(const Options& options, Report& report) {
  const int sms = multiprocessors();
  const RandomModel model(spec_of(options.shape));
  const ModelSpec& spec = model.model().spec;
  const Stream stream;
  StreamQueue queue(sms, false, stream.get());
  int bad = 0;
  for (const int rows : {512, 1024, 4096, 8192}) {
    const Cache cache(spec, 1, rows);
    double us = 0;
    std::vector<float> whole;
    {
      const Pass pass(model, cache, 1, 0, rows, kPrefillPiece);
      us = graph_us(stream, 1, 1, [&](int) { pass.queue(queue); });
      whole = pass.logits();
    }
    // In pieces of other sizes, the last of which is one row.
    std::vector<float> pieces;
    for (int begin = 0; begin < rows;) {
      const int end = begin == 0 ? rows / 2 + 3 : begin + 1 < rows - 1 ? rows - 1 : rows;
      const Pass pass(model, cache, 1, begin, end, end - begin == 1 ? 1 : kPrefillPiece);
      pass.queue(queue);
      stream.wait();
      pieces = pass.logits();
      begin = end;
    }
    const bool same = same_bits(whole, pieces);
    bad += same && all_numbers(whole) ? 0 : 1;
    const double head = 2.0 * spec.vocab_size * spec.dim;
    const double operations =
        (model.bytes() - head) * rows + head + 4.0 * spec.q_dim() * spec.layers * rows * (rows + 1.0) / 2;
    report.add({{"part", "forward"},
                {"what", "prefill"},
                {"rows", rows},
                {"us", us},
                {"tokens_s", rows / us * 1e6},
                {"tflops", operations / us / 1e6},
                {"finite", all_numbers(whole)},
                {"same_bits", same}},
               text_of("prefill of %5d: %8.2f ms, %8.0f tokens/s, %6.1f TFLOP/s%s%s", rows, us / 1e3,
                       rows / us * 1e6, operations / us / 1e6,
                       same ? ", bits as in pieces" : ", OTHER BITS than in pieces",
                       all_numbers(whole) ? "" : ", NOT FINITE"));
  }
  must_be_good(bad);
}

}  // namespace kvasir::gpu_program
