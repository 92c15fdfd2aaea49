#include "longspan/text/styled.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr std::string_view kEnd = "\x1b[0m";

std::string_view begin_of(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kHeading:
      return "\x1b[1m";
    case Style::kFaint:
      return "\x1b[2m";
    case Style::kWarning:
      return "\x1b[33m";
    case Style::kTrained:
      return "\x1b[32m";
    case Style::kSpecial:
      return "\x1b[36m";
    case Style::kTrainedSpecial:
      return "\x1b[1;32m";
  }
  throw std::logic_error("no such style");
}

bool is_trained(Style style) { return style == Style::kTrained || style == Style::kTrainedSpecial; }

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace

std::string styled(const std::vector<StyledText>& texts) {
  std::string out;
  for (const auto& [text, style] : texts) {
    const std::string_view begin = begin_of(style);
    if (begin.empty()) {
      out += shown(text);
      continue;
    }
    const std::string clean = shown(text);
    for (size_t at = 0; at <= clean.size();) {
      const size_t end = std::min(clean.find('\n', at), clean.size());
      if (end > at) out += fmt::format("{}{}{}", begin, clean.substr(at, end - at), kEnd);
      if (end < clean.size()) out += '\n';
      at = end + 1;
    }
  }
  return out;
}

std::string bracketed(const std::vector<StyledText>& texts) {
  std::string out;
  bool in_trained = false;
  for (const auto& [text, style] : texts) {
    if (is_trained(style) != in_trained) out += in_trained ? kTrainedEnd : kTrainedBegin;
    in_trained = is_trained(style);
    out += replaced(replaced(shown(text), kTrainedBegin, "\\u27e6"), kTrainedEnd, "\\u27e7");
  }
  return in_trained ? out + kTrainedEnd : out;
}

}  // namespace longspan
