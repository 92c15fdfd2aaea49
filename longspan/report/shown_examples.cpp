#include "longspan/report/shown_examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "longspan/data/stage_encoders.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

namespace {

double trained_share(const EncodedRow& row) {
  return static_cast<double>(row.trained) / static_cast<double>(std::max<int64_t>(row.kept, 1));
}

int64_t longest_document(const EncodedRow& row) { return std::max(row.lengths[0], row.lengths[1]); }

}  // namespace

std::vector<Choice> choose_examples(const EncodedExamples& train, const RunRows& rows,
                                    int64_t num_first, bool outliers) {
  struct OfSet {
    std::vector<Choice> first;
    int64_t longest = -1, least = -1;
  };
  std::vector<OfSet> sets(rows.datasets.size());
  for (int64_t i = 0; i < std::ssize(train.rows); ++i) {
    const EncodedRow& row = train.rows[i];
    if (row.kept < 2) continue;  // pt: an empty text, which is its end token alone
    auto& [first, longest, least] = sets[rows.train[row.row].dataset];
    if (std::ssize(first) < num_first) first.push_back({i});
    if (longest < 0 || longest_document(row) > longest_document(train.rows[longest])) longest = i;
    if (least < 0 || trained_share(row) < trained_share(train.rows[least])) least = i;
  }
  std::vector<Choice> chosen;
  for (size_t i = 0; i < sets.size(); ++i) {
    const auto& [first, longest, least] = sets[i];
    const auto add = [&](int64_t index, const char* why) {
      if (index < 0 || std::ranges::find(chosen, index, &Choice::index) != chosen.end()) return;
      chosen.push_back({index, fmt::format("the {} of {}", why, rows.datasets[i].name)});
    };
    chosen.insert(chosen.end(), first.begin(), first.end());
    if (!outliers) continue;
    add(longest, "longest");
    add(least, "smallest share of trained tokens");
  }
  return chosen;
}

ShownExample shown_example(const ExampleRows& from, const Choice& choice, const PieceLimits& most) {
  const EncodedRow& row = from.train.rows[choice.index];
  const Conversation& conversation = from.rows.train[row.row];
  DataSettings config = from.config;
  const bool is_text = parts_of(from.stage.rows).text;
  if (is_text && packs(config, from.stage)) config.cutoff_len = INT64_MAX;  // blocks lose no text
  config.packing = config.neat_packing = false;
  config.on_bad_row = "skip";
  std::vector<Conversation> rows = {conversation};
  const bool has_kl = has_documents_apart(from.stage.rows);
  if (has_kl) {
    // The question gets the answer of the example before.
    const int64_t before = choice.index == 0 ? std::ssize(from.train.rows) - 1 : choice.index - 1;
    rows.insert(rows.begin(), from.rows.train[from.train.rows[before].row]);
  }
  const EncodedExamples encoded = from.encode(config, rows);
  if (encoded.examples.empty()) throw std::logic_error("a row has no example a second time");
  const Example& example = encoded.examples.back();
  ShownExample shown{.title = fmt::format("Example {} of {}", with_commas(choice.index + 1),
                                          with_commas(std::ssize(from.train.rows))),
                     .why = choice.why,
                     .dataset = from.rows.datasets[conversation.dataset].name,
                     .source = conversation.source,
                     .num_lost = row.lengths[0] + row.lengths[1] - row.kept,
                     .documents = {},
                     .solution = example.solution};
  const size_t num_documents = has_kl ? 1 : example.documents.size();
  for (size_t i = 0; i < num_documents; ++i) {
    const Sample& document = example.documents[i];
    shown.documents.push_back(
        {.name = example.documents.size() == 1 ? "" : from.stage.document_name(example, i),
         .num_tokens = std::ssize(document.input_ids),
         .num_trained = num_trained(document),
         .pieces = pieces_of(document, from.tokenizer, most)});
  }
  return shown;
}

}  // namespace longspan
