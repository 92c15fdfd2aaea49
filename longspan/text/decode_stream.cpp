#include "longspan/text/decode_stream.h"

#include <utility>

namespace longspan {
namespace {

constexpr std::string_view kBroken = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

DecodeStream::DecodeStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string DecodeStream::step(int32_t id) {
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  if (text.size() <= out_.size() || text.ends_with(kBroken)) return "";
  std::string added = text.substr(out_.size());
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_out_));
  num_out_ = window_.size();
  out_ = tokenizer_.decode(window_, skip_special_tokens_);
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
