// The tokens of a message that continues a conversation after an answer. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/turns.h"

namespace longspan {

/// Returns the tokens between the end of an answer and the beginning of the next answer: the
/// template's text around a message of `role` with this content, and the generation prompt.
/// `end_token`: the sampled token that ended the answer. Earlier tokens are not encoded again, so
/// the sampled tokens stay unchanged. `source`: for errors. Throws UserError if the template takes
/// no such message after an answer, or after this end token.
std::vector<int32_t> observation_tokens(const TurnEncoder& encoder, Role role,
                                        const std::string& content, int32_t end_token,
                                        const std::string& source);

}  // namespace longspan
