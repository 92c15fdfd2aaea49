// Finds the tokens of answers in a rendered chat. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "longspan/data/located_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Tokens [begin, end) of an answer in its chat.
struct AnswerTokens {
  size_t begin, end;
};

/// Returns the tokens with text of the bytes [begin, end), after the answers `before`.
AnswerTokens answer_tokens(const EncodedText& tokens, const std::vector<AnswerTokens>& before,
                           size_t begin, size_t end);

/// Returns the answers of a chat; `answers` are the indices of their messages. An answer begins
/// where its generation prompt ends. It ends with the token that stops generation (one of `ends`),
/// plus white space that also follows the last answer's. Without such a token it ends with the text
/// that the template prints after the answer as a chat's last message, as far as the chat has the
/// same text there. Throws RowError (see LocatedChat).
std::vector<AnswerTokens> answer_spans(const LocatedChat& chat, const EncodedText& tokens,
                                       const std::vector<size_t>& answers,
                                       const std::set<int32_t>& ends);

/// Returns the message among `answers` in which the tokens lie. `answers` is not empty.
size_t answer_at(const LocatedChat& chat, const std::vector<size_t>& answers,
                 const EncodedText& tokens, const AnswerTokens& span);

}  // namespace longspan
