#include "apps/flags/cluster_flags.h"

#include <CLI/CLI.hpp>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"

namespace kvasir {

void add_cluster_tls_flags(CLI::App& app, ClusterTlsFiles& files) {
  app.add_option(
         "--cluster-ssl-certfile", files.certfile,
         "PEM file with the certificate that peers and etcd see, and those between it and the root; it "
         "names this instance. SIGHUP reads the files again (default: no TLS, on this machine alone)")
      ->type_name(kFileType);
  app.add_option("--cluster-ssl-keyfile", files.keyfile,
                 "PEM file with its private key, without a passphrase (default: none)")
      ->type_name(kFileType);
  app.add_option("--cluster-ssl-ca-certs", files.ca_certs,
                 "PEM file: peers and etcd need a certificate that one of these has signed (default: none)")
      ->type_name(kFileType);
}

void add_member_flags(CLI::App& app, ClusterOptions& flags, bool required) {
  CLI::Option* directory =
      app.add_option("--cluster", flags.directory,
                     "Directory of the cluster, etcd://HOST:2379[,HOST:2379][/NAME]: instances that share it "
                     "lend each other memory (default: none, no cluster)");
  if (required) directory->required();
  app.add_option("--cluster-name", flags.name,
                 "Name of this instance in the cluster (default: that in its certificate, or host name and "
                 "process id)");
  add_cluster_tls_flags(app, flags.tls_files);
  app.add_option("--cluster-listen", flags.listen, "HOST:PORT for peers; port 0: any free one")
      ->capture_default_str();
  app.add_option("--cluster-advertise-host", flags.advertise_host,
                 "Address or name by which peers reach this host; a name is looked up here (default: that of "
                 "--cluster-listen)");
  app.add_option("--cluster-location", flags.location,
                 "Where this instance is, from the outside in, as ZONE/RACK/HOST: the nearest peers lend "
                 "first (default: the host's name)");
  app.add_option("--cluster-ttl", flags.ttl_s,
                 "Seconds after which a silent instance counts as dead; the same for all of them")
      ->check(between(2, 600))
      ->capture_default_str();
}

void add_cluster_flags(CLI::App& app, ClusterOptions& flags) {
  add_member_flags(app, flags, /*required=*/false);
  add_gib(app, "--cluster-lend-size", flags.lend_bytes,
          "Most of its KV cache that this instance lends at once, in GiB or with a suffix, as 512MiB "
          "(default: half)");
  add_gib(
      app, "--cluster-borrow-size", flags.borrow_bytes,
      "Most memory that it borrows at once, with a policy that borrows, and most of prefixes that it attends "
      "at peers at once, with any (default: four times its KV cache)");
  app.add_option("--cluster-lend-compute", flags.lend_compute,
                 "Share of one core's time for attention over what peers keep here; 0: they fetch it instead")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--cluster-fetch", flags.fetch,
                 "When to fetch keys and values from a peer instead of sending it the query: never (unless "
                 "there is no other way), cost (if that was measured to be cheaper), always")
      ->check(CLI::IsMember({"never", "cost", "always"}))
      ->capture_default_str();
  app.add_option(
         "--cluster-prefixes", flags.prefixes,
         "What to do with the keys and values of a prompt's beginning that a peer has: never (they are "
         "computed here, and no peer gets any from here), fetch (copy them), attend (leave them there, "
         "and send the queries), cost (what is believed to be fastest, computing them included)")
      ->check(CLI::IsMember({"never", "fetch", "attend", "cost"}))
      ->capture_default_str();
  app.add_option(
         "--cluster-prompts", flags.prompts,
         "When a peer computes the first rows of a prompt, whose keys and values go to peers in any "
         "case: never (nor are those of peers computed here), cost (if copying these to peers, at the "
         "measured rate, takes longer than the rows), always")
      ->check(CLI::IsMember({"never", "cost", "always"}))
      ->capture_default_str();
}

}  // namespace kvasir
