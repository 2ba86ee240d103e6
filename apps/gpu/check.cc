// Each form of the tensor cores' instruction against fused16, and the scalar operations against the host's.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/gpu/device.h"
#include "apps/gpu/operands.h"
#include "apps/gpu/parts.h"
#include "apps/gpu/workers.h"
#include "exec/cuda/probe.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/fused16.h"

namespace kvasir::gpu_program {
namespace {

constexpr int kShownMismatches = 3;  // of a form and a kind

// One call: problems of one kind and one number of steps.
struct Batch {
  int form;
  int kind;
  int steps;
  bool from_zero;
  int problems;
  uint64_t seed;
};

struct Mismatch {
  int64_t output;
  uint32_t device;
  uint32_t model;
};

struct Tally {
  int64_t outputs = 0;
  int64_t mismatches = 0;
  int64_t nan_bits = 0;  // both are not a number, with different bits
};

template <typename T>
std::string hex_of(const T* values, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += text_of(sizeof(T) == 2 ? "%s%04x" : "%s%08x", i > 0 ? " " : "", static_cast<unsigned>(values[i]));
  }
  return text;
}

void show(const Batch& batch, const Operands& o, const Mismatch& m, Report& report) {
  const cuda::InstructionForm form = cuda::instruction_form(batch.form);
  const int k = 16 * batch.steps;
  const int64_t size = int64_t{form.rows} * form.columns, problem = m.output / size, place = m.output % size;
  const uint16_t* a = o.a.data() + (problem * form.rows + place / form.columns) * k;
  const uint16_t* b = o.b.data() + (problem * form.columns + place % form.columns) * k;
  const auto c = batch.from_zero ? 0u : std::bit_cast<uint32_t>(o.c[static_cast<size_t>(m.output)]);
  const std::string a_text = hex_of(a, k), b_text = hex_of(b, k);
  report.add({{"part", "check"},
              {"mismatch", form.name},
              {"kind", operand_kind(batch.kind)},
              {"from_zero", batch.from_zero},
              {"row", place / form.columns},
              {"column", place % form.columns},
              {"a", a_text},
              {"b", b_text},
              {"c", text_of("%08x", c)},
              {"device", text_of("%08x", m.device)},
              {"model", text_of("%08x", m.model)}},
             text_of("  %s, %s, row %d column %d%s: device %08x, model %08x, c %08x\n    a ", form.name,
                     operand_kind(batch.kind), static_cast<int>(place / form.columns),
                     static_cast<int>(place % form.columns), batch.from_zero ? ", from zero" : "", m.device,
                     m.model, c) +
                 a_text + "\n    b " + b_text);
}

// Runs the batch on the device and compares all of it.
Tally compare(const Batch& batch, bool show_mismatches, Report& report) {
  const cuda::InstructionForm form = cuda::instruction_form(batch.form);
  const int k = 16 * batch.steps;
  const Operands o = make_operands(batch.kind, batch.problems, form.rows, form.columns, k, batch.seed);
  DeviceArray<uint16_t> a(o.a.size()), b(o.b.size());
  DeviceArray<float> c(o.c.size()), d(o.c.size());
  a.put(o.a.data());
  b.put(o.b.data());
  c.put(o.c.data());
  d.poison();
  const Stream stream;
  must(cudaDeviceSynchronize(), "operands");
  must(cuda::run_form(batch.form,
                      {a.data(), b.data(), c.data(), d.data(), batch.problems, batch.steps, batch.from_zero},
                      stream.get()),
       form.name);
  must(cudaStreamSynchronize(stream.get()), form.name);
  const std::vector<float> outputs = d.get();

  Tally tally;
  std::vector<Mismatch> found;
  std::mutex mutex;
  const int64_t size = int64_t{form.rows} * form.columns;
  on_all_cores(batch.problems, [&](int64_t problem) {
    Tally mine;
    std::vector<Mismatch> first;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t output = problem * size + i;
      const uint16_t* row = o.a.data() + (problem * form.rows + i / form.columns) * k;
      const uint16_t* column = o.b.data() + (problem * form.columns + i % form.columns) * k;
      float want = batch.from_zero ? 0.0f : o.c[static_cast<size_t>(output)];
      for (int at = 0; at < k; at += 16) want = ops::fused16(want, row + at, column + at);
      const float got = outputs[static_cast<size_t>(output)];
      const auto want_bits = std::bit_cast<uint32_t>(want), got_bits = std::bit_cast<uint32_t>(got);
      ++mine.outputs;
      if (want_bits == got_bits) continue;
      if (std::isnan(want) && std::isnan(got)) {
        ++mine.nan_bits;
        continue;
      }
      ++mine.mismatches;
      if (first.size() < kShownMismatches) first.push_back({output, got_bits, want_bits});
    }
    const std::lock_guard lock(mutex);
    tally.outputs += mine.outputs;
    tally.mismatches += mine.mismatches;
    tally.nan_bits += mine.nan_bits;
    found.insert(found.end(), first.begin(), first.end());
  });
  std::sort(found.begin(), found.end(),
            [](const Mismatch& x, const Mismatch& y) { return x.output < y.output; });
  for (size_t i = 0; show_mismatches && i < found.size() && i < kShownMismatches; ++i) {
    show(batch, o, found[i], report);
  }
  return tally;
}

