// Describes one key in words, and finds the key that a mistyped one may have meant.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/config/keys.h"
#include "longspan/config/unused_keys.h"
#include "longspan/registers/stage.h"
#include "longspan/text/nearest.h"

namespace longspan {

namespace {

std::string explain(const Key& key, const KeyDescription& description) {
  std::string text = fmt::format("{} ({})\n  {}\n  Takes: {}\n", key.name, description.section,
                                 key.help, description.wants);
  if (!key.unsupported_choices.empty()) {
    text +=
        fmt::format("  Known but not supported: {}\n", fmt::join(key.unsupported_choices, ", "));
  }
  text +=
      fmt::format("  Default: {}\n", description.default_value.empty() ? "none, see above"
                                                                       : description.default_value);
  const std::string stages = stages_of_key(key.name);
  text += fmt::format("  Stages: {}\n", stages.empty() ? "all" : stages);
  for (const UnusedKeys& unused : unused_keys()) {
    if (std::ranges::find(unused.keys, key.name) == unused.keys.end()) continue;
    text += fmt::format("  Has no effect {}.\n", unused.where);
  }
  if (!key.differs.empty()) text += fmt::format("  LLaMA-Factory: {}\n", key.differs);
  return text;
}

std::string explain(const UnsupportedKey& key) {
  if (key.of_generation) {
    return fmt::format(
        "{} (a key of `longspan chat` and `longspan generate`, not of training)\n"
        "  `longspan help chat` and `longspan help generate` explain it.\n",
        key.name);
  }
  std::string text =
      fmt::format("{} (LLaMA-Factory's or transformers', not supported)\n", key.name);
  if (!key.remedy.empty()) text += fmt::format("  {}\n", key.remedy);
  const std::string neutral = fmt::format("{}", key.neutral.empty() ? "false" : key.neutral);
  return text + fmt::format("  Accepted, since the value is a no-op: null, {}\n",
                            fmt::join(split_values(neutral), ", "));
}

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('_', begin), name.size());
    words.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Whether `given` has two or more words, and `name` has all of them in this order.
bool leaves_words_out(std::string_view given, std::string_view name) {
  const std::vector<std::string> some = words_of(given);
  size_t found = 0;
  for (const std::string& word : words_of(name))
    found += found < some.size() && word == some[found];
  return some.size() >= 2 && found == some.size();
}

}  // namespace

std::vector<std::string> split_values(std::string_view values) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= values.size();) {
    const size_t bar = std::min(values.find('|', begin), values.size());
    parts.emplace_back(values.substr(begin, bar - begin));
    begin = bar + 1;
  }
  return parts;
}

std::string explain_key(std::string_view name) {
  const std::vector<KeyDescription> descriptions = describe_keys();
  size_t number = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.name == name) return explain(key, descriptions[number]);
      ++number;
    }
  }
  for (const IdleKey& key : idle_keys()) {
    if (key.name != name) continue;
    return fmt::format("{} (taken, whatever its value, and without effect)\n  {}\n", key.name,
                       key.reason);
  }
  for (const OppositeKey& key : opposite_keys()) {
    if (key.name == name) {
      return fmt::format("{} (transformers'; the opposite of {})\n  {}\n", key.name, key.of,
                         key.help);
    }
  }
  for (const RenamedKey& key : renamed_keys()) {
    if (key.name == name) return fmt::format("{} is called {} now.\n", key.name, key.today);
  }
  for (const UnsupportedKey& key : unsupported_keys()) {
    if (key.name == name) return explain(key);
  }
  return {};
}

std::string nearest_key(std::string_view name) {
  if (name.size() > kMostComparedLetters) return "";
  std::vector<std::string> working, others;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) working.emplace_back(key.name);
  }
  for (const IdleKey& key : idle_keys()) others.emplace_back(key.name);
  for (const OppositeKey& key : opposite_keys()) others.emplace_back(key.name);
  // Prefers a key with an effect, unless one without is nearer.
  const std::string nearest = nearest_name(name, working), other = nearest_name(name, others);
  if (!other.empty() &&
      (nearest.empty() || edit_distance(name, other) < edit_distance(name, nearest))) {
    return other;
  }
  if (!nearest.empty()) return nearest;
  // num_epochs, batch_size: some words of a key's name.
  const auto longer = std::ranges::find_if(
      working, [&](const std::string& key) { return leaves_words_out(name, key); });
  return longer == working.end() ? "" : *longer;
}

}  // namespace longspan
