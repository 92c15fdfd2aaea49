// The tokenizer of a run: that of the model's folder, with the tokens that keys add.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;

/// Returns the tokens of add_tokens and add_special_tokens.
AddedTokens added_tokens(const DataSettings& config);

/// Throws UserError as Tokenizer::load does.
Tokenizer run_tokenizer(const std::string& folder, const DataSettings& config);

/// Throws UserError where an added token of the run's tokenizer has no row in an embedding.
/// `model`: its name. `remedy`: ends the message.
void require_rows(const Tokenizer& tokenizer, const AddedTokens& added, int64_t num_rows,
                  const std::string& model, const std::string& remedy);

}  // namespace longspan
