// Text of tokens that come one by one. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/text/tokenizer.h"

namespace longspan {

/// Whole characters only, and all of it together is what Tokenizer::decode() says of all tokens.
/// Bytes that are no character come out as U+FFFD, some tokens late.
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = false);
  /// The text that the token completes; empty in the middle of a character.
  std::string step(int32_t id);
  /// What is left: bytes of a character that never became whole, as U+FFFD. Then it begins anew.
  std::string finish();

 private:
  /// The window's text but for its last `num_held` tokens is `text`: what is new of it.
  std::string put_out(const std::string& text, size_t num_held);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  // A window of tokens: how a token is written may depend on the one before it (a space between
  // words), so some whose text is out stay.
  std::vector<int32_t> window_;
  size_t num_out_ = 0;  // tokens of the window whose text is out
  std::string out_;     // their text
};

}  // namespace longspan
