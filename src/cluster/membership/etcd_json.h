// The bodies of etcd's HTTP/JSON gateway (etcd 3.4 and later), written and parsed. The parsers trust no byte
// of their input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cluster/membership/etcd_types.h"

namespace kvasir::etcd {

// The keys that begin with the prefix. REQUIRES: it is not empty, and its last byte is not 255
EtcdKeyRange keys_under(std::string_view prefix);

std::string grant_body(int64_t ttl_s);
std::string lease_body(int64_t lease);  // keepalive, revoke, timetolive
std::string put_body(std::string_view key, std::string_view value, int64_t lease);
std::string range_body(const EtcdKeyRange& keys);
// Puts the key if it is absent, else reads it.
std::string create_body(std::string_view key, std::string_view value, int64_t lease);
// Deletes the key if it was created by that revision, else reads it.
std::string remove_body(std::string_view key, int64_t create_revision);
std::string watch_body(const EtcdKeyRange& keys, int64_t from_revision);

// The readers return kCorrupt if the text is no valid answer to that request.
Result<EtcdLease> read_lease(std::string_view text);       // grant, timetolive
Result<EtcdLease> read_keep_alive(std::string_view text);  // the first message of the stream
Result<int64_t> read_revision(std::string_view text);      // put, revoke: of the directory after it
Result<EtcdSnapshot> read_range(std::string_view text);
Result<EtcdTxn> read_txn(std::string_view text);
Result<EtcdWatchMessage> read_watch(std::string_view text);

// The meaning of an answer with another HTTP status than 200. `address`: the endpoint, for the message.
// kUnavailable: the call may succeed at another endpoint, or later. kNotFound: there is no such lease or
// key. kUnsupported: etcd requires a password, or does not know the request. kInvalidArgument: it refuses
// the request for another reason.
Status read_refusal(std::string_view address, int http_status, std::string_view text);

}  // namespace kvasir::etcd
