// The content of etcd's answers, for EtcdClient and its users.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

struct EtcdLease {
  int64_t id = 0;
  int64_t ttl_s = 0;  // remaining; of grant(): the whole. 0 or less: it has ended
};

struct EtcdKeyValue {
  std::string key;
  std::string value;
  int64_t lease = 0;            // 0: none
  int64_t create_revision = 0;  // of the put that made the key, since it was last absent
  int64_t mod_revision = 0;
};

// The keys from `begin` up to but not including `end`.
struct EtcdKeyRange {
  std::string begin;
  std::string end;
};

// All keys of a range at one revision.
struct EtcdSnapshot {
  int64_t revision = 0;
  std::vector<EtcdKeyValue> entries;
};

// Whether the put or delete took effect; if not, what was found instead (a key of revision 0: nothing).
struct EtcdTxn {
  bool done = false;
  int64_t revision = 0;  // of the directory after it
  EtcdKeyValue found;
};

struct EtcdEvent {
  bool deleted = false;
  EtcdKeyValue entry;  // of a deleted key: the key and the mod_revision of the deletion only
};

}  // namespace kvasir
