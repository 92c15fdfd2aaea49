// The training unit of a stage: documents that belong together.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/rows/batch.h"

namespace longspan {

/// pt: one document. sft: one document, or with neat_packing several, which do not see each other.
/// dpo, rm: the chosen document, then the rejected one, with the same prompt. kto: the document,
/// then the same prompt with another example's answer, for an estimate of KL.
struct Example {
  std::vector<Sample> documents;
  bool desirable = true;  // kto: whether the answer is
  /// sft with packing and without neat_packing: the first tokens of the samples in the one
  /// document, ascending, without 0. As in LLaMA-Factory, positions restart at 0 there, but samples
  /// see earlier ones.
  std::vector<int64_t> position_restarts;
  /// Its number among all examples of a run, training before evaluation. Its source sets it.
  /// Earlier results for the example are found by it.
  int64_t number = 0;
};

/// Concatenates all documents of the examples into one row (see collate() in batch.h). Positions
/// restart where the examples say so. T = sum of the documents' lengths.
Batch collate_examples(const std::vector<const Example*>& examples);

}  // namespace longspan
