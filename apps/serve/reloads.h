// What SIGHUP reads again.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

// Thread-safe.
class Reloads {
 public:
  // `read_again` reads a file anew and, where it is right, puts what it says in place of the old. `what` is
  // for the log. It is called on a thread of Signals, until this object ends.
  void add(std::string what, std::function<Status()> read_again, std::string done = "were read again");
  // Calls all of them, in the order in which they were added. Each writes one line to the log; after an error
  // that line says that the old one stays in use.
  void run();

 private:
  std::mutex mutex_;
  struct Reload {
    std::string what;
    std::function<Status()> read_again;
    std::string done;
  };
  std::vector<Reload> all_;  // guarded by mutex_
};

}  // namespace kvasir
