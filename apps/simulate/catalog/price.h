// Prices steps that a table describes.
#pragma once

#include <string>

#include "base/status.h"
#include "exec/sim/device_times.h"

namespace kvasir {

// Reads a CSV file whose header names any of these columns, in any order; each line is a step:
//
//   prefill_rows, history          a chunk of that many rows behind that many tokens
//   chunks                         as many of those chunks; 1 if not given
//   decode_rows, decode_context    decoding rows, and the tokens that they attend to together
//   sampled                        rows that pass the output layer; else each chunk's last and all decodes
//   projected                      tokens times layers of which K and V are made from X
//   remote_queries, remote_tokens  partial attention at a peer, in every layer
//
// Gives the table back as CSV, with the milliseconds of each part and of all together behind.
// kNotFound, kIo; kInvalidArgument: a column or a number that is none, with the line.
Result<std::string> price_steps(const std::string& csv_path, const DeviceTimes& times);

// The same of text; `origin` stands for the path in messages.
Result<std::string> price_text(const std::string& text, const std::string& origin, const DeviceTimes& times);

}  // namespace kvasir
