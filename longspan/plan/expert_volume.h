// Bytes that expert parallelism sends, by formula. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// A layer with experts and the width of its numbers.
struct ExpertShape {
  int64_t num_experts = 0, hidden_size = 0;
  int64_t element_bytes = 4;  ///< of rows: 2 in bf16
  int64_t weight_bytes = 4;   ///< of a router's weights: 8 in fp64
};

/// Sent to OTHER ranks by all ranks together.
struct ExpertVolume {
  int64_t forward = 0, backward = 0;
};

/// `num_rows`: pairs of a token and one of its experts that another rank has, of all ranks.
/// `num_forwards`: of layers with experts, of all ranks. A forward sends the counts of rows ahead,
/// 8 bytes an expert, then a row to the expert and one back; a backward, which computes the expert
/// again and knows the counts, the row and the gradient of its output with the weight of the
/// expert, and back the row's gradient and the weight's.
ExpertVolume expert_volume(int expert_parallel_size, const ExpertShape& shape, int64_t num_rows,
                           int64_t num_forwards);

}  // namespace longspan
