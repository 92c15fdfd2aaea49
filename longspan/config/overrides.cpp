#include "longspan/config/overrides.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"

namespace longspan {

namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_';
  });
}

/// Returns the right form of `learning_rate = 1e-4`, as three words or as one in quotes, and of
/// `learning_rate: 1e-4`; "" for other words.
std::string without_blanks(const std::vector<std::string>& words, size_t first) {
  std::string text;
  for (size_t i = first; i < std::min(words.size(), first + 3); ++i) {
    text += (text.empty() ? "" : " ") + words[i];
  }
  const size_t end_of_name = text.find_first_of(" =:");
  if (end_of_name == std::string::npos || !is_name(text.substr(0, end_of_name))) return {};
  const size_t sign = text.find_first_not_of(' ', end_of_name);
  if (sign == std::string::npos || (text[sign] != '=' && text[sign] != ':')) return {};
  const size_t value = text.find_first_not_of(' ', sign + 1);
  if (value == std::string::npos) return {};
  const size_t end = std::min(text.find(' ', value), text.size());
  return fmt::format("{}={}", text.substr(0, end_of_name), text.substr(value, end - value));
}

[[noreturn]] void fail(const std::vector<std::string>& words, size_t at) {
  const std::string meant = without_blanks(words, at);
  throw UserError(
      fmt::format("cannot read the argument {}: keys are given as key=value or --key value{}",
                  words[at], meant.empty() ? "" : fmt::format("; write {}", meant)));
}

}  // namespace

std::vector<Override> read_overrides(const std::vector<std::string>& words) {
  std::vector<Override> overrides;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    const bool dashed = word.starts_with("--");
    if (dashed) word.erase(0, 2);
    const size_t equals = word.find('=');
    Override item{word.substr(0, equals),
                  equals == std::string::npos ? "" : word.substr(equals + 1)};
    if (dashed) std::ranges::replace(item.key, '-', '_');
    if (equals == std::string::npos) {
      if (!dashed) fail(words, i);
      item.has_value = i + 1 < words.size() && !words[i + 1].starts_with("--");
      if (item.has_value) item.value = words[++i];
    } else if (!dashed && item.value.empty() && i + 1 < words.size() &&
               words[i + 1].find('=') == std::string::npos && !words[i + 1].starts_with("--")) {
      fail(words, i);  // `learning_rate= 1e-4`
    }
    if (item.key.empty()) throw UserError(fmt::format("no key in the argument {}", words[i]));
    if (item.key.find(' ') != std::string::npos) fail(words, i);
    overrides.push_back(std::move(item));
  }
  return overrides;
}

}  // namespace longspan
