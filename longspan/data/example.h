// What a stage trains on: one or two documents that belong together.
#pragma once

#include <vector>

#include "longspan/data/batch.h"

namespace longspan {

/// pt: one document. sft: one document, or with neat_packing several that do not see each other.
/// dpo, rm: the chosen document, then the rejected one; both begin with the same prompt. kto: the
/// document, then the same prompt with another example's answer, by which KL is estimated.
struct Example {
  std::vector<Sample> documents;
  bool desirable = true;  // kto: the verdict
};

}  // namespace longspan
