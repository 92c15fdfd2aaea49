// The tokens of a sample as pieces of text, for people who look at trained tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/rows/batch.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Tokens that are shown together.
struct TokenPiece {
  enum class Kind {
    kText,     ///< one token, or the tokens of one character
    kSpecial,  ///< a special token
    kPicture,  ///< the tokens of a picture, or of some frames of a video: "<image: 576 tokens>"
    kGap,      ///< tokens that are left out: "[... 1,200 tokens, none trained ...]"
  };
  Kind kind = Kind::kText;
  std::string text = {};          // may hold any text of a data set
  std::vector<int32_t> ids = {};  // kText, kSpecial
  bool is_trained = false;        // false for a gap
};

struct PieceLimits {
  int64_t run = 0;     // tokens of consecutive trained (or untrained) tokens; more leave a gap
  int64_t sample = 0;  // tokens of a sample
};

/// Returns the sample's tokens. A token is trained if it has a label and a token before it. Long
/// runs and long samples are shown with gaps.
std::vector<TokenPiece> pieces_of(const Sample& sample, const Tokenizer& tokenizer,
                                  const PieceLimits& most);

}  // namespace longspan
