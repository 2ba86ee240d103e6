// GET /server_info, which routers ask for a server's model and block size.
#include <nlohmann/json.hpp>
#include <string>

#include "server/json_fields.h"
#include "server/server_context.h"

namespace kvasir {

// There is no model_path: a router that finds one may look for a tokenizer there.
void handle_server_info(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  const std::string& name = server.options.model_names.front();
  nlohmann::json info = {
      {"model_id", name}, {"served_model_name", name}, {"version", server.options.version}, {"dp_size", 1}};
  if (server.service) {
    info["max_model_len"] = server.service->backend->max_model_len();
    for (const auto& [key, value] : server.service->backend->cache_config()) {
      if (key == "block_size") info["kv_block_size"] = std::stoul(value);
    }
  }
  exchange.respond(json_response(dump_json(info)));
}

}  // namespace kvasir
