// ShareGPT's own file: conversations between people and a model.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "apps/bench/prompts.h"
#include "base/status.h"

namespace kvasir {

// The first turns of [{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}]:
// the prompt as it stands, and as many output tokens as the answer has words, which is approximate (a usual
// tokenizer makes about 1.3 tokens of an English word). Skipped: conversations that do not begin with a human
// and then the model, and those with an empty turn or more than 2,048 words in the two turns. `name` is what
// the errors call the input: kInvalidArgument names the entry at fault, counted from 1.
Result<std::vector<Prompt>> parse_sharegpt(std::istream& in, const std::string& name);

// As parse_sharegpt, of the file at `path`; kNotFound when it cannot be opened.
Result<std::vector<Prompt>> load_sharegpt(const std::string& path);

}  // namespace kvasir
