#include "contract/ids.h"

namespace kvasir {

const char* name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
  }
  return "?";
}

const char* name(Form form) {
  switch (form) {
    case Form::kKv:
      return "kv";
    case Form::kX:
      return "x";
  }
  return "?";
}

}  // namespace kvasir
