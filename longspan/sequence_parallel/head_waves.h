// Ulysses a few heads at a time (UPipe, arXiv 2602.21196): exchange the heads of the next wave
// during the attention of this one, in buffers for two waves instead of all heads.
#pragma once

#include "longspan/sequence_parallel/exchanged_attention.h"

namespace longspan {

/// attend_exchanged() in the waves of the split. Nothing exchanged is saved for the backward but
/// attention's out and lse: queries, keys and values are exchanged again there.
at::Tensor attend_in_waves(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                           const at::Tensor& v_tMH, const HeadSplit& split, const Group& group,
                           const AttendPiece& attend, const at::Tensor& sinks_N);

}  // namespace longspan