// Whether the form agrees with the model, or differs where it should.
bool check_form(int form, const Options& options, Report& report) {
  struct Chain {
    int steps;
    bool from_zero;
  };
  constexpr std::array<Chain, 4> kChains = {{{1, false}, {1, true}, {2, false}, {4, false}}};
  const cuda::InstructionForm shape = cuda::instruction_form(form);
  const int64_t size = int64_t{shape.rows} * shape.columns;
  const auto batches = static_cast<int64_t>(kChains.size()) * kOperandKinds;
  const auto problems = static_cast<int>((options.cases + batches * size - 1) / (batches * size));
  const bool alike = form != cuda::kShortMmaForm;
  Tally all;
  nlohmann::json kinds = nlohmann::json::object();
  for (int kind = 0; kind < kOperandKinds; ++kind) {
    Tally of_kind;
    for (const Chain& chain : kChains) {
      const int number = (form * kOperandKinds + kind) * 8 + chain.steps * 2 + (chain.from_zero ? 1 : 0);
      const uint64_t seed = static_cast<unsigned>(number);
      const Batch batch{form, kind, chain.steps, chain.from_zero, problems, seed};
      const Tally tally = compare(batch, alike && of_kind.mismatches == 0, report);
      of_kind.outputs += tally.outputs;
      of_kind.mismatches += tally.mismatches;
      of_kind.nan_bits += tally.nan_bits;
    }
    kinds[operand_kind(kind)] = {of_kind.outputs, of_kind.mismatches, of_kind.nan_bits};
    all.outputs += of_kind.outputs;
    all.mismatches += of_kind.mismatches;
    all.nan_bits += of_kind.nan_bits;
  }
  const bool good = alike ? all.mismatches == 0 && all.nan_bits == 0 : all.mismatches > 0;
  report.add(
      {{"part", "check"},
       {"form", shape.name},
       {"outputs", all.outputs},
       {"mismatches", all.mismatches},
       {"nan_bits", all.nan_bits},
       {"should_agree", alike},
       {"good", good},
       {"kinds", kinds}},
      text_of("%-30s %10lld outputs, %lld differ, %lld in the bits of not-a-number%s: %s", shape.name,
              static_cast<long long>(all.outputs), static_cast<long long>(all.mismatches),
              static_cast<long long>(all.nan_bits), alike ? "" : " (should differ)", good ? "ok" : "NOT OK"));
  return good;
}

void must_be_good(int bad, int all) {
  if (bad > 0) throw std::runtime_error(text_of("%d of %d are not as they should be", bad, all));
}

void check_forms(const std::vector<int>& forms, const Options& options, Report& report) {
  int bad = 0;
  for (const int form : forms) bad += check_form(form, options, report) ? 0 : 1;
  must_be_good(bad, static_cast<int>(forms.size()));
}

uint32_t bf16_nearest(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7FFF;
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

uint32_t scalar_on_host(cuda::ScalarOperation operation, float x, float y, float z) {
  using enum cuda::ScalarOperation;
  switch (operation) {
    case kFma:
      return std::bit_cast<uint32_t>(std::fma(x, y, z));
    case kDivide:
      return std::bit_cast<uint32_t>(x / y);
    case kSquareRoot:
      return std::bit_cast<uint32_t>(std::sqrt(x));
    case kAdd:
      return std::bit_cast<uint32_t>(x + y);
    case kMultiply:
      return std::bit_cast<uint32_t>(x * y);
    case kToBf16:
      return bf16_nearest(x) | bf16_nearest(y) << 16;
    case kRint:
      return std::bit_cast<uint32_t>(std::nearbyint(x));
    case kToInt:
      return static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(x)));
  }
  return 0;
}

