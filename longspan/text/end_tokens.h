// The tokens by which generation stops, as the files of a model name them. No torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace longspan {

struct EndTokens {
  /// eos_token_id of generation_config.json and config.json (in text_config, too): a number or a
  /// list.
  std::set<int32_t> all;
  /// Those by which transformers' generate() stops: of generation_config.json where it is there,
  /// else of config.json.
  std::set<int32_t> of_generate;
};

/// Reads both files of a model's folder. Files that are not there name none. Throws UserError.
EndTokens end_tokens_in(const std::string& folder);

}  // namespace longspan
