#include "apps/convert.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/serve/signals.h"
#include "base/clock.h"
#include "base/units.h"
#include "model/files/convert.h"
#include "runtime/runtime.h"

namespace kvasir {
namespace {

Status convert(const ConvertOptions& options) {
  Signals signals;  // before any thread
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> model, ModelFile::open(options.model_path));
  for (const std::string& warning : model->warnings()) fmt::print(stderr, "{}\n", warning);
  const QuantizationRecipe* recipe = find_recipe(options.type);
  KV_CHECK(recipe != nullptr, "type={}", options.type);
  RuntimeOptions runtime;
  runtime.threads = options.threads;
  const MonotonicClock clock;
  const Nanos begin = clock.now();
  signals.ready();
  KV_RETURN_IF_ERROR(convert_model(*model, *recipe, options.output, compute_threads(runtime),
                                   [&signals] { return signals.count() > 0; }));
  std::error_code ignored;
  fmt::print("{}: {}, from {}, in {:.1f} s\n", options.output,
             format_bytes(std::filesystem::file_size(options.output, ignored)),
             format_bytes(model->file_bytes()), to_seconds(clock.now() - begin));
  return {};
}

}  // namespace

void add_convert_flags(CLI::App& app, ConvertOptions& o) {
  add_model_flag(app, o.model_path);
  app.add_option("output,-o,--output", o.output, "The GGUF file to write; it is replaced if it exists")
      ->type_name(kFileType)
      ->required();
  app.add_option("--type", o.type,
                 "Types of the weights, by the name of llama.cpp's mixture. The model's weights must be F32, "
                 "F16, BF16 or Q8_0, or keep their type")
      ->required()
      ->check(CLI::IsMember(recipe_names()));
  app.add_option("-t,--threads", o.threads, "Threads (default, as 0: as serve)")->check(between(0, 4096));
}

int run_convert(const ConvertOptions& options) {
  const Status status = convert(options);
  return status.ok() ? 0 : report_failure("convert", status.message());
}

}  // namespace kvasir
