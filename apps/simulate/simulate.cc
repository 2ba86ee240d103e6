#include "apps/simulate/simulate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "apps/simulate/answer.h"
#include "apps/simulate/catalog/price.h"
#include "apps/simulate/experiment.h"
#include "apps/simulate/system.h"

namespace kvasir {
namespace {

Status price(const SimulateOptions& options, std::ostream& out) {
  if (names_host_device(options.device)) {
    return error(ErrorCode::kInvalidArgument,
                 "--price: {} is measured as a whole; take a device of the catalogue", options.device);
  }
  KV_ASSIGN_OR_RETURN(const DeviceTimes times, device_times(options));
  KV_ASSIGN_OR_RETURN(const std::string priced, price_steps(options.price, times));
  out << priced;
  return {};
}

}  // namespace

int run_simulate(const SimulateOptions& options) {
  return run_simulate(options, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1);
}

int run_simulate(const SimulateOptions& options, std::ostream& out, std::ostream& err, bool terminal) {
  const Console console{out, err, terminal};
  Status status;
  if (!options.experiment.empty()) {
    status = run_experiment(options, console);
  } else if (!options.price.empty()) {
    status = price(options, out);
  } else {
    status = answer(options, console).status();
  }
  if (status.ok()) return 0;
  err << fmt::format("kvasir simulate: {}\n", status.message());
  return 1;
}

}  // namespace kvasir
