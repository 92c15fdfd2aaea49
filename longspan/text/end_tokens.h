// The tokens by which generation stops, as the files of a model name them. No torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace longspan {

/// eos_token_id of generation_config.json and config.json (in text_config, too) of a model's
/// folder: a number or a list. Files that are not there name none. Throws UserError.
std::set<int32_t> end_tokens_in(const std::string& folder);

}  // namespace longspan
