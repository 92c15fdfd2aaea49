#include "longspan/session/same_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"

namespace longspan {
namespace {

std::string hash_of(const std::string& text) {
  Xxh64 hash;
  hash.add(text.data(), text.size());
  return fmt::format("{:016x}", hash.value());
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Returns the lines of one text that the other one does not have.
std::string only_in(const std::set<std::string>& lines, const std::set<std::string>& others) {
  std::vector<std::string> own;
  std::ranges::set_difference(lines, others, std::back_inserter(own));
  return own.empty() ? "no such keys" : fmt::format("{}", fmt::join(own, ", "));
}

}  // namespace

void require_same_settings(const Group& world, const Settings& own) {
  std::string text;
  for (const auto& [key, value] : own) {
    std::string line = fmt::format("{}: {}", key, value);
    std::ranges::replace(line, '\n', ' ');
    text += line + "\n";
  }
  const std::vector<std::string> hashes = world.gather_text(hash_of(text));
  const auto other =
      std::ranges::find_if(hashes, [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> texts = world.gather_text(text);
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const std::set<std::string> first = lines_of(texts[0]), second = lines_of(texts[rank]);
  throw UserError(fmt::format(
      "The ranks have different configurations. Rank 0 has {}. Rank {} has {}. Start all processes "
      "with the same keys.",
      only_in(first, second), rank, only_in(second, first)));
}

}  // namespace longspan
