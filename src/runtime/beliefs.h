// What a server believes of lengths and costs when it starts, and what of it is kept for the next start.
#pragma once

#include <memory>
#include <string>

#include "contract/length_predictor.h"
#include "model/tokenizers/tokenizer.h"
#include "runtime/cost_profile.h"
#include "runtime/runtime.h"

namespace kvasir {

// A digest of the texts of all tokens: equal vocabularies have equal ids.
std::string vocabulary_id(const Tokenizer& tokenizer);

// Names what the predictor's knowledge is of: the vocabulary, and also the model if it reads hidden rows.
std::string learnt_of(const LengthPredictor& predictor, const Tokenizer& tokenizer,
                      const std::string& model_id);

// Makes the predictor that the options name and loads its file, if there is one. kUnsupported: the file is of
// another vocabulary or model. kCorrupt: it is damaged.
Result<std::unique_ptr<LengthPredictor>> load_predictor(const BeliefOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const std::string& model_id);
Status write_predictor(const LengthPredictor& predictor, const std::string& learnt_of,
                       const std::string& path);
// As write_predictor(), but a failure only gets a line in the log.
void save_predictor(const LengthPredictor& predictor, const std::string& learnt_of, const std::string& path);

// Loads the profile that the options name, else that of the fingerprint. If there is none, the result knows
// no costs. One line of the log says what was found.
Result<CostModel> costs_to_begin_with(const BeliefOptions& options, const CostFingerprint& here);

}  // namespace kvasir
