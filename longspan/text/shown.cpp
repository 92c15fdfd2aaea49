#include "longspan/text/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace longspan {
namespace {

struct Character {
  uint32_t code = 0;
  size_t size = 0;  // bytes; 0: the first byte begins no character
};

/// Returns the first UTF-8 character of a nonempty text.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t size = first >= 0xf0 && first < 0xf8   ? 4
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first >= 0xc0 && first < 0xe0 ? 2
                                                      : 0;
  if (size == 0 || text.size() < size) return {};
  uint32_t code = first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[size] || surrogate || code > 0x10ffff) return {};
  return {code, size};
}

/// True for a command to the terminal or to the layout of the line.
bool is_hidden(uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string shown(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const auto [code, size] = first_character(text);
    const size_t taken = std::max<size_t>(size, 1);
    if (size == 0) {
      clean += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (!is_hidden(code)) {
      clean += text.substr(0, size);
    } else if (code == '\r') {
      clean += "\\r";
    } else if (code < 0x80) {
      clean += fmt::format("\\x{:02x}", code);
    } else {
      clean += fmt::format("\\u{:04x}", code);
    }
    text.remove_prefix(taken);
  }
  return clean;
}

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace longspan
