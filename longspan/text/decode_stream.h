// Decodes tokens that arrive one by one. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/text/tokenizer.h"

namespace longspan {

/// Returns whole characters only; all outputs together equal Tokenizer::decode() of all tokens.
/// Invalid bytes become U+FFFD, a few tokens later than other text.
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = false);
  /// Returns the text that the token completes; empty in the middle of a character.
  std::string step(int32_t id);
  /// Returns the rest, with bytes of an incomplete character as U+FFFD, and resets the stream.
  std::string finish();

 private:
  /// Sets the output to `text`, the text of the window without its last `num_held` tokens. Returns
  /// the new part.
  std::string put_out(const std::string& text, size_t num_held);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  // A window of tokens. The text of a token may depend on the previous one (a space between words),
  // so some tokens stay in the window after their output.
  std::vector<int32_t> window_;
  size_t num_out_ = 0;  // tokens of the window that have been output
  std::string out_;     // the text of these tokens
};

}  // namespace longspan
