#include "longspan/data/describe_sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/registers/stage.h"
#include "longspan/rows/batch.h"
#include "longspan/rows/example.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

// Enough of both ends to show prompt, template and answer.
constexpr int64_t kShownTokens = 160, kShownIds = 24;
constexpr size_t kShownDocuments = 2;       // of a packed row
constexpr size_t kShownSampleBytes = 4096;  // of each end: a token may stand for a long text

std::string decoded(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const int64_t size = std::ssize(ids);
  const auto text_of = [&](auto begin, auto end) {
    return shortened(tokenizer.decode({begin, end}), kShownSampleBytes);
  };
  if (size <= 2 * kShownTokens) return text_of(ids.begin(), ids.end());
  return fmt::format("{}\n  [... {} ...]\n{}", text_of(ids.begin(), ids.begin() + kShownTokens),
                     counted(size - 2 * kShownTokens, "token"),
                     text_of(ids.end() - kShownTokens, ids.end()));
}

std::string first_ids_of(const std::vector<int32_t>& ids) {
  const auto end = ids.begin() + std::min(std::ssize(ids), kShownIds);
  return fmt::format("[{}{}]", fmt::join(ids.begin(), end, ", "), end == ids.end() ? "" : ", ...");
}

}  // namespace

std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer) {
  std::vector<int32_t> trained;
  std::ranges::copy_if(sample.labels, std::back_inserter(trained),
                       [](int32_t label) { return label != kIgnoreLabel; });
  return fmt::format(
      "{}, {} of them trained\ninput_ids: {}\nlabels:    {}\n--- text ---\n{}\n--- trained "
      "---\n{}\n---",
      counted(std::ssize(sample.input_ids), "token"), trained.size(),
      first_ids_of(sample.input_ids), first_ids_of(sample.labels),
      decoded(sample.input_ids, tokenizer), decoded(trained, tokenizer));
}

std::string describe_example(const Example& example, const std::string& stage,
                             const Tokenizer& tokenizer) {
  const size_t size = example.documents.size();
  if (size == 1) return describe_sample(example.documents.front(), tokenizer);
  std::string text;
  for (size_t i = 0; i < std::min(size, kShownDocuments); ++i) {
    text += fmt::format("{}=== {} ===\n{}", i == 0 ? "" : "\n",
                        stage_named(stage).document_name(example, i),
                        describe_sample(example.documents[i], tokenizer));
  }
  return text;
}

}  // namespace longspan
