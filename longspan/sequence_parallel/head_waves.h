// Ulysses with a few heads at a time (UPipe, arXiv 2602.21196): exchanges the heads of the next
// wave during the attention of the current one, in buffers for two waves instead of all heads.
#pragma once

#include "longspan/sequence_parallel/exchanged_attention.h"

namespace longspan {

/// attend_exchanged() in the waves of the split. Of the exchanged tensors, only attention's output
/// and lse are saved for the backward, which exchanges queries, keys and values again.
at::Tensor attend_in_waves(const AttentionInputs& inputs, const HeadSplit& split,
                           const Group& group, const AttendPiece& attend,
                           AttentionCheckpoint checkpoint);

}  // namespace longspan