// What the i-th case is: any bits, or values near each other, so that sums cancel; for kToInt what an int
// holds.
float scalar_operand(cuda::ScalarOperation operation, uint64_t which, uint64_t i) {
  const auto bits = static_cast<uint32_t>(cuda::mixed_bits(77 + which, i) >> 16);
  const bool near = i % 2 == 1;
  if (operation == cuda::ScalarOperation::kToInt) {
    return std::bit_cast<float>((bits & 0x807FFFFF) | (bits % 7919 % (near ? 26 : 157)) << 23) *
           (near ? 0x1p126f : 1.0f);
  }
  return std::bit_cast<float>(near ? (bits & 0x807FFFFF) | (120 + bits % 7919 % 15) << 23 : bits);
}

bool is_float(cuda::ScalarOperation operation) {
  return operation != cuda::ScalarOperation::kToBf16 && operation != cuda::ScalarOperation::kToInt;
}

}  // namespace

void check_mma(const Options& options, Report& report) {
  check_forms({cuda::kMmaForm, cuda::kShortMmaForm}, options, report);
}
void check_wgmma_shared(const Options& options, Report& report) {
  check_forms({1, 2, 3, 4, 5, 6}, options, report);
}
void check_wgmma_registers(const Options& options, Report& report) {
  check_forms({7, 8, 9, 10, 11, 12}, options, report);
}

void check_scalar(const Options& options, Report& report) {
  using enum cuda::ScalarOperation;
  struct Named {
    cuda::ScalarOperation operation;
    const char* name;
  };
  constexpr std::array<Named, 8> kOperations = {{{kFma, "fmaf"},
                                                 {kDivide, "division"},
                                                 {kSquareRoot, "square root"},
                                                 {kAdd, "addition"},
                                                 {kMultiply, "multiplication"},
                                                 {kToBf16, "f32 to bf16"},
                                                 {kRint, "rint"},
                                                 {kToInt, "f32 to int"}}};
  const auto count = static_cast<size_t>(options.cases);
  DeviceArray<float> operands[3] = {DeviceArray<float>(count), DeviceArray<float>(count),
                                    DeviceArray<float>(count)};
  DeviceArray<uint32_t> results(count);
  std::vector<float> host[3];
  const Stream stream;
  int bad = 0;
  for (const Named& each : kOperations) {
    for (uint64_t which = 0; which < 3; ++which) {
      host[which].resize(count);
      on_all_cores(64, [&](int64_t part) {
        for (size_t i = count * part / 64; i < count * (part + 1) / 64; ++i) {
          host[which][i] = scalar_operand(each.operation, which, i);
        }
      });
      operands[which].put(host[which].data());
    }
    results.poison();
    must(cudaDeviceSynchronize(), "operands");
    must(cuda::run_scalar(each.operation, operands[0].data(), operands[1].data(), operands[2].data(),
                          results.data(), options.cases, stream.get()),
         each.name);
    must(cudaStreamSynchronize(stream.get()), each.name);
    const std::vector<uint32_t> got = results.get();
    std::atomic<int64_t> mismatches{0};
    std::atomic<size_t> first{count};
    on_all_cores(64, [&](int64_t part) {
      for (size_t i = count * part / 64; i < count * (part + 1) / 64; ++i) {
        const uint32_t want = scalar_on_host(each.operation, host[0][i], host[1][i], host[2][i]);
        if (want == got[i]) continue;
        if (is_float(each.operation) && std::isnan(std::bit_cast<float>(want)) &&
            std::isnan(std::bit_cast<float>(got[i]))) {
          continue;
        }
        ++mismatches;
        first = i;
      }
    });
    std::string example;
    if (const size_t i = first; i < count) {
      example =
          text_of("; for one, %08x %08x %08x: device %08x, host %08x", std::bit_cast<uint32_t>(host[0][i]),
                  std::bit_cast<uint32_t>(host[1][i]), std::bit_cast<uint32_t>(host[2][i]), got[i],
                  scalar_on_host(each.operation, host[0][i], host[1][i], host[2][i]));
    }
    report.add(
        {{"part", "check"},
         {"form", each.name},
         {"outputs", options.cases},
         {"mismatches", mismatches.load()},
         {"good", mismatches == 0},
         {"example", example}},
        text_of("%-30s %10lld outputs, %lld differ%s: %s", each.name, static_cast<long long>(options.cases),
                static_cast<long long>(mismatches), example.c_str(), mismatches == 0 ? "ok" : "NOT OK"));
    bad += mismatches == 0 ? 0 : 1;
  }
  must_be_good(bad, static_cast<int>(kOperations.size()));
}

}  // namespace kvasir::gpu_program
