// Ulysses with a few heads at a time (UPipe, arXiv 2602.21196): the exchange of the next wave's
// heads overlaps with the attention of the current wave. The buffers hold two waves instead of all
// heads.
#pragma once

#include "longspan/sequence_parallel/exchanged_attention.h"

namespace longspan {

/// Does the same as attend_exchanged(), in the waves of the split. The backward finds the
/// attention's output and log-sum-exp saved, and exchanges queries, keys and values again.
at::Tensor attend_in_waves(const AttentionInputs& inputs, const HeadSplit& split,
                           const Group& group, const AttendPiece& attend,
                           AttentionCheckpoint checkpoint);

}  // namespace longspan
