#include "longspan/text/decode_stream.h"

#include <utility>

namespace longspan {
namespace {

constexpr std::string_view kBroken = "\xef\xbf\xbd";  // U+FFFD
/// After this many tokens without the end of a character, they are treated as broken bytes.
/// Decoding all held tokens for each new one would take quadratic time.
constexpr size_t kMostHeld = 16;
/// In tokens, at one byte per token.
constexpr size_t kLongestCharacter = 4;

}  // namespace

DecodeStream::DecodeStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string DecodeStream::step(int32_t id) {
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  if (text.size() <= out_.size()) return "";
  if (!text.ends_with(kBroken)) return put_out(text, 0);
  if (window_.size() - num_out_ < kMostHeld) return "";
  const std::vector<int32_t> whole(window_.begin(), window_.end() - kLongestCharacter);
  const std::string broken = tokenizer_.decode(whole, skip_special_tokens_);
  if (broken.size() <= out_.size() || !text.starts_with(broken)) return "";
  return put_out(broken, kLongestCharacter);
}

std::string DecodeStream::put_out(const std::string& text, size_t num_held) {
  std::string added = text.substr(out_.size());
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_out_));
  num_out_ = window_.size() - num_held;
  out_ = tokenizer_.decode({window_.begin(), window_.end() - static_cast<std::ptrdiff_t>(num_held)},
                           skip_special_tokens_);
  return added;
}

std::string DecodeStream::finish() {
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  std::string added = text.size() > out_.size() ? text.substr(out_.size()) : "";
  window_.clear();
  num_out_ = 0;
  out_.clear();
  return added;
}

}  // namespace longspan
