#include "longspan/data/dealt_epochs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

DealtEpochs::DealtEpochs(const ExampleSet& examples, Loader loader, Options options)
    : examples_(examples), loader_(std::move(loader)), options_(std::move(options)) {}

DrawnExamples DealtEpochs::next(int64_t /*epoch*/, int64_t /*batch*/) {
  throw std::logic_error("a dealt step has no micro-batches");
}

std::vector<DrawnRow> DealtEpochs::rows(const StepPlace& step) {
  std::vector<ExamplePointer> examples;
  for (int64_t batch = step.begin_batch; batch < step.end_batch; ++batch) {
    for (const int64_t place : loader_.rows(step.epoch, batch)) {
      examples.push_back(examples_.example(place));
    }
  }
  std::vector<std::vector<int64_t>> lengths;
  for (const ExamplePointer& example : examples) {
    std::vector<int64_t>& documents = lengths.emplace_back();
    for (const Sample& sample : example->documents) {
      documents.push_back(std::ssize(sample.input_ids));
    }
  }
  num_examples_ = std::ssize(examples);
  last_ = deal(lengths, options_.rules);
  const Dealing& dealing = last_;
  std::vector<DrawnRow> rows;
  for (const std::optional<size_t> turn :
       turns_of(dealing, options_.rank, options_.rules.together)) {
    DrawnRow& row = rows.emplace_back();
    row.drawn.pattern = examples.front();
    if (options_.has_own_ranks) row.ranks = RankRange{.first = options_.rank, .count = 1};
    if (!turn) continue;
    const DealtRow& dealt = dealing.rows[*turn];
    for (const int64_t example : dealt.examples) row.drawn.examples.push_back(examples[example]);
    if (options_.has_own_ranks) row.ranks = dealt.ranks;
  }
  return rows;
}

void DealtEpochs::check(int64_t num_examples) {
  if (num_examples == num_examples_) {
    imbalances_.push_back(last_.imbalance());
    for (const DealtRow& row : last_.rows) num_rows_[row.ranks.count] += 1;
    return;
  }
  throw UserError(fmt::format(
      "The ranks have dealt the rows of a step in different ways: {} of {} examples have a row. "
      "Start as many processes on each machine, with the same program, or leave out "
      "balance_batches and sequence_parallel_size: auto.",
      num_examples, num_examples_));
}

std::string DealtEpochs::summary() const {
  if (imbalances_.empty()) return "";
  std::vector<std::string> counts;
  for (const auto& [degree, count] : num_rows_) {
    counts.push_back(fmt::format("{} on {}", with_commas(count), counted(degree, "process")));
  }
  const double sum = std::accumulate(imbalances_.begin(), imbalances_.end(), 0.0);
  return fmt::format(
      "Dealt rows: {}. Estimated time of a step over the mean work of a process: {:.2f} on "
      "average, {:.2f} at most.",
      fmt::join(counts, ", "), sum / static_cast<double>(imbalances_.size()),
      *std::ranges::max_element(imbalances_));
}

void DealtEpochs::resume(const std::string& state) { refuse_stream_state(state); }

}  // namespace longspan
