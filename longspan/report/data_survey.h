// Numbers of a run's data sets before training: lengths, cuts, trained tokens, packing, duplicates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/example_encoder.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// Numbers of a data set. A bad row cannot be used. The length of an example is the number of
/// tokens of its longest document before the cut to cutoff_len.
struct DataSetNumbers {
  std::string name;
  bool is_evaluation = false;
  int64_t num_examples = 0;
  int64_t num_bad = 0;
  int64_t num_nothing_trained = 0;  // of the bad rows
  int64_t num_tokens = 0;           // after the cut
  int64_t num_trained = 0;
  int64_t num_cut = 0;   // examples
  int64_t num_lost = 0;  // tokens
  /// Examples that equal an earlier example of the same part (training, evaluation).
  int64_t num_duplicates = 0;
  int64_t num_drawn_again = 0;   // by mix_strategy or num_samples, which repeat rows on purpose
  std::vector<int64_t> lengths;  // ascending

  std::string label() const { return is_evaluation ? name + " (evaluation)" : name; }
  int64_t median() const { return lengths.empty() ? 0 : lengths[(lengths.size() - 1) / 2]; }
  int64_t longest() const { return lengths.empty() ? 0 : lengths.back(); }
  double mean() const;
  double trained_share() const;
};

/// Rows of packed examples.
struct PackedRows {
  PackingReport report;
  int64_t num_half_empty = 0;  // rows with fewer tokens than half of cutoff_len
  int64_t num_split = 0;       // pt: texts that continue in the next row
};

/// Equal examples.
struct EqualExamples {
  int64_t count = 0;
  std::string first, second;  // sources
  std::string text;           // the begin of the last message
};

/// The tokens that some cutoff_len would keep. (Of pairs: about so many.)
struct CutoffEffect {
  int64_t cutoff_len = 0;
  int64_t num_cut = 0;  // examples
  double kept = 1;      // share of tokens
};

struct DataSurvey {
  std::vector<DataSetNumbers> sets;  // those of training before those of evaluation
  std::optional<PackedRows> packing;
  std::vector<EqualExamples> equal;   // some of the most frequent
  std::vector<CutoffEffect> cutoffs;  // ascending, of the training examples
  std::vector<std::string> warnings;  // sentences
};

struct SurveyedData {
  const DataSettings& config;
  const Stage& stage;
  const RunRows& rows;
  const EncodedExamples &train, &eval;  // of on_bad_row: skip
  bool stops_at_bad_rows;               // on_bad_row of the configuration
};
DataSurvey survey_of(const SurveyedData& data);

/// Returns the table of the data sets, the heading first.
std::vector<std::vector<std::string>> table_of(const DataSurvey& survey);

/// Lengths in [begin, end).
struct LengthBin {
  int64_t begin, end, count;
};
/// Returns at most `most` (two or more) bins of about equal width in the logarithm of the length.
/// `lengths`: ascending, positive.
std::vector<LengthBin> length_bins(const std::vector<int64_t>& lengths, int64_t most);

/// "12.3 %"; a share that rounds to 0 or 1 is not shown as such.
std::string percent(double share);

}  // namespace longspan
