#include "longspan/data/describe_sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace longspan {

namespace {

// Enough of both ends to see prompt, template and answer.
constexpr int64_t kShownTokens = 160, kShownIds = 24;

std::string decoded(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const int64_t size = std::ssize(ids);
  if (size <= 2 * kShownTokens) return tokenizer.decode(ids);
  return fmt::format(
      "{}\n  [... {} tokens ...]\n{}", tokenizer.decode({ids.begin(), ids.begin() + kShownTokens}),
      size - 2 * kShownTokens, tokenizer.decode({ids.end() - kShownTokens, ids.end()}));
}

std::string first_of(const std::vector<int32_t>& ids) {
  const auto end = ids.begin() + std::min(std::ssize(ids), kShownIds);
  return fmt::format("[{}{}]", fmt::join(ids.begin(), end, ", "), end == ids.end() ? "" : ", ...");
}

}  // namespace

std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer) {
  std::vector<int32_t> trained;
  std::ranges::copy_if(sample.labels, std::back_inserter(trained),
                       [](int32_t label) { return label != kIgnoreLabel; });
  return fmt::format(
      "{} tokens, {} of them trained\ninput_ids: {}\nlabels:    {}\n--- text ---\n{}\n--- trained "
      "---\n{}\n---",
      sample.input_ids.size(), trained.size(), first_of(sample.input_ids), first_of(sample.labels),
      decoded(sample.input_ids, tokenizer), decoded(trained, tokenizer));
}

}  // namespace longspan
