// Tokens that a run adds to the tokenizer of its model. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// As in transformers' add_tokens(): tokens of the vocabulary keep their ids, and become single
/// tokens of any text.
struct AddedTokens {
  std::vector<std::string> plain, special;

  bool empty() const { return plain.empty() && special.empty(); }
};

}  // namespace longspan
