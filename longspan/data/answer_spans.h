// Finds the tokens of answers in a rendered chat. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "longspan/data/located_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Tokens [begin, end) of an answer in a chat.
struct AnswerTokens {
  size_t begin, end;
};

/// Returns the tokens that contain text of the bytes [begin, end) and follow the answers `before`.
AnswerTokens answer_tokens(const EncodedText& tokens, const std::vector<AnswerTokens>& before,
                           size_t begin, size_t end);

/// Returns the answers of a chat; `answers` are the indices of their messages. An answer begins at
/// the end of its generation prompt. An answer ends with the token that stops generation (one of
/// `ends`). White space after this token belongs to the answer if the same white space follows the
/// stop token of the chat's last answer. An answer without a stop token includes the template's
/// ending. The ending is the text after the answer in the rendering of a chat that ends with this
/// answer, up to the first difference from the whole chat. Throws RowError (see LocatedChat).
std::vector<AnswerTokens> answer_spans(const LocatedChat& chat, const EncodedText& tokens,
                                       const std::vector<size_t>& answers,
                                       const std::set<int32_t>& ends);

/// Returns the message among `answers` that contains the tokens of `span`. `answers` must not be
/// empty.
size_t answer_at(const LocatedChat& chat, const std::vector<size_t>& answers,
                 const EncodedText& tokens, const AnswerTokens& span);

}  // namespace longspan
