// The training unit of a stage: documents that belong together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/rows/batch.h"

namespace longspan {

/// pt: one document. sft: one document, or with neat_packing several documents, which do not see
/// each other. dpo, rm: the chosen document, then the rejected document, with the same prompt. kto:
/// the document, then the same prompt with another example's answer, for an estimate of KL. grpo:
/// the rollouts of a group.
struct Example {
  std::vector<Sample> documents;
  bool desirable = true;  // kto: true if the answer is desirable
  /// grpo: the reward of each document; empty: the documents have advantages as a column.
  std::vector<double> rewards = {};
  std::map<std::string, double> reward_sums = {};  // grpo: sums of the rewards' parts, by name
  int64_t num_truncated = 0;  // grpo: documents that ended by their length limit
  std::string solution = {};  // grpo, of a question in a data set: the row's answer
  /// sft with packing and without neat_packing: indices of the samples' first tokens in the single
  /// document, ascending, without 0. As in LLaMA-Factory, positions restart at 0 at these tokens,
  /// but each sample sees the earlier samples.
  std::vector<int64_t> position_restarts;
  /// Index among all examples of a run, training examples before evaluation examples. The source of
  /// the example sets the index. Precomputed results of the example are found by this index.
  int64_t number = 0;
};

/// Concatenates all documents of the examples into one row (see collate() in batch.h). Positions
/// restart at Example::position_restarts. T = sum of the documents' lengths.
Batch collate_examples(const std::vector<const Example*>& examples);

}  // namespace longspan
