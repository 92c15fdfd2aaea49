// The logits of the head, one chunk of label positions at a time. No torch.
#pragma once

#include <cstdint>

#include "longspan/account/memory_model.h"

namespace longspan {

/// A chunk of logits: of one model, or of a policy and its teacher.
struct LogitChunk {
  double row_bytes = 0;    // of the logits and temporary tensors of a row
  int64_t rows = 0;        // of a chunk
  double label_bytes = 0;  // saved for each label
};

LogitChunk logit_chunk(const MemoryFacts& facts);

/// Returns the bytes per label of a teacher's hidden states. The hidden states are held from the
/// teacher's pass to the end of the head's backward.
double teacher_states(const MemoryFacts& facts);

}  // namespace longspan
