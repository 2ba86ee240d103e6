// A model as a GGUF file of other types: `kvasir convert`.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "model/files/model_file.h"
#include "model/quantize/recipe.h"

namespace kvasir {

// Writes the model to `path`, with the types of the recipe and the same metadata, except general.file_type
// and general.quantization_version. Of a folder, the result is what GGUF files of its architecture are: with
// the tokenizer (write_tokenizer_data), without keys of this program, and with Q's and K's rows in the order
// that files of the architecture have. The file's bytes depend on the model and the recipe alone. Memory: a
// part of one tensor. `threads` > 0. `stopped` is asked again and again; true ends the conversion.
// kUnsupported: what a GGUF file cannot say, or a tensor that is quantised already, other than as Q8_0, and
// would get another type. kInvalidArgument: a value that is NaN, infinite or too large (the message names the
// tensor), or `path` is one of the model's own files. kIo: the file cannot be written. kUnavailable: stopped.
// After an error there is no file at `path`, or the one that was there.
Status convert_model(const ModelFile& model, const QuantizationRecipe& recipe, const std::string& path,
                     int threads, const std::function<bool()>& stopped = {});

}  // namespace kvasir
