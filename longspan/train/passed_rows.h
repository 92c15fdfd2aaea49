// The rows of a run on their way to the file that ranks read: facts for reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/part_encoder.h"
#include "longspan/train/encoded_data.h"
#include "longspan/train/run_data.h"

namespace longspan {

/// Passes the examples of a set on, and collects facts on them for reports.
struct PassedExamples {
  PassedExamples(const ModelConfig& model, const ExampleTaker& taker)
      : long_rows(model), take(taker) {}

  void pass(const Example& example) {
    if (size++ == 0) first = example;
    fingerprint.add(example);
    long_rows.add(example);
    take(example);
  }

  RowsFingerprint fingerprint;
  RowsBeyondPositions long_rows;
  const ExampleTaker& take;
  std::optional<Example> first;
  int64_t size = 0;
};

/// Properties of rows, and rows of the first part.
struct SeenRows {
  bool tools = false;
  std::vector<Conversation> first;

  void add(const std::vector<Conversation>& rows) {
    tools = tools || have_tools(rows);
    if (first.empty()) first.assign(rows.begin(), rows.begin() + std::min(rows.size(), kMost));
  }
  static constexpr size_t kMost = 1000;
};

/// The rows of a run that were passed on.
struct PassedRows {
  const Tokenizer& tokenizer;
  const std::vector<std::string>& notes;  // on the data sets
  bool have_tools;                        // some row has tools
  const std::vector<Conversation>& first;
  const EncodedExamples &train, &eval;  // reports, without examples
  const PassedExamples &train_set, &eval_set;
};
/// Shows an example, reports on the rows (say_data), and returns all but the examples.
DataNote say_rows(const RowSettings& config, const ModelConfig& model,
                  const LocalTime& template_time, const PassedRows& rows, Events& events);

}  // namespace longspan
