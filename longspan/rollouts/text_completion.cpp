#include "longspan/rollouts/text_completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "longspan/base/user_error.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kShownOfPrompt = 80;

std::string_view without_incomplete(std::string_view text) {
  std::string_view rest = text;
  while (rest.ends_with(kIncomplete)) rest.remove_suffix(kIncomplete.size());
  return rest.empty() ? text : rest;
}

}  // namespace

std::string text_of_prompt(const CompletionRules& rules, const std::vector<int32_t>& prompt) {
  const Tokenizer& tokenizer = rules.tokenizer.value();
  const std::span<const int32_t> all(prompt);
  // The prompt may begin with a token that the server's tokenizer adds (BOS).
  for (const size_t added : {0, 1}) {
    if (added > all.size()) break;
    const auto rest = all.subspan(added);
    const std::string text = tokenizer.decode({rest.begin(), rest.end()});
    if (tokenizer.encode(text, /*add_special_tokens=*/true) == prompt) return text;
  }
  const std::string text = tokenizer.decode(prompt);
  throw UserError(fmt::format(
      "the text of the prompt does not encode to the {} of the prompt, and rollout_server: {} "
      "takes "
      "texts alone: {}; leave out this question, or choose another rollout_server",
      counted(std::ssize(prompt), "token"), rules.kind.name, shortened(text, kShownOfPrompt)));
}

Completion completion_of_text(const CompletionRules& rules, std::string_view text, bool has_ended) {
  Completion completion{};
  std::vector<int32_t>& ids = completion.token_ids;
  ids = rules.tokenizer.value().encode(has_ended ? text : without_incomplete(text));
  const auto end =
      std::ranges::find_if(ids, [&](int32_t id) { return rules.end_tokens.contains(id); });
  completion.has_end = has_ended || end != ids.end();
  if (end != ids.end()) {
    ids.erase(end + 1, ids.end());
  } else if (has_ended) {
    ids.push_back(rules.end_of_text.value());
  }
  if (std::ssize(ids) > rules.max_length) {
    ids.resize(rules.max_length);
    completion.has_end = false;
  }
  return completion;
}

}  // namespace longspan
