// A model file, described.
#include "apps/inspect.h"

#include <fmt/format.h>

#include "apps/flags/runtime_flags.h"
#include "model/files/inspect.h"
#include "model/files/model_file.h"

namespace kvasir {

int run_inspect(const std::string& model_path) {
  const auto model = ModelFile::open(model_path);
  if (!model.ok()) return report_failure("inspect", model.status().message());
  fmt::print("{}", describe_model(**model));
  return 0;
}

}  // namespace kvasir
