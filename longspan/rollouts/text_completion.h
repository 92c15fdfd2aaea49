// Prompts and answers as texts, for servers that neither accept nor return token ids. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/rollouts/completion.h"

namespace longspan {

/// Returns the text that the server's tokenizer, which adds its special tokens, encodes to the
/// prompt. Throws UserError, whose message is a clause, if there is no such text.
std::string text_of_prompt(const CompletionRules& rules, const std::vector<int32_t>& prompt);

/// Returns the tokens of an answer, which may differ from the sampled ones. `has_ended`: the model
/// ended the answer, and rules.end_of_text follows the text. A text that spells out an end token
/// ends there. A text of more than rules.max_length tokens is cut, and counts as truncated. An
/// incomplete character (U+FFFD) at the end of a truncated text is left out. The result has no
/// tokens if the text is empty and the model did not end it.
Completion completion_of_text(const CompletionRules& rules, std::string_view text, bool has_ended);

}  // namespace longspan
