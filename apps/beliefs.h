// What a server begins to believe with, and keeps for the next one.
#pragma once

#include <memory>
#include <string>

#include "apps/cost_profile.h"
#include "apps/runtime.h"
#include "contract/length_predictor.h"
#include "model/tokenizer.h"

namespace kvasir {

// Of the texts of all tokens: the same for the same vocabulary.
std::string vocabulary_id(const Tokenizer& tokenizer);

// Of what the predictor learns: the vocabulary, and the model too where it reads hidden rows.
std::string learnt_of(const LengthPredictor& predictor, const Tokenizer& tokenizer,
                      const std::string& model_id);

// The predictor that is asked for, with what its file holds, if there is one. kUnsupported, kCorrupt: the
// file is of something else, or damaged.
Result<std::unique_ptr<LengthPredictor>> load_predictor(const BeliefOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const std::string& model_id);
Status write_predictor(const LengthPredictor& predictor, const std::string& learnt_of,
                       const std::string& path);
// Likewise; a line in the log says what went wrong, if something did.
void save_predictor(const LengthPredictor& predictor, const std::string& learnt_of, const std::string& path);

// The profile that is named, or that of the fingerprint; a model that knows nothing where there is none. Says
// in one line of the log what was found.
Result<CostModel> costs_to_begin_with(const BeliefOptions& options, const CostFingerprint& here);

}  // namespace kvasir
