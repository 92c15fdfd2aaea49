// The tokens of a rendered chat that are answers. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "longspan/data/located_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Tokens of an answer in its chat: [begin, end).
struct AnswerTokens {
  size_t begin, end;
};

/// The tokens that hold text of the bytes [begin, end), behind the answers `before`.
AnswerTokens answer_tokens(const EncodedText& tokens, const std::vector<AnswerTokens>& before,
                           size_t begin, size_t end);

/// The answers of a chat, which are the messages `answers`: each from where its generation prompt
/// ends to the token by which generation stops (one of `ends`), with the white space behind it that
/// the last answer has there, too. Without such a token: to the end of what the template writes
/// behind the answer where the chat ends with it, as far as the chat has the same text there.
/// Throws RowError (see LocatedChat).
std::vector<AnswerTokens> answer_spans(const LocatedChat& chat, const EncodedText& tokens,
                                       const std::vector<size_t>& answers,
                                       const std::set<int32_t>& ends);

/// The message among `answers` in which the tokens lie. `answers` is not empty.
size_t answer_at(const LocatedChat& chat, const std::vector<size_t>& answers,
                 const EncodedText& tokens, const AnswerTokens& span);

}  // namespace longspan
