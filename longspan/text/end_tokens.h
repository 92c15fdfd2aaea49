// The end tokens of generation, from the files of a model. No torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace longspan {

struct EndTokens {
  /// eos_token_id of generation_config.json and of config.json (also in text_config): a number or a
  /// list.
  std::set<int32_t> all;
  /// The tokens at which transformers' generate() stops: eos_token_id of generation_config.json if
  /// this file exists, otherwise eos_token_id of config.json.
  std::set<int32_t> of_generate;
};

/// Reads both files of a model's folder; a missing file adds no token. Throws UserError.
EndTokens end_tokens_in(const std::string& folder);

}  // namespace longspan
