// Bytes that expert parallelism sends, by formula. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// A layer with experts and the size of its elements.
struct ExpertShape {
  int64_t num_experts = 0, hidden_size = 0;
  int64_t element_bytes = 4;  ///< of a row's elements: 2 for bf16
  int64_t weight_bytes = 4;   ///< of a router's weights: 8 for fp64
};

/// Bytes that all ranks together send to OTHER ranks.
struct ExpertVolume {
  int64_t forward = 0, backward = 0;
};

/// `num_rows`: pairs of a token and one of its experts on another rank, summed over ranks.
/// `num_forwards`: forwards of layers with experts, summed over ranks. A forward sends the counts
/// of rows (8 bytes per expert), then each row to the rank of its expert, and the expert's output
/// back. A backward recomputes the experts' outputs and sends no counts. A backward sends three
/// things to the rank of the expert: each row, the gradient of the output, and the router's weight.
/// The gradients of the row and of the weight return.
ExpertVolume expert_volume(int expert_parallel_size, const ExpertShape& shape, int64_t num_rows,
                           int64_t num_forwards);

}  // namespace longspan
