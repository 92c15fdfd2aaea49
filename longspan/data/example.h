// What a stage trains on: one or two documents that belong together.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/data/batch.h"

namespace longspan {

/// pt: one document. sft: one document, or with neat_packing several that do not see each other.
/// dpo, rm: the chosen document, then the rejected one; both begin with the same prompt. kto: the
/// document, then the same prompt with another example's answer, by which KL is estimated.
struct Example {
  std::vector<Sample> documents;
  bool desirable = true;  // kto: the verdict
  /// sft with packing but without neat_packing: tokens of the one document at which a row begins,
  /// in ascending order, without 0. The rows see those before them, but positions begin again at 0
  /// there, as in LLaMA-Factory.
  std::vector<int64_t> position_restarts;
  /// Its place among all examples of a run, training before evaluation; given by its source. By it
  /// is known what was computed of it before.
  int64_t number = 0;
};

/// All documents of the examples, in order, as one row (see collate of batch.h); positions restart
/// where the examples say so. Shapes: T = sum of the documents' lengths.
Batch collate_examples(const std::vector<const Example*>& examples);

}  // namespace longspan
